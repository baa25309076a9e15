"""The compiled packer and its slow twin write the same bytes, which another client's parser reads as the same rows."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as others_murmur2
from kafka.record import MemoryRecords

from headrace.spark.read.columns import HEADERS_TYPE
from headrace.spark.write import packkernel, rows
from headrace.spark.write.packing import Layout, NativePacker, Packed, Stamp
from headrace.spark.write.plainpacking import PlainPacker
from headrace.spark.write.rows import RowError, chunks
from headrace.wire.batches import seal_records
from headrace.wire.compression import Compression
from tests.tiers import examples

bodies = st.none() | st.binary(max_size=70)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), bodies), max_size=3)
times = st.integers(0, 2**45)
STAMP = Stamp("a-query", "12", "7")
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": HEADERS_TYPE,
    }
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Any], int]:
    """Record batches, some of them slices, and how many partitions there are."""
    count = draw(st.integers(1, 9))
    named = st.none() | st.integers(0, count - 1)
    shapes = draw(st.lists(st.tuples(bodies, bodies, named, times, headers), max_size=30))
    table = [
        {
            "key": key,
            "value": value,
            "topic": "t",
            "partition": partition,
            "timestamp": time * 1000 + 7,
            "headers": None if own is None else [{"key": name, "value": body} for name, body in own],
        }
        for key, value, partition, time, own in shapes
    ]
    batch = pa.RecordBatch.from_pylist(table, SCHEMA)
    cut = draw(st.integers(0, len(shapes)))
    columns = [name for name in SCHEMA.names if name in ("value", "topic") or draw(st.integers(0, 4))]
    return [part.select(columns) for part in (batch.slice(0, cut), batch.slice(cut))], count


def packed(kind: Any, batches: Sequence[Any], layout: Layout) -> list[tuple[Any, ...]]:
    packer = kind(layout)
    found: list[Packed] = []
    for chunk in chunks(batches, "t"):
        found += packer.pack(chunk._replace(times=np.minimum(chunk.times, 2**50)))
    return [(*each[:4], bytes(each.room[61:])) for each in found]


@pytest.fixture(scope="module")
def interpreted() -> Any:
    """The kernel as plain Python, where numpy raises IndexError for what lies beyond an array."""
    spec = importlib.util.spec_from_file_location("interpreted_packkernel", str(packkernel.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.spark.read.kernel.compiled", lambda function: function)
        spec.loader.exec_module(module)
    return module


@settings(deadline=None)
@given(tables(), st.integers(0, 600), st.booleans(), st.integers(1, 300))
def test_the_twins_write_the_same_bytes(made: tuple[list[Any], int], limit: int, stamped: bool, room: int) -> None:
    batches, count = made
    layout = Layout(count, count // 2, limit, STAMP if stamped else None, turn=room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "SPARK_CHUNK_BYTES_MAX", room)
        patch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
        fast = packed(NativePacker, batches, layout)
        assert fast == packed(PlainPacker, batches, layout)
    assert sum(each[1] for each in fast) == sum(batch.num_rows for batch in batches)
    assert all(len(each[4]) + 61 <= limit or each[1] == 1 for each in fast)


@settings(deadline=None, max_examples=examples(60))
@given(tables(), st.integers(62, 600), st.booleans())
def test_the_kernel_stays_within_its_arrays(
    interpreted: Any, made: tuple[list[Any], int], limit: int, stamped: bool
) -> None:
    batches, count = made
    layout = Layout(count, 0, limit, STAMP if stamped else None, turn=limit)

    def packer(layout: Layout) -> Any:
        found = NativePacker(layout)
        found._kernel = interpreted
        return found

    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
        assert packed(packer, batches, layout) == packed(PlainPacker, batches, layout)


@pytest.mark.parametrize("kind", [NativePacker, PlainPacker])
def test_a_batch_is_filled_to_its_limit_and_not_beyond(kind: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"v" * 20] * 12})
    (whole,) = packed(kind, [batch], Layout(1, 0, 10_000, None))
    size = len(whole[4]) // 12
    counts = [
        [each[1] for each in packed(kind, [batch], Layout(1, 0, 61 + 3 * size + more, None))] for more in (-1, 0, 1)
    ]
    assert counts == [[2] * 6, [3] * 4, [3] * 4]


def random_rows(random: Random, count: int) -> Iterator[dict[str, Any]]:
    for at in range(count):
        yield {
            "key": random.choice([None, b"", random.randbytes(random.randrange(20))]),
            "value": random.choice([None, b"", b"v" * random.randrange(9000), random.randbytes(40)]),
            "timestamp": datetime.fromtimestamp(1_700_000_000 + at / 1000, UTC),
            "headers": [{"key": "größe", "value": random.choice([None, b"", b"x"])}] * random.randrange(3),
        }


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("kind", [NativePacker, PlainPacker])
def test_kafka_pythons_parser_reads_what_is_sealed(codec: Compression, kind: Any) -> None:
    made = [*random_rows(Random(codec), 300)]
    batch = pa.RecordBatch.from_pylist(made, pa.schema([SCHEMA.field(name) for name in made[0]]))
    found: dict[int, list[Any]] = {}
    sequence = 5
    for chunk in chunks([batch], "t"):
        for each in kind(Layout(4, 0, 20_000, STAMP)).pack(chunk):
            data = seal_records(
                each.room,
                count=each.records,
                base_timestamp=each.base_timestamp,
                max_timestamp=each.max_timestamp,
                compression=codec,
                producer_id=77,
                producer_epoch=3,
                base_sequence=sequence,
            )
            (parsed,) = MemoryRecords(bytes(data))
            assert parsed.validate_crc()
            assert (parsed.producer_id, parsed.producer_epoch, parsed.base_sequence) == (77, 3, sequence)
            assert parsed.compression_type == (codec if len(data) < len(each.room) else 0)
            found.setdefault(each.partition, []).extend(parsed)
            sequence += each.records
    records = sorted((record for own in found.values() for record in own), key=lambda record: record.headers[-1][1])
    assert len(records) == 300
    for at, (record, row) in enumerate(zip(records, made, strict=True)):
        own = [(each["key"], each["value"]) for each in row["headers"]]
        stamp = [("headrace.query", b"a-query"), ("headrace.batch", b"12"), ("headrace.task", b"7:%012d" % at)]
        assert (record.key, record.value) == (row["key"], row["value"])
        assert record.timestamp == 1_700_000_000_000 + at
        assert [*record.headers] == own + stamp


def test_keys_go_where_the_java_client_sends_them() -> None:
    random = Random(3)
    keys = [random.randbytes(at % 23) for at in range(400)]
    batch = pa.RecordBatch.from_pydict({"key": keys, "value": [None] * 400})
    (chunk,) = chunks([batch], "t")
    found = {}
    for each in NativePacker(Layout(13, 0, 62, None)).pack(chunk):
        room = bytes(each.room)
        ((record,),) = MemoryRecords(_sealed(each, room))
        found[record.key] = each.partition
    assert found == {key: (others_murmur2(key) & 0x7FFFFFFF) % 13 for key in keys}


def _sealed(each: Packed, room: bytes) -> bytes:
    return bytes(
        seal_records(
            memoryview(bytearray(room)),
            count=each.records,
            base_timestamp=each.base_timestamp,
            max_timestamp=each.max_timestamp,
            compression=Compression.NONE,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
        )
    )


def test_rows_without_keys_take_turns_by_bytes_and_again_the_same() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"v" * 1000] * 400})

    def turns(room: int, limit: int = 20_480) -> list[tuple[int, int]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "SPARK_CHUNK_BYTES_MAX", room)
            counts = dict.fromkeys(range(5), 0)
            packer = NativePacker(Layout(5, 3, limit, None, turn=20_480))
            for chunk in chunks([batch], "t"):
                for each in packer.pack(chunk):
                    counts[each.partition] += each.records
            return sorted(counts.items())

    assert [count for _, count in turns(10**9)] == [80] * 5
    assert turns(10_000) == turns(10**9) == turns(10**9, limit=3000)


@pytest.mark.parametrize("kind", [NativePacker, PlainPacker])
def test_turns_are_of_the_same_bytes_whatever_a_batch_may_have(kind: Any) -> None:
    """The values of batchBytes and max.message.bytes may change between two runs of a task."""
    batch = pa.RecordBatch.from_pydict({"value": [b"v" * 100_000] * 30})
    found = [
        [(each[0], each[1]) for each in packed(kind, [batch], Layout(3, 0, limit, None))] for limit in (100, 2_000_000)
    ]
    by_partition: list[Counter[int]] = [Counter(), Counter()]
    for counts, own in zip(by_partition, found, strict=True):
        for partition, records in own:
            counts[partition] += records
    assert by_partition[0] == by_partition[1]
    assert len(by_partition[0]) == 3


def test_bytes_under_nulls_count_for_nothing() -> None:
    ends = pa.py_buffer(np.array([0, 90, 95, 190, 195], np.int32))
    validity = pa.py_buffer(bytes([0b1010]))
    values = pa.Array.from_buffers(pa.binary(), 4, [validity, ends, pa.py_buffer(b"x" * 195)])
    batch = pa.RecordBatch.from_arrays([values], ["value"])
    layout = Layout(4, 0, 500, None, turn=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
        assert packed(NativePacker, [batch], layout) == packed(PlainPacker, [batch], layout)


def test_a_chunk_is_bounded_by_rows_as_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row takes more packed than it has bytes, where these are few."""
    monkeypatch.setattr(rows, "SPARK_CHUNK_ROWS_MAX", 100)
    batch = pa.RecordBatch.from_pydict({"value": [b"%d" % at for at in range(950)]})
    for parts in ([batch], [batch.slice(at, 30) for at in range(0, 950, 30)]):
        found = [*chunks(parts, "t")]
        assert all(chunk.rows <= 100 for chunk in found)
        assert len(found) < 20
        assert [value for chunk in found for value in chunk.value.to_pylist()] == batch["value"].to_pylist()
        assert [at for chunk in found for at in chunk.positions] == [*range(950)]


