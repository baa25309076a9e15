"""The compiled decoder and its slow twin agree on every batch, good or bad, and no byte is read out of bounds."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ports import Buffer
from headrace.spark.read import kernel, native
from headrace.spark.read.columns import ARROW_TYPES, Columns
from headrace.spark.read.native import NativeRows
from headrace.spark.read.plain import PlainRows
from headrace.wire.batches import HEADER_BYTES, BatchHeader, encode_batch, parse_header
from headrace.wire.records import Record
from tests.tiers import examples

EVERYTHING = Columns(tuple(ARROW_TYPES))

bodies = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), bodies), max_size=3).map(tuple)
timestamps = st.integers(-(2**50), 2**50)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, BatchHeader]:
    base = draw(st.integers(0, 2**40))
    shapes = draw(st.lists(st.tuples(timestamps, bodies, bodies, headers), min_size=1, max_size=12))
    records = [Record(base + at, *shape) for at, shape in enumerate(shapes)]
    batch = encode_batch(records, log_append_time=draw(st.booleans()))
    return batch[HEADER_BYTES:], parse_header(batch)


def outcome(rows: Any, parts: Sequence[tuple[Buffer, BatchHeader]], first: int, following: int) -> Any:
    """The rows as one table, or the word refused."""
    found = []
    try:
        for data, header in parts:
            found += rows.add(data, header, first, following)
        found += [rows.take()] if rows.rows else []
    except CorruptData:
        return "refused"
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(EVERYTHING.arrow_schema)
    table = pa.Table.from_batches(found, EVERYTHING.arrow_schema)
    at = table.column_names.index("timestamp")  # as integers: Python's datetime ends before Spark's does
    return table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist()


def both(parts: Sequence[tuple[Buffer, BatchHeader]], first: int = 0, following: int = 2**62) -> Any:
    fast = outcome(NativeRows(EVERYTHING, "t", 3), parts, first, following)
    slow = outcome(PlainRows(EVERYTHING, "t", 3), parts, first, following)
    assert fast == slow
    return fast


@settings(deadline=None)
@given(st.lists(batches(), max_size=4), st.integers(0, 2**40), st.integers(0, 2**40))
def test_the_twins_give_the_same_rows(parts: list[tuple[bytes, BatchHeader]], one: int, two: int) -> None:
    found = both(parts)
    assert len(found) == sum(header.count for _, header in parts)
    both(parts, min(one, two), max(one, two))


@settings(deadline=None, max_examples=examples(300))
@given(batches(), st.data())
def test_the_twins_agree_on_damaged_bytes(part: tuple[bytes, BatchHeader], data: st.DataObject) -> None:
    body, header = bytearray(part[0]), part[1]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1)) if body else 0
        match data.draw(st.sampled_from(["set", "cut", "insert", "count"])):
            case "set" if body:
                body[at] = data.draw(st.integers(0, 255))
            case "cut":
                del body[at : at + data.draw(st.integers(1, 5))]
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=11))
            case _:
                header = header._replace(count=header.count + data.draw(st.integers(-1, 1)))
    both([(bytes(body), header)])


@pytest.fixture(scope="module")
def interpreted() -> Any:
    """The kernel as plain Python, where numpy raises IndexError for what lies beyond an array."""
    spec = importlib.util.spec_from_file_location("interpreted_kernel", str(kernel.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numba.njit", lambda **_: lambda function: function)
        spec.loader.exec_module(module)
    return module


def test_no_prefix_of_a_batch_is_read_beyond_its_end(interpreted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode_batch([Record(at, at, b"k" * at, b"v" * 30, (("h", b"x"), ("i", None))) for at in range(3)])
    header, body = parse_header(batch), batch[HEADER_BYTES:]
    for kind in (kernel, interpreted):
        monkeypatch.setattr(native, "kernel", kind)
        for size in range(len(body)):
            assert both([(body[:size], header)]) == "refused"
        assert both([(body + b"\0", header)]) == "refused"


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches(), st.data())
def test_the_kernel_stays_within_its_arrays(
    interpreted: Any, part: tuple[bytes, BatchHeader], data: st.DataObject
) -> None:
    body, header = bytearray(part[0]), part[1]
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=2)):
        body[at] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(native, "kernel", interpreted)
        patch.setattr(native, "ROWS_PER_BATCH", 5)
        patch.setattr(native, "BYTES_PER_COLUMN", 50)
        patch.setattr(native, "HEADERS_PER_BATCH", 3)
        found = outcome(NativeRows(EVERYTHING, "t", 3), [(bytes(body), header)], 0, 2**62)
    assert found == outcome(PlainRows(EVERYTHING, "t", 3), [(bytes(body), header)], 0, 2**62)


@pytest.mark.parametrize(
    "record",
    [
        bytes([1]),  # Length -1.
        bytes([2, 0]),  # Ends after its attributes.
        b"\xff" * 9 + b"\x01",  # Length -2^63.
        b"\xfe" + b"\xff" * 8 + b"\x01",  # Length 2^63 - 1.
        b"\x80" * 10 + b"\x00",  # A varint of 11 bytes.
        bytes([14, 0, 0, 0, 3, 1, 0, 0]),  # Key of length -2.
        bytes([12, 0, 0, 0, 1, 1, 1]),  # Header count -1.
        bytes([14, 0, 0, 0, 1, 1, 2, 1]),  # Header without a name.
        bytes([12, 0, 0, 2, 1, 1, 0]),  # Offset delta above the last.
        bytes([12, 0, 0, 1, 1, 1, 0]),  # Offset delta -1.
    ],
)
def test_impossible_fields_are_refused(record: bytes) -> None:
    header = parse_header(encode_batch([Record(0, 0, None, None)]))
    assert both([(bytes([12, 0, 0, 0, 1, 1, 0]), header)]) != "refused"
    assert both([(record, header)]) == "refused"


def test_a_headers_name_that_is_no_utf_8_is_told_as_java_tells_it() -> None:
    header = parse_header(encode_batch([Record(0, 0, None, None)]))
    for name, told in ((b"\xff", "\ufffd"), (b"a\xc3(", "a\ufffd("), ("\u00e9".encode(), "\u00e9")):
        body = bytes([0, 0, 0, 1, 1, 2, 2 * len(name)]) + name + b"\1"
        (row,) = both([(bytes([2 * len(body)]) + body, header)])
        assert row["headers"] == [{"key": told, "value": None}]


@pytest.mark.parametrize("timestamp", [2**62, -(2**62), 9_223_372_036_854_776, 9_223_372_036_854_775])
def test_timestamps_beyond_sparks_are_refused(timestamp: int) -> None:
    batch = encode_batch([Record(0, timestamp, None, None), Record(1, 0, None, None)])
    found = both([(batch[HEADER_BYTES:], parse_header(batch))])
    assert (found == "refused") == (abs(timestamp) > 9_223_372_036_854_775)


def test_full_columns_are_handed_over_in_the_middle_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ROWS_PER_BATCH", 7)
    monkeypatch.setattr(native, "BYTES_PER_COLUMN", 64)
    monkeypatch.setattr(native, "HEADERS_PER_BATCH", 4)
    random, parts, base = Random(4), [], 0
    for _ in range(40):
        count = random.randrange(1, 20)
        made = [
            Record(
                base + at,
                at,
                random.choice([None, b"", b"k" * random.randrange(60)]),
                random.choice([None, b"v" * random.randrange(300)]),
                tuple(("n" * random.randrange(9), b"x" * 20) for _ in range(random.randrange(3))),
            )
            for at in range(count)
        ]
        batch = encode_batch(made)
        parts.append((batch[HEADER_BYTES:], parse_header(batch)))
        base += count
    assert len(both(parts)) == base


@given(st.lists(st.sampled_from(sorted(ARROW_TYPES)), min_size=1, unique=True))
@settings(deadline=None, max_examples=examples(20))
def test_pruned_columns_are_those_of_the_whole(names: list[str]) -> None:
    batch = encode_batch([Record(at, at, b"k" * at, None, (("h", b"x"),)) for at in range(5)])
    part = (batch[HEADER_BYTES:], parse_header(batch))
    columns = Columns.select(names, headers=False)
    for kind in (NativeRows, PlainRows):
        taken = []
        for wanted in (columns, EVERYTHING):
            rows = kind(wanted, "t", 3)
            assert not [*rows.add(*part, 1, 4)]
            taken.append(rows.take())
        assert taken[0].equals(taken[1].select(names))


def test_unknown_and_repeated_columns_are_refused() -> None:
    assert Columns.select(None, headers=False).names == tuple(ARROW_TYPES)[:-1]
    assert Columns.select(["TIMESTAMPTYPE", "key"], headers=False).names == ("timestampType", "key")
    for wrong in (["nothing"], ["key", "KEY"], []):
        with pytest.raises(UsageError, match="Option columns"):
            Columns.select(wrong, headers=False)
