"""Whether a leader may write, and what waits until it may."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.base.limits import PARKED_BATCHES_BYTES_MAX, PARKED_BATCHES_MAX
from headrace.broker.gate import Gate


def stopped(*, proposed: bool = False) -> Gate:
    gate = Gate(takes_over=False)
    gate.is_stopped, gate.is_proposed = True, proposed
    return gate


def test_what_waits_goes_on_in_order_once_it_is_open() -> None:
    gate, gone = stopped(), list[int]()
    for number in range(5):
        assert gate.park(partial(gone.append, number), 1)
    assert gone == []
    gate.resume()
    assert gone == list(range(5))
    assert gate.is_open


def test_what_is_proposed_opens_in_another_epoch_alone() -> None:
    gate, gone = stopped(proposed=True), list[int]()
    gate.park(partial(gone.append, 1), 1)
    with pytest.raises(RuntimeError, match="sealed"):
        gate.resume()
    gate.on_image(takes_over=False)
    assert gone == []
    gate.on_epoch(takes_over=False)
    assert gone == [1]
    assert gate.is_open


def test_who_takes_over_waits_for_the_end_of_the_move_over_epochs() -> None:
    gate, gone = Gate(takes_over=True), list[int]()
    gate.park(partial(gone.append, 1), 1)
    gate.on_epoch(takes_over=True)
    assert gone == []
    gate.on_image(takes_over=False)
    assert gone == [1]
    assert gate.is_open


def test_the_end_of_a_leadership_lets_all_go() -> None:
    gate, gone = Gate(takes_over=True), list[int]()
    gate.park(partial(gone.append, 1), 1)
    gate.release()
    gate.release()
    assert gone == [1]


@pytest.mark.parametrize("size", [1, PARKED_BATCHES_BYTES_MAX // 3])
def test_what_waits_is_bounded(size: int) -> None:
    gate = Gate(takes_over=True)
    fits = min(PARKED_BATCHES_MAX, PARKED_BATCHES_BYTES_MAX // size)
    for _ in range(fits):
        assert gate.park(lambda: None, size)
    assert not gate.park(lambda: None, size)
    gate.release()
    assert gate.park(lambda: None, size)
