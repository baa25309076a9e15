"""The driver of the spine: carries a decision to the commit log, and the committed image to everyone who reads it.

Promises: `image` is committed state and is swapped by one assignment; a decision sees every decision before it, also
those still on their way to the disk; `submit` returns only once what it returns rests on committed state, and after
every subscriber has seen it; the deltas that a subscriber is given add up to `image`. On a failed disk nothing more is
committed, everyone waiting is told, and `on_fatal` is called once, to stop the process. Never decides and never
changes state but by a commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from headrace.base.errors import HeadraceError, StorageFailure
from headrace.base.ids import BrokerId
from headrace.base.limits import METADATA_EVENTS_PER_SNAPSHOT, METADATA_PROPOSALS_MAX
from headrace.base.ports import Disk, Random
from headrace.controller.decision import Decision
from headrace.metadata.codec import decode_events, encode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import MetadataEvent, PartitionsAdded, TopicCreated
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.raft.core import Raft
from headrace.raft.events import Campaign, Event, Persisted, Propose, Ready, SnapshotTaken
from headrace.raft.membership import Change, Membership, Peer
from headrace.raft.messages import Entry, SnapshotMark
from headrace.storage.commitlog import CommitLog, open_commit_log
from headrace.storage.metadata_log import image_of_snapshot, snapshot_lines
from headrace.storage.snapshots import Snapshot

T = TypeVar("T")
Subscriber = Callable[[ImageDelta], None]
log = structlog.get_logger(__name__)

_INLINE_WEIGHT: Final = 200
"""Events and partitions up to which entries are encoded on the loop: about a millisecond."""


class MetadataStopped(HeadraceError):  # noqa: N818 - a state, not a mistake
    """Nothing more is committed on this node: it is stopping."""


class NotController(HeadraceError):  # noqa: N818 - a state, not a mistake
    """This node does not decide now; `leader` does, where one is known."""

    def __init__(self, leader: BrokerId | None) -> None:
        super().__init__("This broker is not the controller.")
        self.leader = leader


class OutcomeUnknown(HeadraceError):  # noqa: N818 - a state
    """The leadership ended before it was known whether what was submitted is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    peer: Peer
    voter: bool
    log_end: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    leader: Peer | None
    epoch: int
    high_watermark: int
    members: tuple[MemberStatus, ...]


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A decision on its way to the disk: what it will change, and who is told once it has."""

    events: tuple[MetadataEvent, ...]
    delta: ImageDelta
    done: asyncio.Future[None]


class MetadataDriver:
    """Cluster state on this node. To be used from one event loop."""

    def __init__(
        self,
        *,
        disk: Disk,
        directory: Path,
        me: Peer,
        random: Random,
        on_fatal: Callable[[Exception], None] | None = None,
    ) -> None:
        """`directory`: the commit log's own. `on_fatal`: called on the loop, once, when nothing can be committed any
        more; the process is to stop."""
        self._disk = disk
        self._directory = directory
        self._me = me
        self._random = random
        self._on_fatal = on_fatal
        self._image = EMPTY_IMAGE
        self._pending = EMPTY_IMAGE
        self._queue: deque[_Proposal] = deque()
        self._in_flight: tuple[_Proposal, ...] = ()
        self._room = asyncio.Semaphore(METADATA_PROPOSALS_MAX)
        self._wake = asyncio.Event()
        self._subscribers: list[Subscriber] = []
        self._on_controller: list[Callable[[bool], None]] = []
        self._failure: Exception | None = None
        self._events_since_snapshot = 0
        self._snapshot: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._log: CommitLog
        self._core: Raft

    @property
    def image(self) -> MetadataImage:
        """The committed image. Read it once per request."""
        return self._image

    @property
    def leader(self) -> Peer | None:
        return self._me

    @property
    def is_controller(self) -> bool:
        return self._writer is not None and self._failure is None

    def on_controller(self, callback: Callable[[bool], None]) -> None:
        self._on_controller.append(callback)

    def on_leader(self, callback: Callable[[], None]) -> None:
        pass

    def on_peer_dead(self, callback: Callable[[BrokerId], None]) -> None:
        pass

    def quorum(self) -> QuorumStatus:
        member = MemberStatus(peer=self._me, voter=True, log_end=self._image.index + 1)
        return QuorumStatus(leader=self._me, epoch=1, high_watermark=self._image.index + 1, members=(member,))

    async def change(self, change: Change) -> None:
        raise HeadraceError("This cluster has one voter.")

    async def transfer(self, target: Peer) -> None:
        pass

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be committed any more; None while all is well."""
        return self._failure

    async def start(self) -> None:
        """Recover the commit log, win the own vote, replay what is committed, and give subscribers all of it as one
        delta from the empty image. Raises CorruptData and StorageFailure."""
        loop = asyncio.get_running_loop()
        self._log, recovery = await loop.run_in_executor(None, open_commit_log, self._disk, self._directory)
        if recovery.cut_bytes:
            log.warning("cut an unfinished write off the metadata commit log", bytes=recovery.cut_bytes)
        snapshot_term = 0 if recovery.snapshot is None else recovery.snapshot.term
        self._core = Raft.recovered(
            me=self._me,
            hard_state=recovery.hard_state,
            snapshot=SnapshotMark(recovery.snapshot_index, snapshot_term, Membership(frozenset((self._me,)))),
            entries=recovery.entries,
            random=self._random,
        )
        committed = await self._persist(self._step(Campaign()))
        image, count = await loop.run_in_executor(None, _replayed, recovery.snapshot, committed)
        self._events_since_snapshot = count
        self._pending = image
        self._publish(ImageDelta(EMPTY_IMAGE, image))
        self._writer = loop.create_task(self._write(), name="metadata writer")
        for callback in self._on_controller:
            callback(True)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have every later delta given to `subscriber`, on the loop, right after the image was swapped and before
        `submit` returns. A subscriber that raises is a bug, and fatal."""
        self._subscribers.append(subscriber)

    async def submit(self, decide: Callable[[MetadataImage], Decision[T]]) -> T:
        """Decide on the newest state, commit the events, and return the decision's result.

        Returns once the state that was decided on, and the events, are committed and published. Raises StorageFailure
        where they cannot be (whether they are on the disk is then unknown), MetadataStopped after `stop`.
        """
        async with self._room:
            self._check_running()
            decision = decide(self._pending)
            done = self._enqueue(decision.events) if decision.events else self._last_done()
            if done is not None:
                await asyncio.shield(done)
            return decision.result

    async def stop(self) -> None:
        """Commit what was submitted, then close the log. Idempotent."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        self._wake.set()
        await writer
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        await asyncio.get_running_loop().run_in_executor(None, self._log.close)

    def _check_running(self) -> None:
        if self._failure is not None:
            raise StorageFailure(f"The metadata can not be changed any more: {self._failure}") from self._failure
        if self._writer is None:
            raise MetadataStopped("This broker is stopping: ask another one, or again after it has started.")

    def _enqueue(self, events: tuple[MetadataEvent, ...]) -> asyncio.Future[None]:
        delta = ImageDelta.of(self._pending, events, index=self._pending.index + 1)
        self._pending = delta.after
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Proposal(events, delta, done))
        self._wake.set()
        return done

    def _last_done(self) -> asyncio.Future[None] | None:
        """What to wait for before a result that rests on the pending image may be told."""
        waiting = self._queue or self._in_flight
        return waiting[-1].done if waiting else None

    async def _write(self) -> None:
        """Commit what is queued, all of it as one write, until stopped."""
        try:
            while self._failure is None and (self._writer is not None or self._queue):
                await self._wake.wait()
                self._wake.clear()
                while self._queue and self._failure is None:
                    self._in_flight = tuple(self._queue)
                    self._queue.clear()
                    await self._commit(self._in_flight)
                    self._in_flight = ()
                    await self._snapshot_where_due()
        except Exception as error:
            self._fail(error)

    async def _commit(self, proposals: tuple[_Proposal, ...]) -> None:
        committed = await self._persist(self._step(Propose(await self._encoded(proposals))))
        for proposal, entry in zip(proposals, committed, strict=True):
            assert proposal.delta.after.index == entry.index, "entries are committed in the order of the decisions"
            self._publish(proposal.delta)
            self._events_since_snapshot += len(proposal.events)
            if not proposal.done.done():  # a failed snapshot may have told the submitter already
                proposal.done.set_result(None)

    async def _encoded(self, proposals: tuple[_Proposal, ...]) -> tuple[bytes, ...]:
        def encode() -> tuple[bytes, ...]:
            return tuple(encode_events(proposal.events) for proposal in proposals)

        if sum(_weight(event) for proposal in proposals for event in proposal.events) <= _INLINE_WEIGHT:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(None, encode)

    async def _persist(self, ready: Ready) -> tuple[Entry, ...]:
        """Sync what the core wants synced, and what it wants synced then; what is committed by that."""
        loop = asyncio.get_running_loop()
        committed: tuple[Entry, ...] = ()
        while ready.write is not None:
            await loop.run_in_executor(None, self._log.append, ready.hard_state, ready.entries)
            ready = self._step(Persisted(ready.write))
            committed += ready.committed
        return committed

    def _step(self, event: Event) -> Ready:
        ready = self._core.step(event)
        assert ready.refusal is None, "the only voter leads, and nothing it waits for can fail to come"
        return ready

    def _publish(self, delta: ImageDelta) -> None:
        assert delta.before is self._image, "a delta starts at the published image"
        self._image = delta.after
        for subscriber in self._subscribers:
            subscriber(delta)

    async def _snapshot_where_due(self) -> None:
        """Start a snapshot in the background, after enough events since the last. Commits go on meanwhile."""
        running = self._snapshot is not None and not self._snapshot.done()
        if running or self._events_since_snapshot < METADATA_EVENTS_PER_SNAPSHOT:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._log.roll)
        self._events_since_snapshot = 0
        image, term = self._image, self._core.term
        self._snapshot = loop.run_in_executor(
            None, self._log.install_snapshot, image.index, term, snapshot_lines(image)
        )
        self._snapshot.add_done_callback(partial(self._on_snapshot, image.index))

    def _on_snapshot(self, index: int, snapshot: asyncio.Future[None]) -> None:
        if snapshot.cancelled():
            return
        error = snapshot.exception()
        if error is None:
            self._step(SnapshotTaken(index))
        elif isinstance(error, Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Nothing more is committed. Everyone waiting is told, and whoever runs the process."""
        if self._failure is not None:
            return
        self._failure = error
        log.critical("the metadata can not be changed any more", error=str(error) or repr(error))
        for proposal in (*self._in_flight, *self._queue):
            if not proposal.done.done():
                proposal.done.set_exception(StorageFailure(str(error)))
                proposal.done.exception()  # not every submitter is still there to look
        self._queue.clear()
        self._wake.set()
        if self._on_fatal is not None:
            self._on_fatal(error)


def _replayed(snapshot: Snapshot | None, entries: tuple[Entry, ...]) -> tuple[MetadataImage, int]:
    """The image after these entries, and how many events they held."""
    image, count = image_of_snapshot(snapshot), 0
    for entry in entries:
        events = decode_events(entry.data)
        image, count = image.replay(events, index=entry.index), count + len(events)
    return image, count


def _weight(event: MetadataEvent) -> int:
    return 1 + len(event.partitions) if isinstance(event, TopicCreated | PartitionsAdded) else 1
