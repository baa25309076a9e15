"""This node's part in the quorum: the consensus core, its disk, its network and its clock, joined.

Promises:
- The core is stepped in one place, and the effects of a step are carried out in order and without waiting.
- Writes go to a worker thread, committed entries to the applier, messages to the transport.
- A snapshot of its own is taken beside everything else.
- The first failure ends it, and is reported once.

It never decides what is proposed. Source of its duties: docs/decisions/0016.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headrace.base.ids import BrokerId
from headrace.base.limits import METADATA_EVENTS_PER_SNAPSHOT, RAFT_NUMBER_MAX, RAFT_SNAPSHOT_CHUNK_BYTES
from headrace.base.ports import Disk, Random
from headrace.broker.cluster.quorum.reading import Reading
from headrace.broker.cluster.quorum.succession import Succession
from headrace.broker.cluster.quorum.transport import Transport
from headrace.broker.cluster.quorum.writer import LogWriter
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import BrokerRegistered
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import Endpoint, endpoint_at
from headrace.raft.core import Raft
from headrace.raft.events import (
    Campaign,
    Event,
    LeaderDied,
    Persisted,
    ReadIndex,
    ReadSnapshot,
    Ready,
    SnapshotRead,
    SnapshotTaken,
    Tick,
)
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import (
    AppendAnswer,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMark,
    TimeoutNow,
)
from headrace.raft.state import Settings
from headrace.storage.commit_log import Committed, Tail
from headrace.storage.raftlog.metadata_log import events_of, image_of_snapshot, snapshot_lines
from headrace.storage.raftlog.raft_log import RaftLog, open_commit_log
from headrace.storage.raftlog.snapshots import Snapshot

log = get_logger(__name__)


class QuorumMember:
    """Used on the event loop. `after_step` is called after each step of the core and after entries were applied.
    `on_message` is called before the core gets a message, `on_failure` once."""

    def __init__(
        self,
        *,
        me: Peer,
        random: Random,
        settings: Settings,
        tick_ms: int,
        transport: Transport,
        tail: Tail,
        reading: Reading,
        after_step: Callable[[], None],
        on_message: Callable[[Message], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.me = me
        self._random = random
        self._settings = settings
        self._tick_seconds = tick_ms / 1000
        self._transport = transport
        self._tail = tail
        self._held: list[Entry] | None = None
        """Committed entries that are gathered while it starts; None: they are handed on."""
        self._reading = reading
        self._after_step = after_step
        self._on_message = on_message
        self._on_failure = on_failure
        self._succession = Succession(lambda: self._step_while_running(Campaign()))
        self._runs = False
        self._ticks: asyncio.TimerHandle | None = None
        self._members: frozenset[Peer] = frozenset()
        self._snapshot: asyncio.Future[None] | None = None
        self._events_in_snapshot = 0
        self._log: RaftLog
        self._writer: LogWriter
        self.core: Raft

    @property
    def is_alone(self) -> bool:
        """Whether this node has the only vote."""
        return self.core.membership.voters == {self.me}

    async def start(self, disk: Disk, directory: Path, born: Membership) -> None:
        """Recover, and apply the entries known to be committed; the only voter elects itself. Raises CorruptData and
        StorageFailure."""
        loop = asyncio.get_running_loop()
        self._log, recovery = await loop.run_in_executor(None, lambda: open_commit_log(disk, directory, born=born))
        if recovery.cut_bytes:
            log.warning("cut an unfinished write off the metadata commit log", bytes=recovery.cut_bytes)
        self.core = Raft.recovered(
            me=self.me,
            hard_state=recovery.hard_state,
            snapshot=recovery.mark,
            entries=recovery.entries,
            random=self._random,
            settings=self._settings,
        )
        self._writer = LogWriter(self._log, self._on_written, self._on_failure)
        self._runs = True
        committed: tuple[Entry, ...] = ()
        if self.is_alone:
            self._held = []
            self.advance(Campaign())
            await self._writer.drained()
            if not self._runs:
                return
            assert self.core.log.handed_index == self.core.log.last_index, "the only voter commits what it has"
            committed, self._held = tuple(self._held), None
        else:
            listener = self._transport.listener
            for node, endpoint in await loop.run_in_executor(None, _registered, recovery.entries, listener):
                self._transport.learn(node, endpoint.host, endpoint.port)
        image, count = await loop.run_in_executor(None, _replayed, recovery.snapshot, committed)
        self._tail.begin(image, count)
        if recovery.last_index or born.voters:
            self._transport.follow(image.lineage)
        self._transport.attach(self.receive)
        self._transport.on_peer_dead(self._on_peer_dead)
        self._settle()
        if not self.core.leads and self.core.leader is None:
            self._succession.begin(self.core, None)

    async def stop(self) -> None:
        """Step nothing more, wait for the disk, close the log. After a failure too."""
        self.halt()
        await self._writer.drained()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
            await self._writer.drained()
        await asyncio.get_running_loop().run_in_executor(None, self._log.close)

    def halt(self) -> None:
        """Step nothing more, from now on."""
        self._runs = False
        self._succession.stop()
        if self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    # steps

    def step(self, event: Event) -> Ready:
        ready = self.advance(event)
        self._settle()
        return ready

    def advance(self, event: Event) -> Ready:
        """Give the core an event and carry out its effects; as `step`, but without the consequences of a new role."""
        ready = self.core.step(event)
        for message in ready.messages:
            self._transport.send(message)
        if ready.write is not None:
            self._writer.put(ready)
        if ready.committed:
            self._hand_on(ready.committed)
        for wanted in ready.reading:
            self._read_snapshot(wanted)
        for answer in ready.reads:
            self._reading.on_answer(answer)
        return ready

    def _hand_on(self, entries: Sequence[Entry]) -> None:
        if self._held is not None:
            self._held.extend(entries)
        elif self._runs:
            self._tail.apply([committed_of(entry) for entry in entries])

    def _step_while_running(self, event: Event) -> None:
        if self._runs:
            self.step(event)

    def _settle(self) -> None:
        members = self.core.membership.members
        if members != self._members:
            self._transport.forget({peer.node for peer in self._members} - {peer.node for peer in members})
            self._members = members
        if self._ticks is None:
            self._tick()
        self._after_step()

    def receive(self, message: Message) -> None:
        """Step a message from another member."""
        if not self._runs or self._is_impossible(message):
            return
        self._on_message(message)
        self.step(message)

    def _is_impossible(self, message: Message) -> bool:
        """Whether no member with this program sends such a message. It acknowledges what this leader never sent, comes
        from a second leader in its term, or has a number that no log reaches."""
        core = self.core
        match message:
            case AppendAnswer() if message.match_index > core.log.last_index:
                return True
            case AppendRequest() | Heartbeat() | SnapshotChunk() | TimeoutNow() if message.term == core.term:
                return message.target == self.me and core.leader not in (None, message.source)
            case SnapshotAnswer() if message.next_offset > RAFT_NUMBER_MAX:
                return True
            case _:
                return message.term > RAFT_NUMBER_MAX

    def ask_read(self, context: int) -> bool:
        return self._runs and self.step(ReadIndex(context)).refusal is None

    def leader_died(self, peer: Peer, term: int) -> None:
        """Note that the process of that term's leader is plainly dead, so that nobody waits for it."""
        if not self._runs or self.core.leads:
            return
        self.step(LeaderDied(peer, term))
        if self.core.leader == peer and self.core.term == term:
            self._succession.begin(self.core, peer)

    def _on_peer_dead(self, node: BrokerId) -> None:
        leader = self.core.leader
        if leader is not None and leader.node == node:
            self.leader_died(leader, self.core.term)

    def _tick(self) -> None:
        """Let time pass where there are others, and until the only member leads: its earlier leader may be removed."""
        self._ticks = None
        if self._runs and (self._members - {self.me} or (self.is_alone and not self.core.leads)):
            self._ticks = asyncio.get_running_loop().call_later(self._tick_seconds, self._on_tick)

    def _on_tick(self) -> None:
        self._tick()
        self.step(Tick())

    # the disk

    def _on_written(self, write: int, image: MetadataImage | None) -> None:
        if image is not None and self._runs:
            self._events_in_snapshot = self._tail.events_applied
            self._tail.restore(image)
        self._step_while_running(Persisted(write))

    def _read_snapshot(self, wanted: ReadSnapshot) -> None:
        """Read bytes of a snapshot for another member, in a worker thread."""

        def tell(work: asyncio.Future[tuple[bytes, bool] | None]) -> None:
            if work.cancelled():
                return
            error = work.exception()
            if isinstance(error, Exception):
                self._on_failure(error)
                return
            data, last = work.result() or (None, False)
            self._step_while_running(SnapshotRead(wanted.target, wanted.index, wanted.offset, data, last))

        read, size = self._log.read_snapshot, RAFT_SNAPSHOT_CHUNK_BYTES
        work = asyncio.get_running_loop().run_in_executor(None, read, wanted.index, wanted.offset, size)
        work.add_done_callback(tell)

    def on_applied(self) -> None:
        """Act on applied entries: a role may rest on them, and a snapshot may be due."""
        if self._runs:
            self._after_step()
            self._snapshot_where_due()

    def _snapshot_where_due(self) -> None:
        due = self._tail.events_applied - self._events_in_snapshot >= METADATA_EVENTS_PER_SNAPSHOT
        if self._snapshot is not None or not due:
            return
        image, raft_log = self._tail.image, self.core.log
        term = raft_log.term_at(image.index)
        if term is None:
            return  # a leader's snapshot is on its way to the disk
        mark = SnapshotMark(image.index, term, raft_log.members.at(image.index))
        self._events_in_snapshot = self._tail.events_applied
        self._writer.do(self._log.roll)
        self._snapshot = asyncio.get_running_loop().run_in_executor(
            None, self._log.prepare_snapshot, mark, snapshot_lines(image)
        )
        self._snapshot.add_done_callback(lambda prepared: self._install_snapshot(mark, prepared))

    def _install_snapshot(self, mark: SnapshotMark, prepared: asyncio.Future[None]) -> None:
        if prepared.cancelled():
            return
        error = prepared.exception()
        if isinstance(error, Exception):
            self._on_failure(error)
        else:
            self._writer.do(lambda: self._log.install_snapshot(mark), lambda: self._on_snapshot(mark.index))

    def _on_snapshot(self, index: int) -> None:
        self._snapshot = None
        self._step_while_running(SnapshotTaken(index))


