"""The judge of the counter: against the general judge of linearizability, and on the shortest broken histories."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sim.cluster.linear import Operation, Verdict, judge
from headrace.sim.cluster.tickets import Ticket, faults_in


class Counter:
    """`linear.Model` of it. An action is whether a number is taken."""

    def first(self) -> int:
        return 0

    def step(self, state: int, action: bool, answer: int | None) -> int | None:
        return state + action if answer in (None, state) else None


def is_linearizable(history: Sequence[Ticket]) -> bool:
    operations = [
        Operation("client", each.taken, each.called, None if each.returned is None else each.number, each.returned)
        for each in history
    ]
    return judge(operations, Counter()).verdict is Verdict.LINEARIZABLE


@st.composite
def histories(draw: st.DrawFn, *, answered: bool) -> list[Ticket]:
    """Up to six requests of several clients, with numbers that are nearly right; all answered, or not all."""
    count = draw(st.integers(0, 6))
    chance = draw(st.randoms(use_true_random=False))
    moments = [each for each in range(count) for _ in range(2)]
    chance.shuffle(moments)
    places = {each: [at for at, other in enumerate(moments) if other == each] for each in range(count)}
    found, state = [], 0
    for each in sorted(places, key=lambda each: places[each][chance.randrange(2)]):
        taken, (called, returned) = chance.random() < 0.7, places[each]
        if answered or chance.random() < 0.7:
            number = max(0, state + chance.choice((0, 0, 0, 0, -1, 1)))
            found.append(Ticket(taken, called, number, returned))
        else:
            found.append(Ticket(taken, called))
        state += taken
    random.Random(0).shuffle(found)
    return found


@given(histories(answered=True))
def test_where_all_was_answered_it_agrees_with_the_general_judge(history: list[Ticket]) -> None:
    assert (not list(faults_in(history))) == is_linearizable(history)


@given(histories(answered=False))
def test_what_an_order_explains_is_never_accused(history: list[Ticket]) -> None:
    if is_linearizable(history):
        assert not list(faults_in(history))


@pytest.mark.parametrize(
    "history",
    [
        [Ticket(True, 1, 0, 3), Ticket(True, 2, 0, 4)],  # One number for two.
        [Ticket(True, 1, 0, 2), Ticket(False, 3, 0, 4)],  # A later reader does not see it.
        [Ticket(True, 1, 1, 3), Ticket(True, 4, 0, 5), Ticket(True, 2)],  # The order of time turned round.
        [Ticket(True, 1, 2, 2), Ticket(True, 0)],  # Of two numbers before it only one can have been taken.
    ],
)
def test_a_broken_history_is_accused(history: list[Ticket]) -> None:
    assert list(faults_in(history))
