"""Reads that a leader confirms by a quorum: linearizable without an entry of the log and without a clock.

Promises: a read is answered with an index that was committed when the read arrived. *After* that arrival a quorum
confirmed the leader, which has committed an entry of its own term. Source: Ongaro's thesis, 6.4.
"""

from __future__ import annotations

from collections import deque

from headrace.raft.events import ReadAnswer


class Reads:
    """Invariant: `_confirming` is in the order of rounds and of indexes."""

    def __init__(self) -> None:
        self._early: list[int] = []
        """Reads that arrived before an entry of the leader's own term was committed, when it does not know the commit
        index yet."""
        self._confirming: deque[tuple[int, int, int]] = deque()
        """The round that must be answered, the context and the index of each read."""

    @property
    def contexts(self) -> list[int]:
        return [context for _, context, _ in self._confirming] + self._early

    def wait_for_term(self, context: int) -> None:
        self._early.append(context)

    def confirm(self, context: int, *, round_: int, index: int) -> None:
        """Answer this read once a quorum has answered that round, which begins later."""
        self._confirming.append((round_, context, index))

    def take_early(self) -> list[int]:
        early, self._early = self._early, []
        return early

    def on_round(self, round_: int) -> list[ReadAnswer]:
        """A quorum has answered this round. Returns the reads that it confirms."""
        answers = []
        while self._confirming and self._confirming[0][0] <= round_:
            _, context, index = self._confirming.popleft()
            answers.append(ReadAnswer(context, index))
        return answers
