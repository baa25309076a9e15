"""DescribeTransactions and ListTransactions, and the names of states."""

from __future__ import annotations

import pytest

from headrace.coordinators.transactions.model import TransactionState
from headrace.coordinators.transactions.views import Filter, described
from headrace.wire.errors import ErrorCode
from tests.coordinators.transactions.world import World, at


def world() -> World:
    """One id that began nothing, one with an open transaction, one that committed."""
    made = World()
    made.begun("empty")
    made.add(made.begun("open"), "a0", name="open")
    who = made.begun("done")
    made.add(who, "a0", name="done")
    made.end(who, name="done")
    return made


def test_the_standing_is_told() -> None:
    made = world()
    standing = described("open", made.transactions["open"])
    assert not isinstance(standing, ErrorCode)
    assert (standing.state, standing.partitions) == (TransactionState.ONGOING, at("a0"))
    assert described("other", None) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert described("", None) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), {"empty", "open", "done"}),
        (Filter(states=frozenset({"Ongoing"})), {"open"}),
        (Filter(states=frozenset({"Ongoing", "CompleteCommit", "Lost"})), {"open", "done"}),
        (Filter(states=frozenset({"Lost"})), set()),
        (Filter(producer_ids=frozenset({1001, 5})), {"open"}),
        (Filter(longer_than_ms=0), {"empty", "open", "done"}),
        (Filter(longer_than_ms=10), {"empty"}),
        (Filter(matches=lambda name: name.startswith("o")), {"open"}),
        (Filter(states=frozenset({"Empty"}), producer_ids=frozenset({1001})), set()),
    ],
)
def test_all_filters_hold(wanted: Filter, found: set[str]) -> None:
    made = world()
    made.advance(10)
    assert {each.id for each in wanted.listed(made.transactions.values(), made.moment().wall_ms)} == found


def test_names_that_no_state_has_are_told() -> None:
    assert Filter(states=frozenset({"Lost", "Ongoing"})).unknown_states == ["Lost"]


def test_states_have_kafkas_names() -> None:
    assert [state.title for state in TransactionState] == [
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
        *("Dead", "PrepareEpochFence"),
    ]
