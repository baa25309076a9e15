"""Messages between the members of a quorum, and the state that they keep.

Every message and every acknowledgement names its term, its sender and its addressee, the latter two with their data
directory. So an answer to an earlier leadership, or from a disk that was wiped, is recognised and does not count.
Sources: the Raft paper, figures 2 and 13; Ongaro's thesis; etcd's raft for the hints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.base.values import Value
from headrace.raft.membership import Membership, Peer


class EntryKind(IntEnum):
    DATA = 0
    MEMBERSHIP = 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Entry(Value):
    """One entry of the commit log. `data` is an encoded `Membership`, or belongs to the driver (a batch of metadata
    events). A leader's first entry of its term is empty."""

    term: int
    index: int
    data: bytes
    kind: EntryKind = EntryKind.DATA


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HardState(Value):
    """State that a voter must remember over a restart: its term, and its vote in that term."""

    term: int = 0
    vote: BrokerId = NO_LEADER


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SnapshotMark(Value):
    """Identifies a snapshot: the state after entry `index`, and the membership at that entry."""

    index: int
    term: int
    membership: Membership


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Message(Value):
    """`term` is the sender's. In a pre-vote's request and its grant it is the term that the candidate would begin."""

    term: int
    source: Peer
    target: Peer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class VoteRequest(Message):
    """A candidate asks for a vote, and tells the end of its log."""

    last_index: int
    last_term: int
    pre: bool
    """A pre-vote: asks whether a vote would be given, and binds neither side."""
    transfer: bool
    """The leader itself asked for this election, so loyalty to it is no reason to refuse."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class VoteAnswer(Message):
    """A voter has granted its vote, or not."""

    granted: bool
    pre: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AppendRequest(Message):
    """The leader sends entries behind one that it takes the follower to have."""

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AppendAnswer(Message):
    """The sender's disk holds the log of this term's leader up to `match_index`."""

    match_index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AppendRefusal(Message):
    """The sender's log does not hold the entry that the request named at `previous_index`. The two logs can agree at
    `hint_index` at the latest, in a term of at most `hint_term`."""

    previous_index: int
    hint_index: int
    hint_term: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Heartbeat(Message):
    """The leader says that it leads, and how far entries are committed."""

    commit_index: int
    """At most the index up to which the addressee is known to hold the log."""
    round: int
    """Counts the rounds of this leadership; the answer repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HeartbeatAnswer(Message):
    """A member has heard the heartbeat of this round."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SnapshotChunk(Message):
    """Bytes of a snapshot from `offset` on. After the last chunk an `AppendAnswer` says that all of it is durable."""

    mark: SnapshotMark
    offset: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SnapshotAnswer(Message):
    """Answers the chunk at `offset`; `next_offset` is where the next chunk starts."""

    index: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TimeoutNow(Message):
    """Hold an election at once: the sender hands its leadership over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Superseded(Message):
    """The addressee's term is over; the sender's is `term`."""
