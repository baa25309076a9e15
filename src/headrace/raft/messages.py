"""What the members of a quorum tell each other, and what they keep.

Every message and every acknowledgement names its term, its sender and its addressee, the latter two with the directory
that remembers for them: an answer to an earlier leadership, and one from a disk that has forgotten, are told from
those that count. Sources: the Raft paper, figures 2 and 13; Ongaro's thesis; etcd's raft for the hints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.raft.membership import Membership, Peer


class EntryKind(IntEnum):
    DATA = 0
    MEMBERSHIP = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the commit log. `data` is the driver's (a batch of metadata events; empty: a leader's first of its
    term), or an encoded `Membership`."""

    term: int
    index: int
    data: bytes
    kind: EntryKind = EntryKind.DATA


@dataclass(frozen=True, slots=True)
class HardState:
    """What a voter must remember over a restart: its term, and for whom it voted in it."""

    term: int = 0
    vote: BrokerId = NO_LEADER


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """What a snapshot stands for: the state after entry `index`, and who was a member then."""

    index: int
    term: int
    membership: Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`term` is the sender's, except in a pre-vote's request and its grant: the term that the candidate would begin."""

    term: int
    source: Peer
    target: Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(Message):
    last_index: int
    last_term: int
    pre: bool
    """Only asks whether a vote would be given; nothing is promised by either side."""
    transfer: bool
    """The leader itself asked for this election: loyalty to it is no reason to refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteAnswer(Message):
    granted: bool
    pre: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest(Message):
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAnswer(Message):
    """Everything up to `match_index` is on the sender's disk as it is in the log of this term's leader."""

    match_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRefusal(Message):
    """The sender's log does not hold the entry at `previous_index` that was named. Where the leader's log and its own
    may agree: at most at `hint_index`, in a term of at most `hint_term`."""

    previous_index: int
    hint_index: int
    hint_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    commit_index: int
    """At most what the addressee is known to hold."""
    round: int
    """Counts the rounds of this leadership; the answer repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer(Message):
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk(Message):
    """Bytes of a snapshot from `offset` on. After the last one an `AppendAnswer` says that all of it is durable."""

    mark: SnapshotMark
    offset: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAnswer(Message):
    """To the chunk at `offset`; `next_offset` is the one to send then."""

    index: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Message):
    """Hold an election at once: the sender hands its leadership over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded(Message):
    """The addressee's term is over; the sender's is `term`."""