def no_text(*bodies: bytes) -> Any:
    return pa.array(bodies, pa.binary()).view(pa.string())


def test_a_row_whose_text_is_none_is_named() -> None:
    """Spark's strings may hold any bytes."""
    values = pa.array([b""] * 3)
    topics = pa.RecordBatch.from_arrays([values, no_text(b"t", "größe".encode(), b"\xff")], ["value", "topic"])
    with pytest.raises(RowError, match=r"Row 2 .*its topic is no UTF-8"):
        list(chunks([topics], None))
    pairs = pa.StructArray.from_arrays([no_text(b"h", b"h", b"\xc3", b"h"), pa.array([b"x"] * 4)], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 2, 4, 4], pa.int32()), pairs).cast(HEADERS_TYPE)
    named = pa.RecordBatch.from_arrays([values, headers], ["value", "headers"])
    with pytest.raises(RowError, match=r"Row 1 .*of a header is no UTF-8"):
        list(chunks([named], "t"))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"value": b"", "partition": 3}, r"Row 2 .*names partition 3, and topic 't' has partitions 0 to 2"),
        ({"value": b"", "partition": -1}, r"Row 2 .*names partition -1"),
        ({"value": b"", "timestamp": -1}, r"Row 2 .*before 1970"),
        ({"value": b"", "headers": [{"key": None, "value": b""}]}, r"Row 2 .*headers has no name"),
        ({"value": b"", "headers": [None]}, r"Row 2 .*headers has no name"),
    ],
)
def test_a_row_that_is_no_record_is_named(row: dict[str, Any], words: str) -> None:
    batch = pa.RecordBatch.from_pylist([{"value": b""}, {"value": b"", "headers": []}, row], SCHEMA)
    with pytest.raises(RowError, match=words):
        packed(NativePacker, [batch], Layout(3, 0, 500, None))


