"""``dropRepeats``: the law, against all pairs of records; memory; and what a read gives, however it is cut."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import TopicId
from headrace.spark.read import reading, repeats
from headrace.spark.read.columns import ARROW_TYPES, Columns
from headrace.spark.read.kernel import compiled
from headrace.spark.read.repeatkernel import begun, ended, mixed
from headrace.spark.read.repeats import Kept, KeptKey, NativeMemory, Once, PlainMemory, decoded, without_repeats
from headrace.spark.write.packing import Stamp
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.spark.world import World, consumed, planned, read, world

SCHEMA = pa.schema({name: ARROW_TYPES[name] for name in ("key", "value", "offset", "headers")})
Written = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def rows_of(records: list[tuple[int, Written]]) -> Any:
    rows = [
        {
            "key": key,
            "value": value,
            "offset": offset,
            "headers": [{"key": name, "value": body} for name, body in headers],
        }
        for offset, (key, value, headers) in records
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def by_the_law(records: list[tuple[int, Written]], window: int) -> list[int]:
    """Offsets that are kept: each record compared with all before it."""
    kept = []
    for at, (offset, record) in enumerate(records):
        marked = any(name == "headrace.task" for name, _ in record[2])
        if not marked or not any(offset - other <= window and same == record for other, same in records[:at]):
            kept.append(offset)
    return kept


bodies = st.sampled_from([None, b"", b"a", b"ab", b"abcdefgh", b"abcdefghi"])
names = st.sampled_from(["", "headrace.task", "headrace.tas", "headrace.query", "h"])
written = st.tuples(bodies, bodies, st.lists(st.tuples(names, bodies), max_size=2).map(tuple))


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, Written]]:
    shapes = draw(st.lists(written, min_size=1, max_size=4))
    steps = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(shapes)), max_size=60))
    found, offset = [], -1
    for step, record in steps:
        offset += step
        found.append((offset, record))
    return found


@settings(deadline=None)
@given(logs(), st.integers(1, 30), st.lists(st.integers(0, 60), max_size=4))
@pytest.mark.parametrize("kind", [NativeMemory, PlainMemory])
def test_what_is_left_out_has_an_equal_one_before_it(
    kind: Any, records: list[tuple[int, Written]], window: int, cuts: list[int]
) -> None:
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "FIRST_ROOM", 4)
        memory = kind(window)
        marks = sorted({0, len(records), *(min(cut, len(records)) for cut in cuts)})
        for begin, end in pairwise(marks):
            batch = rows_of(records)[begin:end]
            mask = memory.repeated(batch)
            found += [offset for offset, again in zip(batch["offset"].to_pylist(), mask, strict=True) if not again]
    assert found == by_the_law(records, window)


@pytest.mark.parametrize("kind", [NativeMemory, PlainMemory])
def test_a_memory_that_forgets_what_is_old_forgets_nothing_else(kind: Any) -> None:
    """Many different records in a small table, which is rebuilt repeatedly."""
    records: list[tuple[int, Written]] = []
    random, offset = Random(8), 0
    for _ in range(1500):
        offset += random.randrange(1, 3)
        marked: Written = (None, b"%d" % random.randrange(60), (("headrace.task", b"0"),))
        records.append((offset, marked))
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "FIRST_ROOM", 4)
        memory = kind(40)
        for begin in range(0, 1500, 100):
            batch = rows_of(records[begin : begin + 100])
            mask = memory.repeated(batch)
            found += [at for at, again in zip(batch["offset"].to_pylist(), mask, strict=True) if not again]
    assert found == by_the_law(records, 40)
    assert 0 < len(found) < 1500


def test_memory_is_bounded_by_the_window() -> None:
    memory = NativeMemory(1000)
    for base in range(0, 60_000, 500):
        records: list[tuple[int, Written]] = [
            (base + at, (None, b"%d" % (base + at), (("headrace.task", b"0"),))) for at in range(500)
        ]
        assert not memory.repeated(rows_of(records)).any()
        assert memory.size <= max(repeats.FIRST_ROOM, 1000 * 16 // 3)


def test_rows_before_the_start_are_remembered_and_not_given() -> None:
    record: Written = (b"k", b"v", (("headrace.task", b"0:1"),))
    other: Written = (b"k", b"w", (("headrace.task", b"0:2"),))
    columns = Columns.select(["value"], headers=False)
    assert decoded(columns).names == ("value", "key", "offset", "headers")
    memory = NativeMemory(10)
    batch = rows_of([(0, record), (1, other), (2, record), (3, (None, None, ()))])
    (found,) = without_repeats([batch], memory, Once(start=1, horizon=0), columns)
    assert found.to_pydict() == {"value": [b"w", None]}
    assert memory.end == 4


def test_a_memory_of_what_lies_ahead_or_of_another_reader_is_not_used() -> None:
    key, kept = KeptKey("s", TopicId(UUID(int=1)), 0, 10), Kept(records_max=2 * repeats.FIRST_ROOM)
    memory = NativeMemory(10)
    memory.end = 50
    kept.put(key, memory)
    assert kept.take(key, 60) is memory
    kept.put(key, memory)
    assert kept.take(key, 49) is not memory
    kept.put(key, memory)
    assert kept.take(key._replace(stream="other"), 60) is not memory
    batch = key._replace(stream="")
    kept.put(batch, memory)
    assert kept.take(batch, 60) is not memory
    for partition in range(3):
        kept.put(key._replace(partition=partition), NativeMemory(10))
    assert len(kept._memories) == 2


@pytest.mark.parametrize("kind", [NativeMemory, PlainMemory])
def test_what_lies_below_the_logs_start_repeats_nothing(kind: Any) -> None:
    memory = kind(100)
    record: Written = (b"k", b"v", (("headrace.task", b"0:1"),))
    assert memory.repeated(rows_of([(50, record)])).tolist() == [False]
    assert memory.repeated(rows_of([(60, record), (61, record)]), 51).tolist() == [False, True]


@compiled
def sip_hash(secret: Any, words: Any) -> Any:
    state = begun(secret)
    for word in words:
        state = mixed(state, word)
    return ended(state, len(words))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (24, "2db479ae78bd50d8882a8a178a6132ad"),
    ],
)
def test_hashes_are_those_of_siphash(length: int, expected: str) -> None:
    """Of the bytes 0, 1, 2, ... under the key 0, 1, 2, ..., as OpenSSL gives them, and the first the reference."""
    found = sip_hash(*(np.frombuffer(bytes(range(size)), np.uint64) for size in (16, length)))
    assert np.array(found, np.uint64).tobytes().hex() == expected


def nearly_alike() -> Iterator[tuple[bytes, bytes]]:
    """Pairs that differ in the highest bits of neighbouring words; a quaternion and its conjugate are such a pair."""
    random = Random(6)
    for count in (2, 4, 6, 8):
        for turned in range(1, 1 << count):
            numbers = [random.random() for _ in range(count)]
            others = [-each if turned >> at & 1 else each for at, each in enumerate(numbers)]
            yield struct.pack(f"<{count}f", *numbers), struct.pack(f"<{count}f", *others)
            yield struct.pack(f"<{count}d", *numbers), struct.pack(f"<{count}d", *others)
    yield b"", b"\0"
    yield b"a", b"a\0"


def test_records_that_are_nearly_alike_are_no_repeats() -> None:
    marks = (("headrace.task", b"0:1"),)
    records: list[tuple[int, Written]] = []
    for one, other in nearly_alike():
        records += [(len(records), (b"k", one, marks)), (len(records) + 1, (b"k", other, marks))]
        records += [(len(records), (one, None, marks)), (len(records) + 1, (other, None, marks))]
    mask = NativeMemory(10_000).repeated(rows_of(records))
    assert np.array_equal(mask, PlainMemory(10_000).repeated(rows_of(records)))
    assert not mask.any()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


def test_what_retention_took_is_no_reason_to_leave_a_record_out(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has seen it gives what one gives that has not; `stream` stands for the micro-batches of one."""
    monkeypatch.setattr(repeats, "KEPT", Kept())
    monkeypatch.setattr(reading, "KEPT", repeats.KEPT)
    made.create("cut", 1, durable_enable="false")
    record = Record(0, 1_700_000_000_000, None, b"v", Stamp("q", "0", "0").headers(1))
    for _ in range(3):
        made.produce("cut", [(0, encode_batch([record]))])

    def offsets(start: int, end: int, stream: str) -> list[int]:
        options = made.options("cut", startingOffsets=f'{{"cut": {{"0": {start}}}}}', dropRepeats="true")
        del options["store"]
        options["endingOffsets"] = f'{{"cut": {{"0": {end}}}}}'
        return [row[2] for row in read(options, [task._replace(stream=stream) for task in planned(options)])]

    assert offsets(0, 1, "s") == [0]
    assert offsets(1, 2, "") == []
    made.delete_records("cut", 1)
    for stream in ("s", "", "new"):
        assert offsets(1, 3, stream) == [1]
        assert offsets(2, 3, stream) == []


