"""The law of a throttle: over any stretch of time no more is taken than it allows, and who waits as told is let on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.limits import THROTTLE_BURST_S
from headrace.replica.throttle import Throttle

steps = st.lists(st.tuples(st.sampled_from(["take", "pass", "wait", "rate"]), st.integers(0, 5_000)), max_size=60)


@given(st.integers(1, 10_000), steps)
def test_no_stretch_of_time_has_more_than_its_rate_a_burst_and_one_piece(
    rate: int, plan: list[tuple[str, int]]
) -> None:
    throttle, now = Throttle(rate), 100.0
    taken: list[tuple[float, int]] = []
    for what, number in plan:
        if what == "pass":
            now += number / 1000
        elif what == "wait":
            now += throttle.wait_s(now)
            assert throttle.room(now) >= 0
            assert throttle.wait_s(now) <= 2 / rate, "it was told when"
        elif what == "take" and throttle.room(now) > 0:
            throttle = throttle.taken(number, now)
            taken.append((now, number))
    for first, (began, _) in enumerate(taken):
        for last in range(first, len(taken)):
            ended, piece = taken[last]
            total = sum(size for _, size in taken[first : last + 1])
            assert total <= rate * (ended - began + THROTTLE_BURST_S) + piece + 1


@given(st.integers(1, 10_000), st.integers(0, 100_000))
def test_what_is_owed_is_paid_off_at_the_new_rate(rate: int, owed: int) -> None:
    throttle = Throttle(rate, free_at=50.0 + owed / rate)
    changed = throttle.at_rate(2 * rate, 50.0)
    assert abs((changed.free_at - 50.0) - owed / (2 * rate)) < 1e-6


def test_without_a_limit_there_is_always_room() -> None:
    throttle = Throttle(2**63 - 1)
    for _ in range(100):
        throttle = throttle.taken(10**9, 5.0)
        assert throttle.room(5.0) > 2**62
        assert throttle.wait_s(5.0) == 0
