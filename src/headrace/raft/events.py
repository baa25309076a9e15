"""What goes into the consensus core and what comes out: the interface between it and its driver.

The driver's duty for each `Ready`, in the order in which they came: send `messages` (before, beside or after the
write), persist `hard_state`, `chunk` and `entries` (synced, as one), step `Persisted(write)`, apply `committed`, carry
out `reading`. What may only be said once something is on the disk comes out of that `Persisted`, not before.
Source: the shape of etcd's raft; Ongaro's thesis for the terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.raft.membership import Change, MembershipRefusal, Peer
from headrace.raft.messages import Entry, HardState, Message, SnapshotMark


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: one unit of `Settings`."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to win an election now, without waiting for a leader to be missed: at the start of a sole voter."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Append these, one entry each, in order. Refused by who does not lead."""

    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ProposeChange:
    """Append a new membership. It counts from then on, and is sure once it is committed."""

    change: Change


@dataclass(frozen=True, slots=True)
class Persisted:
    """Every write up to this number is synced on this node."""

    write: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Hand the leadership to this voter, once it has the whole log. Given up after an election's timeout."""

    target: Peer


@dataclass(frozen=True, slots=True)
class LeaderDied:
    """The process of that term's leader is plainly dead (connections reset, new ones refused)."""

    leader: Peer
    term: int


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Ask up to where the log must be applied for a read that sees all that was committed before now."""

    context: int
    """The driver's name for it."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of the state after entry `index`, which was applied, is durable here and takes the place of the one
    before it."""

    index: int


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """What a `ReadSnapshot` found."""

    target: Peer
    index: int
    offset: int
    data: bytes | None
    """None: that snapshot is no more; the newest one is sent instead."""
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


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Read the next bytes of the snapshot at `index` for this member, and step `SnapshotRead`."""

    target: Peer
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A read may be answered once everything up to `index` is applied. None: the leadership ended; ask again."""

    context: int
    index: int | None


@dataclass(frozen=True, slots=True)
class ChunkToWrite:
    """Bytes of a snapshot that is being received: offset 0 begins it anew. With the last of them it takes the place of
    the whole log and state, in one step: synced under its final name, then the log's files cut."""

    mark: SnapshotMark
    offset: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the driver is to do."""

    write: int | None = None
    """The number of this write, to be told by `Persisted`; None: nothing to persist. Numbers rise by one."""
    hard_state: HardState | None = None
    """To be persisted, with or before `entries`; None: unchanged."""
    chunk: ChunkToWrite | None = None
    """To be persisted before `entries`."""
    entries: tuple[Entry, ...] = ()
    """To be persisted, in order. The first takes the place of what the log holds at and after its index."""
    messages: tuple[Message, ...] = ()
    """To be sent; each may be lost, and may come twice and late."""
    committed: tuple[Entry, ...] = ()
    """To be applied, in order, each exactly once since the snapshot (also the one just received)."""
    reading: tuple[ReadSnapshot, ...] = ()
    reads: tuple[ReadAnswer, ...] = ()
    refusal: MembershipRefusal | None = None
    """Why what was asked for was not done."""


NOTHING: Final = Ready()