def test_a_read_gives_each_once_however_it_is_cut(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions, partly durable; tasks that died in the middle and were run again, and rows of nobody."""
    monkeypatch.setattr(repeats, "KEPT", Kept())
    made.create("t", 2, segment_bytes="4096")
    random = Random(5)
    for task in range(8):
        stamp = Stamp("q", "0", str(task))
        rows = [Record(0, 1_700_000_000_000, None, random.randbytes(30), stamp.headers(at)) for at in range(60)]
        runs = [rows[: random.randrange(1, 60)], rows] if task % 3 else [rows]
        for run in runs:
            for at in range(0, len(run), 7):
                batch = [row._replace(offset=place) for place, row in enumerate(run[at : at + 7])]
                made.produce("t", [(task % 2, encode_batch(batch, compression=Compression.LZ4))])
        nobody = [Record(at, 1_700_000_000_000, None, b"same", ()) for at in range(2)]
        made.produce("t", [(task % 2, encode_batch(nobody))])
    made.exported("t", 1)
    whole = consumed(made.bootstrap, ["t"])
    seen: set[Any] = set()
    expected = []
    for row in whole:
        identity = (row[1], *row[5:])
        if not row[7] or identity not in seen:
            expected.append(row)
        seen.add(identity)
    assert len(expected) < len(whole)
    assert read(made.options("t")) == whole
    assert read(made.options("t", dropRepeats="true")) == expected
    ends = {at: max(row[2] for row in whole if row[1] == at) + 1 for at in range(2)}
    for begin in (0, 40, 130):
        starting, ending = f'{{"t": {{"0": {begin}, "1": {begin}}}}}', f'{{"t": {{"0": {begin + 90}, "1": {ends[1]}}}}}'
        options = made.options("t", startingOffsets=starting, endingOffsets=ending, dropRepeats="true")
        wanted = [row for row in expected if begin <= row[2] < (begin + 90, ends[1])[row[1]]]
        assert read(options) == wanted
        assert read({**options, "maxBytesPerPartition": "1"}) == wanted
    narrow = read(made.options("t", dropRepeats="true", repeatWindow="1"))
    assert len(expected) < len(narrow) <= len(whole)
    assert np.array_equal([row[2] for row in narrow if not row[7]], [row[2] for row in expected if not row[7]])
