"""Charts are true: sums over time lose nothing, and axes of values begin at zero."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.dates import num2date
from matplotlib.figure import Figure

from headrace.spark.pipelines.charts import BARS_MAX, count_axis, draw_over_time, drawn, over_time, size_axis
from headrace.spark.pipelines.pages import page_of

HOUR, DAY = 1, 24


@given(st.dictionaries(st.integers(-(2**40), 2**40), st.integers(0, 2**40), max_size=50), st.sampled_from(["h", "D"]))
def test_sums_over_time_lose_nothing_and_make_few_bars(values: dict[int, int], unit: str) -> None:
    found = over_time(values, unit)
    assert int(found.sums.sum()) + found.left_out == sum(values.values())
    assert list(found.starts) == sorted(set(found.starts))
    if found.unit != "year" and len(found.starts):
        assert int((found.starts[-1] - found.starts[0]).astype(int)) < BARS_MAX
    draw_over_time(Figure().subplots(), found)


@pytest.mark.parametrize(
    ("hours", "unit", "rows"),
    [
        ([0, 1, 1 + DAY], "hour", [("1970-01-01T00", "1"), ("1970-01-01T01", "1,000"), ("1970-01-02T01", "1,000,000")]),
        ([0, 5, 300 * DAY], "day", [("1970-01-01", "1,001"), ("1970-10-28", "1,000,000")]),
        ([0, 5, 4_000 * DAY], "month", [("1970-01", "1,001"), ("1980-12", "1,000,000")]),
        ([0, 5, 20_000 * DAY], "year", [("1970", "1,001"), ("2024", "1,000,000")]),
    ],
)
def test_bars_stand_for_longer_times_where_there_would_be_too_many(
    hours: list[int], unit: str, rows: list[tuple[str, str]]
) -> None:
    found = over_time(dict(zip(hours, (1, 1_000, 1_000_000), strict=True)), "h")
    assert (found.unit, found.rows) == (unit, rows)


def ticks(axes: Any, axis: Any) -> list[str]:
    axes.figure.draw_without_rendering()
    return [label.get_text() for label in axis.get_ticklabels()]


def test_days_have_a_tick_each_and_values_begin_at_zero() -> None:
    axes = Figure(figsize=(7, 3)).subplots()
    start = 56 * 365 * DAY + 14 * DAY
    draw_over_time(axes, over_time({start + at * HOUR: 20_000_000 + at for at in range(4 * DAY)}, "h"))
    size_axis(axes.yaxis)
    begins, ends = axes.get_xlim()
    whole_days = [day for day in range(round(begins) - 1, round(ends) + 1) if begins <= day <= ends]
    assert ticks(axes, axes.xaxis) == [num2date(day).strftime("%-d %b") for day in whole_days]
    assert axes.get_ylim()[0] == 0
    assert "20 MB" in ticks(axes, axes.yaxis)
    counts = Figure().subplots()
    counts.bar([0, 1], [60_000, 54_000])
    count_axis(counts.yaxis)
    assert counts.get_ylim()[0] == 0
    assert "60,000" in ticks(counts, counts.yaxis)


def test_a_picture_is_a_png_and_a_page_has_text_as_text() -> None:
    image = base64.b64decode(drawn("t", lambda axes: axes.bar(["a"], [1])))
    assert image.startswith(b"\x89PNG")
    page = page_of("statistics.html", title="<b>", begun_ms=0, ended_ms=1, topics=[])
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
