"""The commit log that brokers keep by Raft: `QuorumMember` behind the port.

An epoch is a Raft term, and its holder is the leader. A leader knows what earlier ones decided once an entry of its own
term is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from headrace.base import limits
from headrace.base.ids import BrokerId, DirectoryId
from headrace.base.ports import Clock, Disk, Random
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.quorum.member import QuorumMember, learn_addresses, learn_lineage
from headrace.broker.cluster.quorum.reading import Reading
from headrace.broker.cluster.quorum.status import Watch
from headrace.broker.cluster.quorum.transport import NoTransport, Transport
from headrace.raft.events import Propose, ProposeChange, Transfer
from headrace.raft.membership import Change, Membership, MembershipRefusal, Peer
from headrace.raft.messages import Message
from headrace.raft.state import Settings
from headrace.storage.commit_log import EpochOver, QuorumStatus, Tail

SETTINGS: Final = Settings(election_ticks=limits.RAFT_ELECTION_TICKS, heartbeat_ticks=limits.RAFT_HEARTBEAT_TICKS)


def metadata_on_raft(
    *,
    disk: Disk,
    directory: Path,
    me: Peer,
    random: Random,
    voters: Membership | None = None,
    transport: Transport | None = None,
    clock: Clock | None = None,
    on_fatal: Callable[[Exception], None] | None = None,
    settings: Settings = SETTINGS,
    tick_ms: int = limits.RAFT_TICK_MS,
) -> MetadataDriver:
    """Return the metadata's driver over a commit log by Raft; `MetadataDriver.start` begins.

    - `directory`: the commit log's own.
    - `voters`: the voters of the cluster's birth, the same at every start; None: this node alone. With an empty
      membership, this node joins, and waits until a leader contacts it.
    - `transport`: None: there is no other node.
    - `clock`: for `quorum`'s times.
    - `on_fatal`: called on the loop, once, when nothing can be committed any more; the process is to stop.
    """
    transport = transport or NoTransport()
    commit_log = RaftCommitLog(
        disk=disk,
        directory=directory,
        me=me,
        born=Membership(frozenset((me,))) if voters is None else voters,
        random=random,
        transport=transport,
        clock=clock,
        settings=settings,
        tick_ms=tick_ms,
    )
    driver = MetadataDriver(commit_log, me=me.node, on_fatal=on_fatal)
    driver.subscribe(partial(learn_addresses, transport))
    driver.subscribe(partial(learn_lineage, transport))
    return driver


class RaftCommitLog:
    """A `CommitLog`."""

    def __init__(
        self,
        *,
        disk: Disk,
        directory: Path,
        me: Peer,
        born: Membership,
        random: Random,
        transport: Transport,
        clock: Clock | None,
        settings: Settings,
        tick_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._me = me
        self._born = born
        self._random = random
        self._transport = transport
        self._settings = settings
        self._tick_ms = tick_ms
        self.patience_s: Final = 2 * settings.election_ticks * tick_ms / 1000
        self._watch = Watch(None if clock is None else clock.now_ms)
        self._reading = Reading(lambda context: self._member.ask_read(context), EpochOver)
        self._led_by: tuple[Peer, float] | None = None
        """The last other leader, and when it was last heard, in the loop's time."""
        self._made: QuorumMember | None = None

    @property
    def _member(self) -> QuorumMember:
        assert self._made is not None, "it was started"
        return self._made

    # life

    async def start(self, tail: Tail, changed: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._made = QuorumMember(
            me=self._me,
            random=self._random,
            settings=self._settings,
            tick_ms=self._tick_ms,
            transport=self._transport,
            tail=tail,
            reading=self._reading,
            after_step=changed,
            on_message=self._on_message,
            on_failure=failed,
        )
        await self._member.start(self._disk, self._directory, self._born)

    def halt(self, error: Callable[[], Exception]) -> None:
        if self._made is not None:
            self._made.halt()
        self._reading.drop(error)

    async def stop(self) -> None:
        await self._member.stop()

    def on_applied(self) -> None:
        self._member.on_applied()

    # epochs

    @property
    def term(self) -> int:
        return self._member.core.term

    @property
    def holds(self) -> bool:
        return self._member.core.leads

    @property
    def decided_to(self) -> int | None:
        core = self._member.core
        return core.log.commit_index if core.leads and core.has_committed_own else None

    @property
    def leader(self) -> BrokerId | None:
        leader = self._member.core.leader
        return None if leader is None else leader.node

    def leader_before(self) -> tuple[BrokerId, DirectoryId, float] | None:
        if self._led_by is None:
            return None
        peer, heard_at = self._led_by
        return peer.node, peer.directory, asyncio.get_running_loop().time() - heard_at

    @property
    def is_alone(self) -> bool:
        return self._member.is_alone

    def append(self, epoch: int, after: int, entries: Sequence[bytes]) -> str | None:
        core = self._member.core
        assert not core.leads or core.term != epoch or core.log.last_index == after, "nobody else appends in its term"
        refusal = self._member.advance(Propose(tuple(entries))).refusal
        return None if refusal is None else refusal.value

    async def confirmed(self) -> int:
        return await self._reading.confirmed()

    def _on_message(self, message: Message) -> None:
        if message.source == self._member.core.leader:
            self._led_by = (message.source, asyncio.get_running_loop().time())
        self._watch.on_message(self._member.core, message)

    # the quorum

    @property
    def quorum(self) -> RaftQuorum:
        return RaftQuorum(self._member, self._watch, self.patience_s)


class RaftQuorum:
    """The voters and learners of a `RaftCommitLog`, as a `Quorum`."""

    def __init__(self, member: QuorumMember, watch: Watch, patience_s: float) -> None:
        self._member = member
        self._watch = watch
        self.patience_s: Final = patience_s

    @property
    def leader(self) -> Peer | None:
        return self._member.core.leader

    @property
    def membership(self) -> Membership:
        return self._member.core.membership

    @property
    def is_blank(self) -> bool:
        return not self._member.core.log.last_index and not self.membership.voters

    def status(self) -> QuorumStatus:
        return self._watch.describe(self._member.core)

    def change(self, change: Change) -> MembershipRefusal | None:
        return self._member.advance(ProposeChange(change)).refusal

    def transfer(self, target: Peer) -> MembershipRefusal | None:
        return self._member.step(Transfer(target)).refusal

    def leader_died(self, peer: Peer, term: int) -> None:
        self._member.leader_died(peer, term)
