"""The cost of hostile requests: `python -m benchmarks.micro.hostile`.

For each kind, it prints the event loop's processor time for one of them, and the longest time that it held the loop
(promised: LOOP_HELD_MS_MAX at most). A whole broker runs in this process, on asyncio's own loop, with each callback
timed. Requests come as a socket would bring them, in reads of 256 KB, to a connection of their own whose transport
drops its output. With `--rss`: `benchmarks.micro.strangers`.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import tempfile
import time
from asyncio import events
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from benchmarks.micro import strangers
from headrace.base.limits import LOOP_HELD_MS_MAX
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.net.server.connection import Connection
from headrace.net.server.listener import Listener
from headrace.storage.disk import LocalDisk
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.headers import encode_request_frame, encode_request_header
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from headrace.wire.records import Record
from tests.broker.data_path import create, produce_request
from tests.broker.group_broker import QUICK, RawClient

READ_BYTES: Final = 256 * 1024
PARTITIONS: Final = 2_000
MANY: Final = 10_000
TIMES: Final = 5
"""Requests of each kind; the median counts."""
PATIENCE_S: Final = 60.0


class Deaf(asyncio.Transport):
    """Drops what is written; tells of the first answer and of the end."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.settled = asyncio.Event()
        self._connection = connection
        self._lost = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, list_of_data: Any) -> None:
        self.settled.set()

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def abort(self) -> None:
        if not self._lost:
            self._lost = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)
        self.settled.set()


