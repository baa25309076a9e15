"""An election from the candidate's side: first the pre-vote, which asks whether it could win, then the election.

Promises:
- A term begins only where a quorum would vote for it, or where the leader itself asked for an election.
- The candidate's own vote counts once it is durable.
- Only voters' votes count, by their directory.

Sources: the Raft paper, 5.2; Ongaro's thesis, 9.6.
"""

from __future__ import annotations

from enum import Enum

from headrace.raft.membership import Peer
from headrace.raft.messages import VoteAnswer, VoteRequest
from headrace.raft.state import State


class Outcome(Enum):
    OPEN = "open"
    WON = "won"
    LOST = "lost"


class Candidacy:
    """Invariant: belongs to one term (the next one, for a pre-vote) and lasts one timeout."""

    def __init__(self, state: State, *, pre: bool, transfer: bool = False) -> None:
        """`transfer`: the leader asked for this election, so there is no pre-vote."""
        assert state.may_stand, "only voters stand for election"
        self.pre = pre
        self._transfer = transfer
        self._state = state
        self._votes: dict[Peer, bool] = {}
        self._ticks_left = state.election_timeout()

    def begin(self) -> Outcome:
        """Ask every voter, including itself. Its own vote comes back like any other, once it is on the disk. Its own
        pre-vote rests on no write, so a pre-vote of one is won at once."""
        state = self._state
        if not self.pre:
            state.raise_term(state.term + 1)
            state.give_vote(state.me)
        term = state.term + 1 if self.pre else state.term
        own = VoteAnswer(term=term, source=state.me, target=state.me, granted=True, pre=self.pre)
        outcome = Outcome.OPEN
        if self.pre:
            outcome = self.on_vote(own)
        else:
            state.outbox.send_after_state(own)
        for peer in sorted(state.membership.voters - {state.me}):
            request = VoteRequest(
                term=term,
                source=state.me,
                target=peer,
                last_index=state.log.last_index,
                last_term=state.log.last_term,
                pre=self.pre,
                transfer=self._transfer,
            )
            state.outbox.send_after_state(request)
        return outcome

    def on_tick(self) -> bool:
        """Whether the candidacy has timed out."""
        self._ticks_left -= 1
        return self._ticks_left <= 0

    def on_vote(self, answer: VoteAnswer) -> Outcome:
        """An answer of another round does not count: a pre-vote's in a vote, or the reverse, or one for another
        term."""
        state = self._state
        asked_term = state.term + 1 if self.pre else state.term
        if answer.pre != self.pre or (answer.granted and answer.term != asked_term):
            return Outcome.OPEN
        self._votes.setdefault(answer.source, answer.granted)
        if state.membership.is_quorum({peer for peer, granted in self._votes.items() if granted}):
            return Outcome.WON
        refused = state.membership.voters & {peer for peer, granted in self._votes.items() if not granted}
        hopeless = len(state.membership.voters) - len(refused) < state.membership.quorum
        return Outcome.LOST if hopeless else Outcome.OPEN
