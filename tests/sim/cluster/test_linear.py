"""The judge of histories: against a twin that tries every order, and on the textbook's examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.cluster.catalog import (
    Action,
    Answer,
    Catalog,
    Configure,
    Create,
    Delete,
    Describe,
    Done,
    Exists,
    Found,
    List,
    Missing,
    Names,
    by_topic,
    relevant,
    topic_of,
)
from headrace.sim.cluster.linear import Operation, Verdict, judge, judge_apart
from tests.sim.cluster.histories import history
from tests.tiers import examples, of_tier

NAME = st.sampled_from(("a", "b"))
NUMBER = st.integers(1, 2)
ACTION = st.one_of(
    st.builds(Create, NAME, NUMBER),
    st.builds(Delete, NAME),
    st.builds(Configure, NAME, NUMBER),
    st.builds(Describe, NAME),
    st.just(List()),
)
ANSWER: st.SearchStrategy[Answer] = st.one_of(
    st.sampled_from((Done(), Exists(), Missing())),
    st.builds(Found, NUMBER, st.none() | NUMBER),
    st.builds(Names, st.frozensets(NAME)),
)


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    """Up to six, with answers that are right now and then."""
    found, model = [], Catalog()
    state = model.first()
    for number in range(draw(st.integers(0, 6))):
        action = draw(ACTION)
        after, right = model.do(state, action)
        answer = draw(st.just(right) | st.just(right) | ANSWER)
        state = after if draw(st.booleans()) else state
        called = draw(st.integers(0, 8))
        returned = draw(st.none() | st.integers(called, 9))
        found.append(Operation(f"client-{number}", action, called, answer, returned))
    return found


def orders(history: Sequence[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Every order of all that was answered and any of the rest."""
    open_ones = [each for each in history if each.returned is None]
    answered = [each for each in history if each.returned is not None]
    for bits in range(1 << len(open_ones)):
        chosen = [each for at, each in enumerate(open_ones) if bits >> at & 1]
        yield from permutations(answered + chosen)


def explains(order: Sequence[Operation]) -> bool:
    """No operation comes behind one that was asked for after it had returned, and the model says what was heard."""
    for at, early in enumerate(order):
        if any(late.returned is not None and late.returned < early.called for late in order[at + 1 :]):
            return False
    model = Catalog()
    state = model.first()
    for each in order:
        after = model.step(state, each.action, None if each.returned is None else each.answer)
        if after is None:
            return False
        state = after
    return True


@settings(max_examples=examples(400), deadline=None)
@given(operations())
def test_it_agrees_with_all_orders_tried(history: list[Operation]) -> None:
    found = judge(history, Catalog())
    expected = any(map(explains, orders(history)))
    assert found.verdict is (Verdict.LINEARIZABLE if expected else Verdict.BROKEN)
    if expected:
        assert explains(found.order)
        assert {id(each) for each in found.order} >= {id(each) for each in history if each.returned is not None}
    else:
        assert found.stuck_before


@pytest.mark.parametrize("first", range(0, of_tier(short=100, long=500), 100))
def test_what_is_left_out_changes_no_verdict_and_what_is_taken_apart_accuses_nobody_wrongly(first: int) -> None:
    for seed in range(first, first + 100):
        written = history(seed)
        whole = judge(written, Catalog()).verdict
        assert judge(relevant(written), Catalog()).verdict is whole, seed
        parts = judge_apart(by_topic(written), Catalog(), topic_of)
        if whole is Verdict.LINEARIZABLE:
            assert all(part.verdict is Verdict.LINEARIZABLE for part in parts.values()), seed


def test_lists_that_saw_two_creates_in_either_order_are_told_only_by_the_whole() -> None:
    both = [op(Create("a", 1), 0, 9, Done()), op(Create("b", 2), 0, 9, Done())]
    seen = [op(List(), 0, 8, Names(frozenset("a"))), op(List(), 0, 8, Names(frozenset("b")))]
    assert judge([*both, *seen], Catalog()).verdict is Verdict.BROKEN
    parts = judge_apart(by_topic([*both, *seen]), Catalog(), topic_of).values()
    assert {part.verdict for part in parts} == {Verdict.LINEARIZABLE}
    stale = op(List(), 10, 11, Names(frozenset("a")))
    assert judge_apart(by_topic([*both, stale]), Catalog(), topic_of)["b"].verdict is Verdict.BROKEN


@pytest.mark.parametrize("first", range(0, of_tier(short=100, long=500), 100))
def test_parts_apart_say_what_the_whole_says(first: int) -> None:
    for seed in range(first, first + 100):
        written = [each for each in history(seed) if not isinstance(each.action, List)]
        parts = judge_apart(written, Catalog(), topic_of)
        whole = judge(written, Catalog()).verdict
        assert (whole is Verdict.LINEARIZABLE) == all(
            part.verdict is Verdict.LINEARIZABLE for part in parts.values()
        ), seed


def op(action: Action, called: float, returned: float | None, answer: Answer | None = None) -> Operation:
    return Operation("client", action, called, answer, returned)


def test_an_answered_create_is_seen_by_whoever_asks_later() -> None:
    created = op(Create("a", 1), 0, 1, Done())
    assert judge([created, op(Describe("a"), 2, 3, Found(1, None))], Catalog()).verdict is Verdict.LINEARIZABLE
    stale = op(Describe("a"), 2, 3, Missing())
    found = judge([created, stale], Catalog())
    assert found.verdict is Verdict.BROKEN
    assert found.order == (created,)
    assert found.stuck_before == (stale,)


def test_what_was_never_answered_may_happen_late_or_never_but_not_early() -> None:
    lost = op(Create("a", 1), 2, None)
    late = [lost, op(Describe("a"), 3, 4, Missing()), op(Describe("a"), 5, 6, Found(1, None))]
    assert judge(late, Catalog()).verdict is Verdict.LINEARIZABLE
    never = [lost, op(Describe("a"), 3, 4, Missing())]
    assert judge(never, Catalog()).verdict is Verdict.LINEARIZABLE
    early = [lost, op(Describe("a"), 0, 1, Found(1, None))]
    assert judge(early, Catalog()).verdict is Verdict.BROKEN
    gone_again = [lost, op(Describe("a"), 3, 4, Found(1, None)), op(Describe("a"), 5, 6, Missing())]
    assert judge(gone_again, Catalog()).verdict is Verdict.BROKEN


def test_two_creates_of_one_name_are_not_both_done() -> None:
    both = [op(Create("a", 1), 0, 5, Done()), op(Create("a", 2), 0, 5, Done())]
    assert judge(both, Catalog()).verdict is Verdict.BROKEN
    assert judge([*both, op(Delete("a"), 0, 5, Done())], Catalog()).verdict is Verdict.LINEARIZABLE


def test_it_gives_up_where_it_is_told_to() -> None:
    many = [op(Create("a", number), 0, 10, Exists()) for number in range(12)]
    assert judge(many, Catalog(), steps_max=5).verdict is Verdict.UNDECIDED


def test_a_long_history_of_a_few_clients_is_quick() -> None:
    """Steps, not seconds: some for each operation, whatever the length."""
    chain = []
    for number in range(2_000):
        chain.append(op(Create("a", number), 10 * number, 10 * number + 5, Done()))
        chain.append(op(Describe("a"), 10 * number + 1, 10 * number + 9, Found(number, None)))
        chain.append(op(Delete("a"), 10 * number + 6, 10 * number + 9.5, Done()))
    assert judge(chain, Catalog(), steps_max=20_000).verdict is Verdict.LINEARIZABLE
