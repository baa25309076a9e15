"""`walk_records` accepts what the slow reader accepts, byte for byte; and it takes no longer for hostile bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.records import Record, pack_records, unpack_records
from headrace.wire.walking import Walked, walk_records

BASE = 1_700_000_000_000


def slowly(data: bytes, count: int, base_timestamp: int) -> Walked:
    """The twin: all records are built."""
    records = unpack_records(data, count, 0, base_timestamp)
    if [record.offset for record in records] != list(range(count)):
        raise CorruptData("offsets")
    times = [record.timestamp for record in records]
    return Walked(min(times), max(-1, *times), all(record.key is not None for record in records))


def both(data: bytes, count: int, base_timestamp: int = BASE) -> Walked | None:
    """The result of both; None where both refuse."""
    try:
        expected = slowly(data, count, base_timestamp)
    except CorruptData:
        with pytest.raises(CorruptData):
            walk_records(data, count, base_timestamp)
        return None
    walked = walk_records(data, count, base_timestamp)
    assert walked[1:] == expected[1:]
    assert walked.oldest_timestamp <= expected.oldest_timestamp
    return walked


SIZES = st.one_of(st.none(), st.sampled_from([0, 1, 62, 63, 64, 100, 8_190, 8_192]), st.integers(0, 300))
HEADERS = st.lists(st.tuples(st.text(max_size=70), st.one_of(st.none(), st.binary(max_size=70))), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records in runs of one layout, as producers of one kind of message write them, and some that break the run."""
    records: list[Record] = []
    time = 0
    for _ in range(draw(st.integers(1, 5))):
        key, value, headers = draw(SIZES), draw(SIZES), draw(HEADERS) if draw(st.booleans()) else []
        step = draw(st.sampled_from([0, 0, 1, 7, 70, 9_000, -3, -9_000, 2**33]))
        for _ in range(draw(st.integers(1, 90))):
            time += step
            records.append(
                Record(
                    len(records),
                    BASE + time,
                    None if key is None else b"k" * key,
                    None if value is None else b"v" * value,
                    tuple(headers),
                )
            )
    return bytes(pack_records(records, 0, BASE)), len(records)


@given(batches())
def test_sound_records_are_walked_as_the_slow_reader_reads_them(batch: tuple[bytes, int]) -> None:
    assert both(*batch) is not None


@given(batches(), st.data())
def test_changed_bytes_are_refused_just_where_the_slow_reader_refuses_them(
    batch: tuple[bytes, int], data: st.DataObject
) -> None:
    raw, count = bytearray(batch[0]), batch[1]
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    both(bytes(raw), count)


@given(batches(), st.data())
def test_cut_and_longer_records_are_refused(batch: tuple[bytes, int], data: st.DataObject) -> None:
    raw, count = batch
    both(raw[: data.draw(st.integers(0, len(raw)))], count)
    assert both(raw + b"\0", count) is None
    assert both(raw, count + 1) is None
    if count > 1:
        assert both(raw, count - 1) is None


@given(st.binary(max_size=60), st.integers(1, 4), st.sampled_from([-1, 0, BASE, 2**63 - 1]))
@example(b"\x0c\0\0\0\x01\x01\0", 1, 2**63 - 1)
@example(b"\x0c\0\x02\0\x01\x01\0", 1, 2**63 - 1)  # Later than 64 bits can say.
@example(b"\x0c\0\x01\0\x01\x01\0", 1, -1)  # Before 1970.
@example(b"\x0e\0\0\x80\0\x01\x01\0", 1, 0)  # Longer than it has to be.
@example(b"\x16\0\0\x80\x80\x80\x80\x80\0\x01\x01\0", 1, 0)  # A varint of six bytes.
@example(b"\x0c\0\0\0\x03\x01\0", 1, 0)  # A key of length -2.
@example(b"\x0c\0\0\0\x01\x01\1", 1, 0)  # A negative number of headers.
def test_any_bytes_are_taken_or_refused_by_both(raw: bytes, count: int, base_timestamp: int) -> None:
    both(raw, count, base_timestamp)


def test_long_batches_cross_every_width_of_an_offset_delta() -> None:
    for size in (0, 10, 100, 9_000):
        records = [Record(at, BASE + at // 3, None, b"v" * size) for at in range(9_000 if size < 1_000 else 300)]
        walked = both(bytes(pack_records(records, 0, BASE)), len(records))
        assert walked == (BASE, BASE + (len(records) - 1) // 3, False)


def test_what_only_looks_like_a_run_is_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fifth record breaks the run: what is looked at ahead stays within a few times of what is read."""
    looked = 0

    def counted(data: bytes, layout: object, index: int, most: int) -> tuple[int, int]:
        nonlocal looked
        looked += most
        return run(data, layout, index, most)  # type: ignore[arg-type]

    from headrace.wire import walking

    run = walking._run
    monkeypatch.setattr(walking, "_run", counted)
    records = [Record(at, BASE, b"k" * (at % 5 == 4), b"v" * (1 - (at % 5 == 4))) for at in range(8_000)]
    assert both(bytes(pack_records(records, 0, BASE)), len(records)) is not None
    assert looked < 20 * len(records)


@pytest.mark.parametrize("step", [1, -1])
def test_no_more_headers_are_looked_at_than_is_said(step: int) -> None:
    """Of all records together, and of each: a record may be little else. Both those of the usual form and others."""
    headers = (("n", None),) * 50
    records = [Record(at, BASE + step * at, None, b"v", headers) for at in range(20)]
    data = bytes(pack_records(records, 0, BASE))
    for enough in (1_000, 1_001):
        assert walk_records(data, 20, BASE, enough) == walk_records(data, 20, BASE)
    for few in (0, 49, 50, 999):
        with pytest.raises(CorruptData):
            walk_records(data, 20, BASE, few)


@pytest.mark.parametrize("step", [-1, -70, 9_000, -9_000, 2**40])
def test_times_far_apart_or_falling_do_not_have_records_built(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old records that are written again are no exception: a record that is built takes several times as long."""
    monkeypatch.setattr("headrace.wire.walking.read_record", None)
    records = [Record(at, BASE + step * at, b"k", b"v" * (at % 7)) for at in range(100)]
    walked = walk_records(bytes(pack_records(records, 0, BASE)), 100, BASE)
    assert walked == (min(BASE, BASE + 99 * step), max(BASE, BASE + 99 * step), True)
