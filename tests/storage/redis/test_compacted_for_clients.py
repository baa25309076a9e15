"""Java, librdkafka and aiokafka read the same of a compacted log in Redis: of each key what compaction has to keep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.broker.data_path import produce
from tests.broker.group_broker import until
from tests.interop.support.kafka_batches import KafkaBatches, Row
from tests.spark.world import consumed
from tests.storage.redis.test_redis_broker import running
from tools import kafka_jars
from tools.servers.redis_servers import RedisServer

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

CLEANED_OFTEN = {"log.cleaner.backoff.ms": "10"}
COMPACT = {"cleanup_policy": "compact", "segment_bytes": "1024", "min_cleanable_dirty_ratio": "0"}
BATCHES = 60
TIME_MS = 1_700_000_000_000


def records(number: int) -> list[Record]:
    """Some keys come once, some often, and some are deleted."""
    pairs = [
        (b"often", b"%d" % number),
        (b"once-%d" % number, b"value" * (number % 7)),
        (b"gone-%d" % (number % 5), None if number > BATCHES // 2 else b"x"),
    ]
    return [Record(at, TIME_MS + number, key, value, ()) for at, (key, value) in enumerate(pairs)]


async def test_every_client_reads_what_is_left(server: RedisServer, tmp_path: Path) -> None:
    async with running(server, tmp_path, CLEANED_OFTEN, **COMPACT) as world:
        written: dict[int, tuple[bytes | None, bytes | None]] = {}
        for number in range(BATCHES):
            some = records(number)
            data = encode_batch(some, compression=Compression(number % 5))
            placed = await produce(world.client, "t", data)
            assert placed.error_code == 0
            written |= {placed.base_offset + each.offset: (each.key, each.value) for each in some}
        await until(lambda: world.partition.log.gaps_below > 2 * BATCHES)
        bootstrap = world.client.address
        with KafkaBatches() as java:
            by_java = await asyncio.to_thread(java.consumed, bootstrap, ["t"])
        by_librdkafka = await asyncio.to_thread(consumed, bootstrap, ["t"])
        by_aiokafka = await read(bootstrap)
        assert by_librdkafka == by_java
        assert by_aiokafka == by_java
        left = {row[2]: row[5:7] for row in by_java}
        assert left.items() <= written.items()
        assert len(left) < len(written)
        last = {key: offset for offset, (key, _) in written.items()}
        assert set(last.values()) <= left.keys(), "tombstones stay for a day"


async def read(bootstrap: str) -> list[Row]:
    place, found = TopicPartition("t", 0), list[Row]()
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for each in (await consumer.getmany(timeout_ms=1_000)).get(place, []):
                row = ("t", 0, each.offset, each.timestamp, each.timestamp_type, each.key, each.value)
                found.append((*row, tuple(each.headers)))
    return found
