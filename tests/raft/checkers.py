"""Invariants of a quorum after every step. Sources: the Raft paper, figure 3."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.raft.events import Ready
from headrace.raft.membership import Peer
from headrace.raft.messages import Entry, Message, VoteAnswer
from tests.raft.member import Applied, Member


class Broken(AssertionError):  # noqa: N818 - a state of the quorum
    """A property of the quorum does not hold; the text says which."""


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


class Checkers:
    """To be told of every step. Looks at what changed only, so that each step costs the same."""

    def __init__(self, *, paper_only: bool = False) -> None:
        """`paper_only`: without those that look for the causes: that a vote is given once, that a commit is durable."""
        self._paper_only = paper_only
        self._votes: dict[tuple[Peer, int], Peer] = {}
        self._leaders: dict[int, Peer] = {}
        self._written: dict[tuple[int, int], tuple[Entry, int]] = {}
        """By index and term: the entry, and the term of the one before it."""
        self.committed: list[Entry] = []
        self._states = [Applied()]
        self._known: dict[Peer, int] = {}
        self.reads: dict[int, int] = {}
        """The commit index when a read was requested."""

    @property
    def commit_index(self) -> int:
        """The highest that any member ever knew."""
        return len(self.committed)

    def after(self, member: Member, ready: Ready | None, members: Iterable[Member]) -> None:
        """`ready`: what the step gave; None where there was none."""
        core = member.core
        core.validate()
        if core.leads and self._leaders.get(core.term) != member.me:
            self._on_elected(member)
        if ready is not None:
            self._log_matching(member, ready.entries)
            if not self._paper_only:
                self._one_vote(ready.messages)
        self._commits(member, members)
        self._state_machine_safety(member)
        self._reads(member)

    def _on_elected(self, member: Member) -> None:
        term = member.core.term
        other = self._leaders.setdefault(term, member.me)
        _check(other == member.me, f"election safety: {other} and {member.me} both lead in term {term}")
        self._holds_committed(member, self.committed)

    def _one_vote(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if isinstance(message, VoteAnswer) and message.granted and not message.pre:
                other = self._votes.setdefault((message.source, message.term), message.target)
                both = f"{other} and {message.target}"
                _check(other == message.target, f"one vote: {message.source} votes in term {message.term} for {both}")

    def _holds_committed(self, member: Member, entries: Iterable[Entry]) -> None:
        log = member.core.log
        for entry in entries:
            _check(
                entry.index < log.base_index or log.term_at(entry.index) == entry.term,
                f"leader completeness: {member.me} leads in term {member.core.term} without entry {entry}",
            )

    def _log_matching(self, member: Member, entries: Iterable[Entry]) -> None:
        for entry in entries:
            before = member.core.log.term_at(entry.index - 1)
            if before is None:
                continue
            found = self._written.setdefault((entry.index, entry.term), (entry, before))
            _check(found == (entry, before), f"log matching: {found} and {(entry, before)} at {member.me}")

    def _commits(self, member: Member, members: Iterable[Member]) -> None:
        log = member.core.log
        start = max(self._known.get(member.me, 0), log.base_index)
        for entry in log.read(start + 1, 1 << 40)[: log.commit_index - start] if log.commit_index > start else ():
            if entry.index <= len(self.committed):
                known = self.committed[entry.index - 1]
                _check(known == entry, f"state machine safety: {member.me} committed {entry}, others {known}")
                continue
            self.committed.append(entry)
            self._states.append(self._states[-1].after(entry))
            later = [m for m in members if m.alive and m.core.leads and m.core.term > member.core.term]
            for leader in later:
                self._holds_committed(leader, [entry])
        if not self._paper_only and member.core.leads and log.commit_index > self._known.get(member.me, log.base_index):
            self._durable_on_a_quorum(member, members)
        self._known[member.me] = log.commit_index

    def _durable_on_a_quorum(self, leader: Member, members: Iterable[Member]) -> None:
        """Those whose disk was lost since had it, for all that can be known."""
        log, voters = leader.core.log, leader.core.membership.voters
        index = log.commit_index
        without = {m.me for m in members if not m.disk.holds(index, log.term_at(index))}
        _check(
            len(voters - without) > len(voters) // 2,
            f"commitment: {leader.me} committed entry {index} in term {leader.core.term}, which {without} lack",
        )

    def _state_machine_safety(self, member: Member) -> None:
        state = member.state
        _check(
            state.index < len(self._states) and state == self._states[state.index],
            f"state machine safety: {member.me} is at {state}, not as others were",
        )

    def forget(self, member: Member) -> None:
        """The member was restarted: look at its commits again."""
        self._known.pop(member.me, None)

    def _reads(self, member: Member) -> None:
        for answer in member.answered:
            needed = self.reads.pop(answer.context)
            _check(
                answer.index is None or answer.index >= needed,
                f"linearizable reads: {member.me} answers {answer}, {needed} was committed before",
            )
        member.answered.clear()