@pytest.mark.parametrize(
    ("count", "stamped", "words"),
    [
        (5, 0, None),
        (6, 0, r"Row 1 .*too many headers, of which a record has 5 at most\.$"),
        (2, 3, None),
        (3, 3, r"Row 1 .*too many headers, of which a record has 5 at most, 3 of them for who wrote it"),
    ],
)
def test_a_row_has_no_more_headers_than_a_reader_takes(
    monkeypatch: pytest.MonkeyPatch, count: int, stamped: int, words: str | None
) -> None:
    monkeypatch.setattr(rows, "RECORD_HEADERS_MAX", 5)
    own = [{"key": "h", "value": b""}] * count
    batch = pa.RecordBatch.from_pylist([{"value": b""}, {"value": b"", "headers": own}], SCHEMA)
    with pytest.raises(RowError, match=words) if words is not None else nullcontext():
        (chunk,) = chunks([batch], "t", stamped=stamped)
        assert chunk.rows == 2


def test_each_row_may_name_its_topic() -> None:
    batch = pa.RecordBatch.from_pylist([{"topic": name, "value": name.encode()} for name in "abcab"], SCHEMA)
    found = {chunk.topic: (chunk.positions.tolist(), chunk.value.to_pylist()) for chunk in chunks([batch], None)}
    assert found == {"a": ([0, 3], [b"a"] * 2), "b": ([1, 4], [b"b"] * 2), "c": ([2], [b"c"])}
    none = pa.RecordBatch.from_pylist([{"topic": "a", "value": b""}, {"value": b""}], SCHEMA)
    with pytest.raises(RowError, match=r"Row 1 .*no topic"):
        list(chunks([none], None))
