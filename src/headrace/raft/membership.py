"""The members of the quorum: voters and learners by id *and* directory, changed one server at a time.

Promises:
- A member is its directory, so a voter with a wiped disk is another member.
- A change moves at most one voter, so any quorum before it and any quorum after it share a voter.
- The newest membership in the log counts, committed or not. A truncation brings back the one before.

Sources: Ongaro's thesis, chapter 4; KIP-853 (directory ids of voters).
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, assert_never

from headrace.base.ids import BrokerId, DirectoryId
from headrace.base.values import Value


class Peer(NamedTuple):
    """One member: a broker's id, and the data directory that remembers its votes."""

    node: BrokerId
    directory: DirectoryId


class MembershipRefusal(Enum):
    """Why a member refused a request that it got as leader, or because it is none. The text is for people."""

    NOT_LEADER = "this node does not lead the quorum"
    TRANSFERRING = "the leadership is being handed over: ask the next leader"
    TOO_MUCH_UNCOMMITTED = "too much is waiting to be committed: try again"
    CHANGE_PENDING = "an earlier change of the membership is not committed yet: try again"
    TERM_NOT_COMMITTED = "nothing of this leader's term is committed yet: try again"
    NOT_CAUGHT_UP = "this member has not caught up with the log yet: try again"
    NOT_A_MEMBER = "there is no such member, or not in that role"
    ALREADY_SO = "the membership is like that already"
    NOT_HEARD_YET = "some of the voters that would be left were not heard from since the election: try again"
    NO_LIVE_QUORUM = "the voters that would be left have no majority that lives and has caught up: mend those first"
    LAST_VOTER = "without its last voter the cluster could never decide anything again"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AddLearner(Value):
    """Let a peer have the log, without a vote. A member of that node with another directory is removed."""

    peer: Peer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Promote(Value):
    """A learner becomes a voter."""

    peer: Peer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Demote(Value):
    """A voter becomes a learner."""

    peer: Peer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Remove(Value):
    """Take a member out, whether it votes or not."""

    peer: Peer


Change: TypeAlias = AddLearner | Promote | Demote | Remove


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Membership(Value):
    """Invariant: a node is in it at most once. Without voters, this node does not know the quorum yet and takes no
    part."""

    voters: frozenset[Peer] = frozenset()
    learners: frozenset[Peer] = frozenset()

    @property
    def members(self) -> frozenset[Peer]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        """Number of voters that decide."""
        return len(self.voters) // 2 + 1

    def is_quorum(self, peers: Set[Peer]) -> bool:
        return len(self.voters & peers) >= self.quorum

    def reached(self, value: Callable[[Peer], int]) -> int:
        """The highest value that a quorum of the voters has reached."""
        return sorted(map(value, self.voters), reverse=True)[self.quorum - 1]

    def changed(self, change: Change) -> Membership | MembershipRefusal:
        peer = change.peer
        match change:
            case AddLearner():
                others = [member for member in self.members if member.node == peer.node]
                if peer in others:
                    return MembershipRefusal.ALREADY_SO
                return Membership(self.voters.difference(others), self.learners.difference(others) | {peer})._usable()
            case Promote():
                if peer not in self.learners:
                    return MembershipRefusal.ALREADY_SO if peer in self.voters else MembershipRefusal.NOT_A_MEMBER
                return Membership(self.voters | {peer}, self.learners - {peer})
            case Demote():
                if peer not in self.voters:
                    return MembershipRefusal.ALREADY_SO if peer in self.learners else MembershipRefusal.NOT_A_MEMBER
                return Membership(self.voters - {peer}, self.learners | {peer})._usable()
            case Remove():
                if peer not in self.members:
                    return MembershipRefusal.NOT_A_MEMBER
                return Membership(self.voters - {peer}, self.learners - {peer})._usable()
            case _:
                assert_never(change)

    def _usable(self) -> Membership | MembershipRefusal:
        return self if self.voters else MembershipRefusal.LAST_VOTER

    def encoded(self) -> bytes:
        """As the data of a log entry: one JSON object, with equal bytes for equal memberships."""
        return json.dumps({"voters": _names(self.voters), "learners": _names(self.learners)}).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Membership:
        """The membership that `encoded` wrote. Raises ValueError and KeyError on anything else."""
        found = json.loads(data)
        return cls(_peers(found["voters"]), _peers(found["learners"]))


def _names(peers: Iterable[Peer]) -> list[tuple[int, str]]:
    return sorted((peer.node, str(peer.directory)) for peer in peers)


def _peers(names: Iterable[tuple[int, str]]) -> frozenset[Peer]:
    return frozenset(Peer(BrokerId(node), DirectoryId(uuid.UUID(directory))) for node, directory in names)


class MembershipHistory:
    """The memberships in the log, each at the index of its entry. The first is that of the snapshot.

    Invariants: never empty; indexes rise.
    """

    def __init__(self, index: int, membership: Membership) -> None:
        self._indexes = [index]
        self._memberships = [membership]

    @property
    def current(self) -> Membership:
        """The newest one, committed or not, which is the one that counts."""
        return self._memberships[-1]

    @property
    def current_index(self) -> int:
        return self._indexes[-1]

    @property
    def before(self) -> Membership:
        """The one before the newest, if the log reaches back that far."""
        return self._memberships[-2] if len(self._memberships) > 1 else self._memberships[-1]

    def at(self, index: int) -> Membership:
        """The membership that was in force after entry `index`."""
        return self._memberships[bisect_right(self._indexes, index) - 1]

    def append(self, index: int, membership: Membership) -> None:
        assert index > self._indexes[-1], "memberships come in the order of the log"
        self._indexes.append(index)
        self._memberships.append(membership)

    def truncate(self, index: int) -> None:
        """Forget the memberships of entries from `index` on."""
        while self._indexes[-1] >= index:
            assert len(self._indexes) > 1, "what the snapshot says is committed"
            self._indexes.pop()
            self._memberships.pop()

    def forget_before(self, index: int) -> None:
        """Forget memberships that nobody can ask for once entries before `index` are not needed."""
        first = bisect_right(self._indexes, index) - 1
        del self._indexes[:first]
        del self._memberships[:first]
