"""Spark's filters become bounds that leave out no row that any filter lets through."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from headrace.spark.read.filters import ALL, wanted_by

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]

numbers = st.integers(-3, 12) | st.sampled_from([2.5, -0.5, 7.0])
micros = st.integers(-5, 12).map(lambda millis: 1_000 * millis) | st.integers(-5_000, 12_000)
times = micros.map(lambda each: EPOCH + timedelta(microseconds=each))
names = st.sampled_from(["a", "b", "c"])
VALUES = {"topic": names, "partition": numbers, "offset": numbers, "timestamp": times, "key": numbers}
COMPARED = (spark.EqualTo, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan, spark.LessThanOrEqual)


@st.composite
def filters(draw: st.DrawFn) -> spark.Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[column])
    made: spark.Filter = draw(st.sampled_from(COMPARED))((column,), value)
    if draw(st.booleans()):
        made = spark.In((column,), tuple(draw(st.lists(VALUES[column] | st.none(), min_size=1, max_size=3))))
    if draw(st.booleans()):
        made = spark.Not(made)
    return made


def lets_through(one: Any, row: Row) -> bool:
    """As SQL does; the meaning of each filter by itself."""
    if isinstance(one, spark.Not):
        inner: Any = one.child
        return not lets_through(inner, row)
    found = row[one.attribute[0]]
    match one:
        case spark.EqualTo():
            return bool(found == one.value)
        case spark.GreaterThan():
            return bool(found > one.value)
        case spark.GreaterThanOrEqual():
            return bool(found >= one.value)
        case spark.LessThan():
            return bool(found < one.value)
        case spark.LessThanOrEqual():
            return bool(found <= one.value)
        case _:
            return found in one.value


@given(st.lists(filters(), max_size=4), names, st.integers(0, 9), st.integers(0, 9), st.integers(-5, 12))
def test_no_row_is_left_out_that_all_filters_let_through(
    made: list[spark.Filter], topic: str, partition: int, offset: int, time_ms: int
) -> None:
    time = EPOCH + timedelta(milliseconds=time_ms)
    row = {"topic": topic, "partition": partition, "offset": offset, "timestamp": time, "key": 1}
    if not all(lets_through(one, row) for one in made):
        return
    wanted = wanted_by(made)
    assert wanted.has(topic, partition)
    start, end = wanted.clipped(0, 10)
    assert start <= offset < end
    assert wanted.time_from_ms is None or time_ms >= wanted.time_from_ms


def test_bounds_are_as_tight_as_the_filters() -> None:
    made = [
        spark.GreaterThan(("offset",), 4),
        spark.LessThanOrEqual(("offset",), 8),
        spark.In(("partition",), (3, 5)),
        spark.EqualTo(("topic",), "a"),
        spark.GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=7)),
    ]
    wanted = wanted_by(made)
    assert wanted.clipped(0, 100) == (5, 9)
    assert [at for at in range(10) if wanted.has("a", at)] == [3, 4, 5]
    assert not wanted.has("b", 3)
    assert wanted.time_from_ms == 7
    later = spark.In(("timestamp",), (EPOCH + timedelta(seconds=3), EPOCH + timedelta(seconds=2)))
    assert wanted_by([later]).time_from_ms == 2_000
    assert wanted_by([spark.LessThan(("timestamp",), EPOCH), spark.IsNotNull(("offset",))]) == ALL
