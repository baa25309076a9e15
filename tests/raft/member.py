"""A member of a quorum in memory: a core, a disk that loses what was not synced, and a state machine.

Writes reach the disk one by one and in order, when the test says so; a crash may leave any number of those under way.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections import deque
from dataclasses import dataclass, field

from headrace.base.ids import BrokerId, DirectoryId
from headrace.base.ports import Random
from headrace.raft.core import Raft
from headrace.raft.events import Event, Persisted, ReadAnswer, ReadSnapshot, Ready, SnapshotRead, SnapshotTaken
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import Entry, HardState, Message, SnapshotMark
from headrace.raft.state import Settings

NOBODY = Membership()


def peer(node: int, life: int = 1) -> Peer:
    """Broker `node` with its first directory, or a later one."""
    return Peer(BrokerId(node), DirectoryId(uuid.UUID(int=node * 1000 + life)))


@dataclass(frozen=True, slots=True)
class Applied:
    """The state machine: how far it is, and a digest of all that led there."""

    index: int = 0
    digest: int = 0

    def after(self, entry: Entry) -> Applied:
        assert entry.index == self.index + 1, "entries are applied in order"
        return Applied(entry.index, zlib.crc32(entry.data, zlib.crc32(b"%d" % entry.term, self.digest)))

    def snapshot(self) -> bytes:
        return json.dumps([self.index, self.digest]).encode()

    @classmethod
    def restored(cls, snapshot: bytes) -> Applied:
        return cls(*json.loads(snapshot))


@dataclass(slots=True)
class Disk:
    """The durable state, and the writes under way to it."""

    mark: SnapshotMark
    snapshot: bytes = Applied().snapshot()
    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)
    under_way: deque[Ready] = field(default_factory=deque)
    partial: bytes = b""

    def write_next(self) -> Ready:
        """The oldest write under way is durable."""
        ready = self.under_way.popleft()
        if ready.chunk is not None:
            self.partial = (self.partial if ready.chunk.offset else b"") + ready.chunk.data
            if ready.chunk.last:
                self.take_snapshot(ready.chunk.mark, self.partial, keeps_entries=False)
        self.hard_state = ready.hard_state or self.hard_state
        if ready.entries:
            kept = ready.entries[0].index - self.mark.index - 1
            assert 0 <= kept <= len(self.entries), "the log on the disk has no gap"
            self.entries[kept:] = ready.entries
        return ready

    def holds(self, index: int, term: int | None) -> bool:
        at = index - self.mark.index - 1
        return at < 0 or (at < len(self.entries) and self.entries[at].term == term)

    def take_snapshot(self, mark: SnapshotMark, data: bytes, *, keeps_entries: bool) -> None:
        self.entries = [entry for entry in self.entries if keeps_entries and entry.index > mark.index]
        self.mark, self.snapshot = mark, data


class Member:
    """Drives one core as the contract in `events` says. `sent` is for a network to take."""

    def __init__(self, me: Peer, membership: Membership, *, random: Random, settings: Settings) -> None:
        self.me = me
        self.disk = Disk(SnapshotMark(0, 0, membership))
        self.sent: list[Message] = []
        self.answered: list[ReadAnswer] = []
        self.applied: list[Entry] = []
        """Entries applied since a test looked last."""
        self.state = Applied()
        self.alive = False
        self._random = random
        self._settings = settings
        self._incoming = b""
        self.core: Raft
        self.restart()

    def restart(self) -> None:
        disk = self.disk
        assert not self.alive
        self.core = Raft.recovered(
            me=self.me,
            hard_state=disk.hard_state,
            snapshot=disk.mark,
            entries=disk.entries,
            random=self._random,
            settings=self._settings,
        )
        self.state = Applied.restored(disk.snapshot)
        self.sent, self.answered, self.applied, self.alive = [], [], [], True

    def crash(self, *, written: int = 0) -> None:
        """Of the writes under way that many still reach the disk; the rest is lost, and with it all that was to be
        said."""
        for _ in range(min(written, len(self.disk.under_way))):
            self.disk.write_next()
        self.disk.under_way.clear()
        self.sent = []
        self.alive = False

    def step(self, event: Event) -> Ready:
        ready = self.core.step(event)
        if ready.write is not None:
            self.disk.under_way.append(ready)
        self.sent += ready.messages
        self.answered += ready.reads
        if ready.chunk is not None:
            self._incoming = (self._incoming if ready.chunk.offset else b"") + ready.chunk.data
            if ready.chunk.last:
                self.state = Applied.restored(self._incoming)
        for entry in ready.committed:
            self.state = self.state.after(entry)
        self.applied += ready.committed
        for wanted in ready.reading:
            self._read_snapshot(wanted)
        return ready

    def _read_snapshot(self, wanted: ReadSnapshot, chunk_bytes: int = 8) -> None:
        data: bytes | None = None
        last = False
        if wanted.index == self.disk.mark.index:
            data = self.disk.snapshot[wanted.offset : wanted.offset + chunk_bytes]
            last = wanted.offset + chunk_bytes >= len(self.disk.snapshot)
        self.step(SnapshotRead(wanted.target, wanted.index, wanted.offset, data, last))

    def persist(self) -> bool:
        """One more write is durable, and the core hears of it. Whether there was one."""
        if not self.disk.under_way:
            return False
        write = self.disk.write_next().write
        assert write is not None
        self.step(Persisted(write))
        return True

    def take_snapshot(self) -> None:
        """Of what is applied. Only between writes: the disk's log is then the core's."""
        index = self.state.index
        if self.disk.under_way or index <= self.disk.mark.index:
            return
        term = self.core.log.term_at(index)
        assert term is not None
        mark = SnapshotMark(index, term, self.core.log.members.at(index))
        self.disk.take_snapshot(mark, self.state.snapshot(), keeps_entries=True)
        self.step(SnapshotTaken(index))
