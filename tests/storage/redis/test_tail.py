"""The newest batches in memory: none stays longer than the budget has room for it, whatever became of its log."""

from __future__ import annotations

import sys

import pytest

from headrace.base.ids import Offset
from headrace.storage.redis.tail import Tail, TailBudget


def filled(tail: Tail, first: int, last: int, *, flushed: bool = True) -> list[bytes]:
    """Add a batch that ends at each of these offsets."""
    made = []
    for end in range(first, last + 1):
        made.append(bytes(bytearray(b"x" * 10)))  # an object of its own
        tail.add(end, made[-1])
        if flushed:
            tail.flushed(Offset(end), 10)
    return made


def freed(made: list[bytes]) -> int:
    """Return how many of them nobody has but the list."""
    kept = bytes(bytearray(b"of one list"))
    alone = [kept]
    del kept
    least = max(sys.getrefcount(each) for each in alone)
    return sum(sys.getrefcount(each) == least for each in made)


@pytest.mark.parametrize("closed", [False, True])
def test_what_the_budget_evicts_is_freed_batch_by_batch(closed: bool) -> None:
    budget = TailBudget(100)
    old, new = Tail(budget, Offset(0)), Tail(budget, Offset(0))
    made = filled(old, 1, 10)
    assert freed(made) == 0
    if closed:
        old.drop(0, is_read=True)
    filled(new, 1, 5)
    assert freed(made) == 5
    filled(new, 6, 10)
    assert freed(made) == 10
    assert budget.size == 100


def test_a_failed_log_keeps_what_is_flushed_readable_until_it_is_evicted() -> None:
    budget = TailBudget(100)
    tail, other = Tail(budget, Offset(0)), Tail(budget, Offset(0))
    filled(tail, 1, 3)
    filled(tail, 4, 6, flushed=False)
    tail.batches.cut_from(3)
    tail.drop(30, is_read=True)
    assert bytes(tail.batches.read(0, 1000, 3, at_least_one=True)) == b"x" * 30
    filled(other, 1, 10)
    assert (tail.batches.base_offset, budget.size, budget.unflushed) == (3, 100, 0)


def test_a_closed_log_keeps_nothing_and_the_budget_goes_on_counting() -> None:
    budget = TailBudget(100)
    closed, other = Tail(budget, Offset(0)), Tail(budget, Offset(0))
    made = filled(closed, 1, 6)
    closed.drop(0)
    assert freed(made) == 6
    assert (closed.batches.base_offset, closed.batches.next_offset) == (6, 6)
    filled(other, 1, 10)
    assert (budget.size, other.batches.base_offset) == (100, 0)
