"""message.timestamp.type and its bounds over the wire; ListOffsets against a slow twin, also of packed batches."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.broker.system import SystemClock
from headrace.wire.batches import decode_records, encode_batch, iterate_headers
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests.broker.data_path import EARLIEST, MAX_TIMESTAMP, batch, create, delete_records, fetch, offset_at, produce
from tests.broker.group_broker import RawClient, running

HOUR_MS = 3_600_000


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        yield client


async def read(client: RawClient, topic: str, end: int) -> list[Record]:
    """All records of partition 0 below `end`."""
    records: list[Record] = []
    at = (await offset_at(client, topic, EARLIEST)).offset
    while at < end:
        data = bytes((await fetch(client, topic, at)).records)
        for position, header in iterate_headers(data):
            records += [r for r in decode_records(data[position : position + header.size]) if r.offset >= at]
        at = records[-1].offset + 1
    return records


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_log_append_time_is_the_broker_s_and_told(client: RawClient, codec: Compression) -> None:
    await create(client, "t", message_timestamp_type="LogAppendTime")
    before_ms = SystemClock().now_ms()
    answer = await produce(client, "t", batch(b"a", b"b", timestamp=5, codec=codec))
    assert before_ms <= answer.log_append_time_ms <= SystemClock().now_ms()
    records = await read(client, "t", 2)
    assert [(r.timestamp, r.value) for r in records] == [(answer.log_append_time_ms, v) for v in (b"a", b"b")]
    far = await produce(client, "t", batch(b"c", timestamp=before_ms + 9 * HOUR_MS))
    assert far.error_code == 0, "what the producer says does not count"


async def test_a_duplicate_is_told_the_time_of_the_first(client: RawClient) -> None:
    await create(client, "t", message_timestamp_type="LogAppendTime")
    sent = encode_batch([Record(0, 5, None, b"v", ())], producer_id=1, producer_epoch=0, base_sequence=0)
    first, second = await produce(client, "t", sent), await produce(client, "t", sent)
    assert first.log_append_time_ms > 0
    assert (second.base_offset, second.log_append_time_ms) == (first.base_offset, first.log_append_time_ms)


async def test_the_type_may_change_between_batches(client: RawClient) -> None:
    await create(client, "t")
    first = await produce(client, "t", batch(b"a", timestamp=1_700_000_000_000))
    assert first.log_append_time_ms == -1
    assert [r.timestamp for r in await read(client, "t", 1)] == [1_700_000_000_000]
    stamped = encode_batch([Record(0, 5, None, b"v", ())], log_append_time=True)
    assert (await produce(client, "t", stamped)).error_code == ErrorCode.INVALID_TIMESTAMP


async def test_times_out_of_bounds_are_refused_and_the_bounds_are_the_topic_s(client: RawClient) -> None:
    await create(client, "t", message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS))
    await create(client, "default")
    now_ms, margin_ms = int(time.time() * 1000), 600_000
    for shift_ms, topic, error in (
        (-HOUR_MS + margin_ms, "t", 0),
        (HOUR_MS - margin_ms, "t", 0),
        (-HOUR_MS - margin_ms, "t", ErrorCode.INVALID_TIMESTAMP),
        (HOUR_MS + margin_ms, "t", ErrorCode.INVALID_TIMESTAMP),
        (-now_ms, "default", 0),
        (HOUR_MS + margin_ms, "default", ErrorCode.INVALID_TIMESTAMP),
    ):
        answer = await produce(client, topic, batch(b"v", timestamp=now_ms + shift_ms))
        assert answer.error_code == error, (shift_ms, topic, answer.error_message)
    timeless = encode_batch([Record(0, -1, None, b"v", ())])
    assert (await produce(client, "t", timeless)).error_code == 0, "no time is no wrong time"
    mixed = encode_batch([Record(0, 1, None, b"old", ()), Record(1, now_ms, None, b"new", ())])
    assert (await produce(client, "t", mixed)).error_code == ErrorCode.INVALID_TIMESTAMP


numbers = count()
times = st.integers(0, 40)
batches = st.lists(
    st.tuples(st.lists(times, min_size=1, max_size=4), st.sampled_from(list(Compression))), min_size=1, max_size=12
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([([0, 0, 1, 0], Compression.NONE)], 3, False)
@given(batches, st.integers(0, 48), st.booleans())
async def test_look_ups_by_time_equal_a_walk_over_all_records(
    client: RawClient, sent: list[tuple[list[int], Compression]], deleted: int, stamped: bool
) -> None:
    topic = f"t{next(numbers)}"
    kind = "LogAppendTime" if stamped else "CreateTime"
    await create(client, topic, segment_bytes="1024", index_interval_bytes="0", message_timestamp_type=kind)
    end = 0
    for stamps, codec in sent:
        records = [Record(at, stamp, None, b"x" * 90, ()) for at, stamp in enumerate(stamps)]
        answer = await produce(client, topic, encode_batch(records, compression=codec))
        assert (answer.error_code, answer.base_offset) == (0, end)
        end += len(records)
    if deleted <= end:
        await delete_records(client, topic, [deleted])
    kept = await read(client, topic, end)
    for timestamp in {*range(42), *(r.timestamp for r in kept), *(r.timestamp + 1 for r in kept)}:
        found = await offset_at(client, topic, timestamp)
        twin = next(((r.offset, r.timestamp) for r in kept if r.timestamp >= timestamp), (-1, -1))
        assert (found.offset, found.timestamp) == twin, timestamp
    highest = await offset_at(client, topic, MAX_TIMESTAMP)
    twin = max(((r.timestamp, -r.offset) for r in kept), default=(-1, 1))
    assert (highest.timestamp, -highest.offset) == twin