def committed_of(entry: Entry) -> Committed:
    """Return the entry for the tail. A membership, and the entry that opens a term, have no events."""
    return Committed(entry.index, entry.term, entry.data if entry.kind is EntryKind.DATA else b"")


def learn_lineage(transport: Transport, delta: ImageDelta) -> None:
    """Tell the transport of a later recovery in a leader's snapshot."""
    if delta.before.recovery != delta.after.recovery:
        transport.follow(delta.after.lineage)


def learn_addresses(transport: Transport, delta: ImageDelta) -> None:
    """Tell the transport the addresses that brokers registered."""
    before, after = delta.before.brokers, delta.after.brokers
    if before is after:
        return
    for broker in after.values():
        known = before.get(broker.id)
        endpoint = endpoint_at(broker.endpoints, transport.listener)
        if endpoint is not None and (known is None or known.endpoints != broker.endpoints):
            transport.learn(broker.id, endpoint.host, endpoint.port)


def _registered(entries: Iterable[Entry], listener: str) -> list[tuple[BrokerId, Endpoint]]:
    """Return the addresses that brokers registered for this listener, committed or not. After a restart of all, members
    that are not of the cluster's birth find each other by these. To know which entries are committed takes a quorum."""
    events = (event for entry in entries for event in events_of(entry))
    registered = (
        (event.broker_id, endpoint_at(event.endpoints, listener))
        for event in events
        if isinstance(event, BrokerRegistered)
    )
    return [(node, endpoint) for node, endpoint in registered if endpoint is not None]


def _replayed(snapshot: Snapshot | None, entries: tuple[Entry, ...]) -> tuple[MetadataImage, int]:
    """Return the image after these entries, and how many events they held; an entry without any counts as one."""
    image, count = image_of_snapshot(snapshot), 0
    for entry in entries:
        events = events_of(entry)
        image, count = image.replay(events, index=entry.index), count + max(1, len(events))
    return image, count
