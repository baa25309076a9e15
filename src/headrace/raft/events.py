"""Events that go into the consensus core and effects that come out: the interface between it and its driver.

For each `Ready`, in order, the driver must:
- send `messages`, before, beside or after the write;
- persist `hard_state`, `chunk` and `entries` (synced, as one write), then step `Persisted(write)`;
- apply `committed`;
- carry out `reading`.

A message that rests on a write comes out of the `Persisted` for that write, not before. Source: the shape of etcd's
raft; Ongaro's thesis for the terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.base.values import Value
from headrace.raft.membership import Change, MembershipRefusal, Peer
from headrace.raft.messages import Entry, HardState, Message, SnapshotMark


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tick(Value):
    """One unit of the times in `Settings` has passed."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Campaign(Value):
    """Stand for election now, without waiting for a timeout: used by a sole voter when it starts."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Propose(Value):
    """Append these, one entry each, in order. Refused by a member that does not lead."""

    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProposeChange(Value):
    """Append a new membership. It counts from then on, and is final once it is committed."""

    change: Change


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Persisted(Value):
    """Every write up to this number is synced on this node."""

    write: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Transfer(Value):
    """Hand the leadership to this voter, once it has the whole log. It is given up after an election's timeout."""

    target: Peer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeaderDied(Value):
    """The process of that term's leader is plainly dead (connections reset, new ones refused)."""

    leader: Peer
    term: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadIndex(Value):
    """Request the index up to which the log must be applied for a read that sees all earlier commits."""

    context: int
    """Identifies the read to the driver."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SnapshotTaken(Value):
    """A snapshot of the state after the applied entry `index` is durable here and replaces the previous one."""

    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SnapshotRead(Value):
    """The bytes that a `ReadSnapshot` asked for."""

    target: Peer
    index: int
    offset: int
    data: bytes | None
    """None: that snapshot no longer exists, and the newest one is sent instead."""
    last: bool = False


Event: TypeAlias = (
    Message
    | Tick
    | Campaign
    | Propose
    | ProposeChange
    | Persisted
    | Transfer
    | LeaderDied
    | ReadIndex
    | SnapshotTaken
    | SnapshotRead
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadSnapshot(Value):
    """Read the next bytes of the snapshot at `index` for this member, and step `SnapshotRead`."""

    target: Peer
    index: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadAnswer(Value):
    """A read may be answered once everything up to `index` is applied. None: the leadership ended, so the driver asks
    again."""

    context: int
    index: int | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ChunkToWrite(Value):
    """Bytes of a snapshot that is being received; offset 0 starts it over. With the last chunk the snapshot replaces
    the whole log and state in one step. It is synced under its final name first, then the log's files are cut."""

    mark: SnapshotMark
    offset: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ready(Value):
    """Work for the driver after one step."""

    write: int | None = None
    """The number of this write, which `Persisted` repeats; None: nothing to persist. Numbers rise by one."""
    hard_state: HardState | None = None
    """Hard state to persist, with or before `entries`; None: unchanged."""
    chunk: ChunkToWrite | None = None
    """Chunk to persist before `entries`."""
    entries: tuple[Entry, ...] = ()
    """Entries to persist, in order. The first replaces the log's entries at and after its index."""
    messages: tuple[Message, ...] = ()
    """Messages to send. Each may be lost, duplicated or delayed."""
    committed: tuple[Entry, ...] = ()
    """Entries to apply, in order, each exactly once since the snapshot (also since one just received)."""
    reading: tuple[ReadSnapshot, ...] = ()
    reads: tuple[ReadAnswer, ...] = ()
    refusal: MembershipRefusal | None = None
    """Why the request of this step was refused."""


NOTHING: Final = Ready()
