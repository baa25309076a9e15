"""The rate that quotas use, against a model of Kafka's words for it.

Samples have a length, and the newest so many of them count, over a time that is never shorter than all of them but one.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.kit.sampled_rate import SampledRate, Window

KAFKAS = Window(11, 1.0)


class Model:
    """Everything that was ever recorded, as (sample, time, amount), searched each time."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.records: list[tuple[float, float, float]] = []

    def record(self, amount: float, now: float) -> None:
        begun = self.records[-1][0] if self.records else None
        start = now if begun is None or now - begun >= self.window.seconds else begun
        self.records.append((start, now, amount))

    def rate(self, now: float) -> float:
        starts = sorted({start for start, _, _ in self.records})[-(self.window.samples + 1) :]
        last = {start: max(at for begun, at, _ in self.records if begun == start) for start in starts}
        live = [start for start in starts if now - last[start] < self.window.samples * self.window.seconds]
        elapsed = now - live[0] if live else 0.0
        while elapsed < (self.window.samples - 1) * self.window.seconds:
            elapsed += self.window.seconds
        return sum(amount for start, _, amount in self.records if start in live) / elapsed


def rate(measured: SampledRate, now: float, window: Window = KAFKAS) -> float:
    return measured.measure(now, window)[0]


times = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 1000)), max_size=60)


@given(times, st.integers(0, 60), st.sampled_from([Window(11, 1.0), Window(2, 0.5), Window(3, 2.0)]))
def test_it_is_as_the_model_says(steps: list[tuple[int, int]], later: int, window: Window) -> None:
    measured, model, now = SampledRate(), Model(window), 1000.0
    for step, amount in steps:
        now += step / 8
        measured.record(amount, now, window)
        model.record(amount, now)
        assert rate(measured, now, window) == pytest.approx(model.rate(now))
    now += later / 8
    assert rate(measured, now, window) == pytest.approx(model.rate(now) if steps else 0.0)


@pytest.mark.parametrize(
    ("used", "limit", "wait_ms"),
    [
        (1000, 100, 0),  # ten seconds' worth at once, after silence
        (1001, 100, 10),
        (2000, 100, 10_000),
        (10_000, 1000, 0),
        (100_000, 1, 99_990_000),
    ],
)
def test_the_wait_is_what_brings_it_to_the_limit(used: int, limit: int, wait_ms: int) -> None:
    measured = SampledRate()
    measured.record(used, 5.0, KAFKAS)
    assert round(measured.wait_ms(limit, 5.0, KAFKAS)) == wait_ms


def test_a_limit_that_is_next_to_nothing_is_no_error() -> None:
    measured = SampledRate()
    measured.record(1, 5.0, KAFKAS)
    assert measured.wait_ms(1e-320, 5.0, KAFKAS) == math.inf


def test_after_the_wait_it_is_at_the_limit() -> None:
    measured = SampledRate()
    for at in range(10):
        measured.record(150, at, KAFKAS)
    wait_ms = measured.wait_ms(100, 9.5, KAFKAS)
    assert wait_ms > 0
    assert rate(measured, 9.5 + wait_ms / 1000) <= 100


def test_what_was_before_the_window_counts_no_more() -> None:
    measured = SampledRate()
    measured.record(1e9, 0.0, KAFKAS)
    assert not measured.is_idle(10.9, KAFKAS)
    assert measured.is_idle(11.0, KAFKAS)
    assert rate(measured, 11.0) == 0


def test_it_keeps_no_more_samples_than_the_window_has() -> None:
    measured: Any = SampledRate()
    for at in range(1000):
        measured.record(1, at, KAFKAS)
    assert len(measured._samples) <= KAFKAS.samples + 1