class Meter:
    """Times every callback of the loop while it is on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._run: Any = vars(events.Handle)["_run"]

    def __enter__(self) -> Meter:
        run, seconds = self._run, self.seconds

        def timed(handle: Any) -> None:
            begun = time.thread_time()
            run(handle)
            seconds.append(time.thread_time() - begun)

        setattr(events.Handle, "_run", timed)  # noqa: B010  # asyncio offers no other way
        return self

    def __exit__(self, *_: object) -> None:
        setattr(events.Handle, "_run", self._run)  # noqa: B010


async def feed(listener: Listener, data: bytes) -> tuple[float, float]:
    """One request: seconds in all, and of the longest callback."""
    loop = asyncio.get_running_loop()
    connection = Connection(listener)
    transport = Deaf(connection)
    connection.connection_made(transport)
    with Meter() as meter:
        for at in range(0, len(data), READ_BYTES):
            loop.call_soon(connection.data_received, data[at : at + READ_BYTES])
        async with asyncio.timeout(PATIENCE_S):
            await transport.settled.wait()
    transport.abort()
    return sum(meter.seconds), max(meter.seconds)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def asked(key: ApiKey, version: int, request: Any) -> bytes:
    codec = api(int(key))
    assert codec is not None
    return b"".join(bytes(part) for part in encode_request_frame(codec, version, 7, "hostile", request))


def wrong_crc(size: int) -> bytes:
    data = bytearray(encode_batch([Record(0, 1_700_000_000_000, None, bytes(size))]))
    data[-1] ^= 1
    return bytes(data)


def produced(topic: str, records: bytes) -> bytes:
    return asked(ApiKey.PRODUCE, 9, produce_request(topic, records))


def bomb(codec: Compression) -> bytes:
    return encode_batch([Record(0, 1_700_000_000_000, b"k", bytes(400_000_000))], compression=codec)


def fetched(offset: int) -> bytes:
    wanted = tuple(FetchPartition(partition=at, fetch_offset=offset, partition_max_bytes=1) for at in range(PARTITIONS))
    topics = (FetchTopic(topic="wide", partitions=wanted),)
    return asked(ApiKey.FETCH, 11, FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics, session_epoch=-1))


def listed(timestamp: int) -> bytes:
    wanted = tuple(ListOffsetsPartition(partition_index=at, timestamp=timestamp) for at in range(PARTITIONS))
    topics = (ListOffsetsTopic(name="wide", partitions=wanted),)
    return asked(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(replica_id=-1, topics=topics))


def of_names(names: list[str], *, create_them: bool = False) -> bytes:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return asked(ApiKey.METADATA, 12, MetadataRequest(topics=topics, allow_auto_topic_creation=create_them))


def kinds() -> Iterator[tuple[str, bytes]]:
    header = encode_request_header(ApiKey.METADATA, 12, 7, "hostile")
    names = [f"no-such-{at}" for at in range(MANY)]
    keyed = [Record(at, 1_700_000_000_000, b"", b"") for at in range(3_600)]
    yield "a frame of garbage, 4 KB", framed(Random(1).randbytes(4096))
    yield "an API that nobody has", framed(struct.pack(">hhih", 9999, 0, 7, -1))
    yield "a version that is not served", framed(struct.pack(">hhih", ApiKey.METADATA, 99, 7, -1))
    yield "a body that is cut off", framed(header + b"\x05\x01")
    yield "a length of 2 GiB", struct.pack(">i", 2**31 - 1)
    yield "an array of 2^31 elements", framed(header + b"\xff\xff\xff\xff\x07")
    yield "a million topics in 20 MB, refused", framed(header + b"\xc1\x84\x3d" + bytes(18) * 1_000_000 + bytes(3))
    yield "10,000 tagged fields", framed(header + b"\1\0\0" + b"\x90\x4e" + tags(MANY))
    yield (
        "DescribeGroups of 200,000 empty names, refused",
        framed(
            encode_request_header(ApiKey.DESCRIBE_GROUPS, 5, 7, "hostile")
            + b"\xc1\x9a\x0c"
            + b"\1" * 200_000
            + bytes(2)
        ),
    )
    yield (
        "DescribeGroups of 30,000 empty names in 30 KB",
        framed(
            encode_request_header(ApiKey.DESCRIBE_GROUPS, 5, 7, "hostile") + b"\xb1\xea\x01" + b"\1" * 30_000 + bytes(2)
        ),
    )
    yield "wrong CRC, 16 KB", produced("wide", wrong_crc(16_000))
    yield "wrong CRC, 1 MB", produced("wide", wrong_crc(1_000_000))
    yield "a batch of 50 MB", produced("wide", wrong_crc(50_000_000))
    yield "a zstd bomb for compression.type=gzip", produced("packed", bomb(Compression.ZSTD))
    yield "a gzip bomb for a compacted topic", produced("compact", bomb(Compression.GZIP))
    yield "3,600 records of no bytes for a compacted topic", produced("compact", encode_batch(keyed))
    yield "Metadata of 10,000 unknown names", of_names(names)
    yield (
        "Metadata of 10,000 impossible names, to be made",
        of_names([f"no such {at}" for at in range(MANY)], create_them=True),
    )
    yield (
        "Metadata of 10,000 unknown ids",
        asked(
            ApiKey.METADATA,
            12,
            MetadataRequest(
                topics=tuple(MetadataRequestTopic(topic_id=UUID(int=at + 1), name=None) for at in range(MANY))
            ),
        ),
    )
    yield "Fetch beyond the end of 2,000 partitions", fetched(10**12)
    yield "Fetch below nothing of 2,000 partitions", fetched(-5)
    yield "Fetch of 2,000 partitions that are empty", fetched(0)
    yield "ListOffsets: latest of 2,000 partitions", listed(-1)
    yield "ListOffsets: an impossible time, 2,000 partitions", listed(-9)
    yield "ListOffsets: by time, 2,000 partitions", listed(1)
    yield (
        "OffsetFetch of 10,000 partitions of no group",
        asked(
            ApiKey.OFFSET_FETCH,
            7,
            OffsetFetchRequest(
                group_id="nobody", topics=(OffsetFetchRequestTopic(name="wide", partition_indexes=tuple(range(MANY))),)
            ),
        ),
    )
    yield "DescribeGroups of 10,000 unknown", asked(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(tuple(names)))
    yield (
        "FindCoordinator of 10,000 groups",
        asked(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=tuple(names))),
    )
    yield (
        "DescribeConfigs of 10,000 unknown topics",
        asked(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            DescribeConfigsRequest(
                resources=tuple(DescribeConfigsResource(resource_type=2, resource_name=name) for name in names)
            ),
        ),
    )
    yield (
        "DescribeConfigs of one topic, again and again",
        asked(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            DescribeConfigsRequest(resources=(DescribeConfigsResource(resource_type=2, resource_name="wide"),) * 2_000),
        ),
    )
    yield (
        "CreateTopics of 10,000 impossible names",
        asked(
            ApiKey.CREATE_TOPICS,
            5,
            CreateTopicsRequest(
                topics=tuple(CreatableTopic(name=name + "!", num_partitions=1, replication_factor=1) for name in names),
                timeout_ms=9_000,
            ),
        ),
    )
    yield (
        "DeleteTopics of 10,000 unknown",
        asked(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=tuple(names), timeout_ms=9_000)),
    )


def tags(count: int) -> bytes:
    """Tagged fields of no bytes, rising."""
    return b"".join(bytes([at & 127 | 128, at >> 7]) + b"\0" if at > 127 else bytes([at, 0]) for at in range(count))


async def measure() -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = BrokerConfig(data=Path(directory), port=0, configs={**QUICK, "log.scrub.interval.ms": "-1"})
        async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
            async with RawClient(f"{broker.host}:{broker.port}") as client:
                await create(client, "wide", PARTITIONS)
                await create(client, "packed", compression_type="gzip")
                await create(client, "compact", cleanup_policy="compact")
            assert broker._parts is not None
            print(f"{'':52}  {'us a request':>12}  {'longest, ms':>11}")
            for name, data in kinds():
                figures = sorted([await feed(broker._parts.requests.listener, data) for _ in range(TIMES)])
                longest_ms = sorted(longest for _, longest in figures)[TIMES // 2] * 1000
                mark = "  held the loop for too long" if longest_ms > LOOP_HELD_MS_MAX else ""
                print(f"{name:52}  {figures[TIMES // 2][0] * 1e6:12,.0f}  {longest_ms:11.1f}{mark}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.hostile", description=__doc__)
    parser.add_argument("--rss", action="store_true", help="watch what so many requests of each kind leave in memory")
    parser.add_argument("--requests", type=int, default=10_000, help="of each kind, with --rss; of bombs a tenth")
    parser.add_argument("--kind", default="", help="with --rss: only kinds with this in their names")
    wanted = parser.parse_args()
    if wanted.rss:
        return 0 if strangers.measure(wanted.requests, wanted.kind) else 1
    asyncio.run(measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
