"""Records that the log no longer has are read from the durable store, as one stream with the log (KIP-405)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.broker.handlers import list_offsets, plain_fetch
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.context import RequestContext
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.reading import FoundOffset
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.blocks import Block
from headrace.wire.batches import decode_records, iterate_headers
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.data_path import batch, create, delete_records, fetch, produce
from tests.broker.group_broker import until
from tests.broker.tiered import PER_BATCH, SETTLED, TIME, Tiered, tiered, values

EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -3, -4, -5


async def look_up(here: Tiered, timestamp: int) -> tuple[int, int, int]:
    """Error, offset and epoch."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=(asked,)),))
    found = (await here.client.ask(10, request)).topics[0].partitions[0]
    return found.error_code, found.offset, found.leader_epoch


async def stream(here: Tiered, start: int, end: int) -> list[tuple[int, bytes | None]]:
    """The records that a consumer reads from `start` to `end`: offsets and values, in order."""
    read: list[tuple[int, bytes | None]] = []
    offset = start
    while offset < end:
        error, records = await here.read(offset)
        assert error == 0
        for at, header in iterate_headers(records):
            for record in decode_records(records[at : at + header.size]):
                if record.offset >= offset:
                    read.append((record.offset, record.value))
                    offset = record.offset + 1
    return read


async def deleted(here: Tiered, before: int) -> tuple[int, int]:
    """Error and low watermark."""
    (found,) = await delete_records(here.client, "t", [before])
    return found.error_code, found.low_watermark


def expected(batches: int) -> list[tuple[int, bytes]]:
    """The oracle: what was produced."""
    return list(enumerate(value for number in range(batches) for value in values(number)))


async def test_history_and_log_are_one_stream_across_a_restart(tmp_path: Path) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create()
            await here.produce(0, 40)
            await here.local_start(SETTLED)
            assert await stream(here, 0, 80) == expected(40)
            assert await stream(here, 33, 80) == expected(40)[33:]
        async with tiered(tmp_path) as here:
            assert here.partition.start_offset == 0
            assert await stream(here, 0, 80) == expected(40)
            await here.produce(40, 40)
            await here.local_start(SETTLED + 80)
            assert await stream(here, 0, 160) == expected(80)


