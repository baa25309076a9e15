"""For how long, and of whom, a batch is taken for one that has overtaken others."""

from __future__ import annotations

from headrace.base.limits import OVERTAKING_MS_MAX
from headrace.broker.partitions.intake.overtaking import Overtaking

SPAN_S = OVERTAKING_MS_MAX / 1000


def test_it_is_reckoned_with_for_a_time_and_not_of_who_has_sent_again() -> None:
    overtaking = Overtaking()
    assert not overtaking.may_be(1, 0.0), "nothing is taken yet"
    overtaking.begin(100.0)
    overtaking.on_duplicate(2, 101.0)
    assert overtaking.may_be(1, 100.0 + SPAN_S - 0.1)
    assert not overtaking.may_be(2, 101.0)
    assert not overtaking.may_be(1, 100.0 + SPAN_S)
    overtaking.begin(200.0)
    assert overtaking.may_be(2, 201.0), "of the time before"
    overtaking.end()
    assert not overtaking.may_be(1, 201.0)


def test_who_sends_again_later_is_not_kept() -> None:
    overtaking = Overtaking()
    overtaking.begin(0.0)
    overtaking.on_duplicate(1, 0.0)
    for producer in range(100):
        overtaking.on_duplicate(producer, SPAN_S)
    assert not overtaking._heard