@pytest.mark.parametrize("version", [9, 12, 17])
async def test_both_roads_of_fetch_answer_alike_from_history(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short one is taken where it is in memory."""
    taken: list[bool] = []
    serve, is_short = plain_fetch._Road.serve, [True]

    def switched(self: Any, frame: memoryview, connection: Any) -> Any:
        answer = serve(self, frame, connection) if is_short[0] else None
        taken.append(answer is not None)
        return answer

    monkeypatch.setattr(plain_fetch._Road, "serve", switched)
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        assert await stream(here, 0, 80) == expected(40)
        topic_id = here.partition.topic_partition.topic_id
        local = int(here.partition.log.log_start_offset)
        for offset in (-1, 0, 1, 33, local - 1, local, 79, 80, 81):
            for limit, isolation in ((0, 0), (300, 0), (1 << 20, 0), (1 << 20, 1)):
                asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=limit)
                topic = FetchTopic(topic="t", topic_id=topic_id, partitions=(asked,))
                request = FetchRequest(
                    topics=(topic,), max_bytes=1 << 20, session_epoch=-1, isolation_level=isolation, min_bytes=0
                )
                answers = []
                for is_short[0] in (True, False):
                    taken.clear()
                    answers.append(bytes(await here.client.ask_undecoded(version, request)))
                    assert taken == [is_short[0] and 0 <= offset <= 80], offset
                assert answers[0] == answers[1], (offset, limit)


async def test_offsets_and_times_are_looked_up_in_history(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        local = int(here.partition.log.log_start_offset)
        assert await look_up(here, EARLIEST) == (0, 0, 0)
        assert await look_up(here, EARLIEST_LOCAL) == (0, local, 0)
        error, tiered_end, _ = await look_up(here, LATEST_TIERED)
        assert (error, tiered_end >= local - 1) == (0, True)
        for offset in (0, 1, 2, 33, local - 1, local, 79):
            time = TIME + 10 * (offset // PER_BATCH) + offset % PER_BATCH
            assert (await look_up(here, time))[:2] == (0, offset)
        assert (await look_up(here, TIME + 5))[:2] == (0, 2)
        assert (await look_up(here, MAX_TIMESTAMP))[:2] == (0, 79)
        assert (await look_up(here, TIME + 10_000))[:2] == (0, -1)


async def test_the_highest_time_may_lie_in_history(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 3)
        late = await produce(here.client, "t", batch(b"late", timestamp=TIME + 90_000))
        assert late.base_offset == 6
        for _ in range(30):
            await produce(here.client, "t", batch(*[b"v" * 200] * 2, timestamp=TIME))
        await here.local_start(40)
        assert (await look_up(here, MAX_TIMESTAMP))[:2] == (0, 6)
        assert (await look_up(here, TIME + 80_000))[:2] == (0, 6)
        assert await deleted(here, 7) == (0, 7)
        assert (await look_up(here, MAX_TIMESTAMP))[1] >= 7
        assert (await look_up(here, TIME + 80_000))[:2] == (0, -1)


async def test_epochs_older_than_the_log_end_where_history_says(tmp_path: Path) -> None:
    """Each start of the broker is another leadership."""
    ends = []
    async with asyncio.timeout(150):
        for life in range(4):
            async with tiered(tmp_path) as here:
                if not life:
                    await here.create()
                epoch = here.partition.leader_epoch
                await here.produce(12 * life, 12)
                ends.append((epoch, PER_BATCH * 12 * (life + 1)))
        async with tiered(tmp_path) as here:
            await here.produce(48, 12)
            await here.local_start(100)
            assert here.partition.log.epoch_at(here.partition.log.log_start_offset) > ends[-1][0]
            for epoch, end in ends:
                asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
                topic = OffsetForLeaderTopic(topic="t", partitions=(asked,))
                answer = await here.client.ask(4, OffsetForLeaderEpochRequest(replica_id=-1, topics=(topic,)))
                found = answer.topics[0].partitions[0]
                assert (found.error_code, found.leader_epoch, found.end_offset) == (0, epoch, end)


async def test_records_are_deleted_of_history_and_stay_so(tmp_path: Path) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create()
            await here.produce(0, 40)
            await here.local_start(SETTLED)
            assert await deleted(here, 33) == (0, 33)
            assert (await look_up(here, EARLIEST))[:2] == (0, 33)
            assert (await here.read(32))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
            assert await stream(here, 33, 80) == expected(40)[33:]
            assert (await look_up(here, TIME))[:2] == (0, 33)
        async with tiered(tmp_path) as here:
            assert (await look_up(here, EARLIEST))[:2] == (0, 33)
            assert await stream(here, 33, 80) == expected(40)[33:]


async def test_nothing_leaves_the_log_before_the_store_has_it(tmp_path: Path) -> None:
    failing = Unreliable(tmp_path, puts=True)
    async with asyncio.timeout(150), tiered(tmp_path, objects=failing) as here:
        await here.create(retention_ms="1", local_retention_ms="0")
        await here.produce(0, 20)
        await failing.tried.wait()
        here.partition.keep_house(TIME * 2, producers_since_ms=0)
        assert here.partition.log.log_start_offset == 0


class Unreliable(DirectoryObjects):
    """A store that fails reads, or puts, while it is told to."""

    def __init__(self, root: Path, *, puts: bool = False) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.fails_puts = puts
        self.fails_reads = False
        self.tried = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def put(self, key, data, *, if_absent=True):  # type: ignore[no-untyped-def]  # as the real one
        if self.fails_puts:
            self._loop.call_soon_threadsafe(self.tried.set)
            raise StorageFailure("scripted")
        return super().put(key, data, if_absent=if_absent)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if self.fails_reads:
            raise StorageFailure("scripted")
        return super().get_range(key, start, length)


async def test_a_store_that_fails_is_a_retriable_error_and_the_log_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.durable.history.HISTORY_RETRY_MS", 0)
    store = Unreliable(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, objects=store) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        store.fails_reads = True
        assert (await here.read(0))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await here.read(79))[0] == 0
        assert (await look_up(here, EARLIEST)) == (0, 0, -1)
        assert (await look_up(here, TIME))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        store.fails_reads = False
        assert await stream(here, 0, 80) == expected(40)


async def test_damaged_history_is_never_given_out(tmp_path: Path) -> None:
    """A value, what a batch's own CRC leaves out, the footer, the whole object: one of each, and all else is served."""
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        catalog = here.partition.history
        assert catalog is not None
        damaged = [entry.descriptor for entry in catalog][2:12:2]
        for segment, at in zip(damaged, (200, 7, 15, -60, None), strict=True):
            path = tmp_path / "store" / segment.key
            data = bytearray(path.read_bytes())
            path.unlink()
            if at is not None:
                data[at] ^= 1
                path.write_bytes(data)
        start = 0
        for segment in damaged:
            assert await stream(here, start, int(segment.start_offset)) == expected(40)[start : segment.start_offset]
            assert (await here.read(segment.start_offset))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            start = segment.next_offset
        assert await stream(here, start, 80) == expected(40)[start:]


GATE_S = 90
"""A read of `Slow` that nobody lets go ends then, or the process would wait for its thread."""


class Slow(DirectoryObjects):
    """A store whose reads wait until they are let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.reads = 0
        self.gate = threading.Event()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads += 1
        assert self.gate.wait(GATE_S), "nobody let the reads go"
        return super().get_range(key, start, length)


async def test_a_slow_store_holds_up_nobody_who_reads_the_log(tmp_path: Path) -> None:
    """Another fetch, and the other partition of the same one; and ten who want the same block have it read once."""
    store = Slow(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, objects=store) as here:
        await here.create()
        await create(here.client, "hot")
        await produce(here.client, "hot", batch(b"h"))
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        wanted = [
            FetchTopic(topic=name, partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),))
            for name in ("t", "hot")
        ]
        request = FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20, topics=tuple(wanted))
        cold, hot = (topic.partitions[0] for topic in (await here.client.ask(11, request)).responses)
        assert (cold.error_code, bytes(cold.records or b""), cold.log_start_offset) == (0, b"", 0)
        assert hot.records
        soon = FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 20, topics=(wanted[0],))
        assert not (await here.client.ask(11, soon)).responses[0].partitions[0].records
        assert (await fetch(here.client, "hot", 0)).records
        begun = store.reads
        store.gate.set()
        assert await stream(here, 0, 12) == expected(6)
        assert begun == 1


async def test_a_first_batch_over_the_limits_is_given_whole(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        part = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1)
        request = FetchRequest(
            max_wait_ms=10_000, min_bytes=1, max_bytes=1, topics=(FetchTopic(topic="t", partitions=(part,)),)
        )
        found = (await here.client.ask(11, request)).responses[0].partitions[0]
        headers = [header for _, header in iterate_headers(bytes(found.records))]
        assert [(header.base_offset, header.count) for header in headers] == [(2, 2)]
        assert (found.high_watermark, found.log_start_offset) == (80, 0)


async def test_memory_for_history_is_bounded(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, {"durable.cache.bytes": "5000"}) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        readers = here.broker.parts.readers
        assert readers is not None
        history = readers.history
        for start in (0, 40, 0):
            assert await stream(here, start, 60) == expected(40)[start:60]
            assert 0 < history.cached_bytes <= 5000


async def test_what_leaves_the_log_while_history_is_looked_through_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then it is in history alone."""
    look = list_offsets._in_history

    async def and_delete(partition: Partition, timestamp: int, context: RequestContext) -> FoundOffset | None:
        found = await look(partition, timestamp, context)
        partition.log.delete_records_before(Offset(60))
        return found

    async with asyncio.timeout(150), tiered(tmp_path, {"log.retention.check.interval.ms": "3600000"}) as here:
        await here.create()
        await here.produce(0, 40)
        await until(lambda: here.partition.history is not None and here.partition.history.next_offset >= 70)
        monkeypatch.setattr(list_offsets, "_in_history", and_delete)
        assert (await look_up(here, TIME + 10 * 25))[:2] == (0, 50)


async def test_what_the_cluster_has_deleted_is_not_given_out_of_the_log(tmp_path: Path) -> None:
    """Before this broker has deleted it."""
    async with asyncio.timeout(150), tiered(tmp_path, {"log.retention.check.interval.ms": "3600000"}) as here:
        await here.create()
        await here.produce(0, 40)
        await until(lambda: here.partition.history is not None and here.partition.history.next_offset >= 70)
        assert here.partition.history is not None
        here.partition.history = here.partition.history.deleted(Offset(33), ())
        assert here.partition.log.log_start_offset == 0
        assert (await here.read(32))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await look_up(here, EARLIEST))[:2] == (0, 33)
        assert await stream(here, 33, 80) == expected(40)[33:]


async def test_where_history_begins_is_told_though_the_store_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "HISTORY_EPOCH_MS_MAX", 1)
    store = Slow(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, objects=store) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        assert await look_up(here, EARLIEST) == (0, 0, -1)
        store.gate.set()


async def test_a_small_part_of_a_block_does_not_hold_the_rest_in_memory(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create(segment_bytes="4096")
        await here.produce(0, 40)
        await here.local_start(60)
        readers, catalog = here.broker.parts.readers, here.partition.history
        assert readers is not None
        history = readers.history
        assert catalog is not None
        await here.read(0)
        block = history.find(here.partition.topic_partition, catalog, 0)
        assert isinstance(block, Block)
        assert block.read(0, 1 << 20, 80, at_least_one=True).obj is block.data
        last = block.next_offset - 1
        small = block.read(last, 1 << 20, 80, at_least_one=True)
        assert 2 * len(small) < len(block.data)
        assert small.obj is not block.data
        assert bytes(small) == block.data[-len(small) :]
