"""The loading time of a new coordinator: `python -m benchmarks.micro.groups [--groups 100000] [--offsets 10] [--stale
1]`.

Writes that many groups, each with one member and its committed offsets. They go into the 50 partitions of the offsets
topic of a broker in this process. Each commit is repeated as often as `--stale` says. Then the broker loads all of them
again, like one that is elected for them. Prints the seconds until all are there (promised: 10 for 100,000), the longest
time that the event loop was held, and the resident memory. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.groups.service import OFFSETS_TOPIC
from headrace.broker.partitions.partition import Partition
from headrace.broker.system import SystemClock, system_random, tune_interpreter
from headrace.coordinators.groups import records
from headrace.coordinators.groups.events import GroupFormed, GroupRecord, MemberRecord, OffsetCommitted
from headrace.coordinators.groups.model import Commit, NamedPartition
from headrace.coordinators.partitioning import partition_for
from headrace.storage.disk import LocalDisk
from headrace.wire.batches import encode_batch
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient

LOAD_S_MAX: Final = 10.0
GROUPS: Final = 100_000
SHARDS: Final = 50
RECORDS_PER_BATCH: Final = 1_000
TIMESTAMP_MS: Final = 1_700_000_000_000
SHARE: Final = bytes(60)
"""A subscription, or an assignment: opaque here."""
TICK_S: Final = 0.001


def written(group: str, offsets: int, stale: int, topic_id: TopicId) -> Iterator[GroupRecord]:
    """One group's records, the older commits first."""
    member = MemberRecord(
        id=f"consumer-{group}-9f6c1e0a-5d1b-4a53-8a4e-3b7d2f1c0e55",
        client_id=f"consumer-{group}",
        client_host="/127.0.0.1",
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=300_000,
        subscription=SHARE,
        assignment=SHARE,
    )
    yield GroupFormed(
        group=group,
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader=member.id,
        since_ms=TIMESTAMP_MS,
        members=(member,),
    )
    for offset in range(stale + 1):
        commit = Commit(
            offset=Offset(offset), leader_epoch=LeaderEpoch(0), timestamp_ms=TIMESTAMP_MS, topic_id=topic_id
        )
        for index in range(offsets):
            yield OffsetCommitted(group=group, partition=NamedPartition("orders", index), commit=commit)


def fill(partition: Partition, groups: list[str], offsets: int, stale: int, topic_id: TopicId) -> int:
    """Append what these groups would have written; the number of records."""
    lines = (records.encode(record) for group in groups for record in written(group, offsets, stale, topic_id))
    count = 0
    while batch := list(islice(lines, RECORDS_PER_BATCH)):
        data = encode_batch([Record(at, TIMESTAMP_MS, key, value) for at, (key, value) in enumerate(batch)])
        outcome = partition.append(data, needs_isr=True)
        assert hasattr(outcome, "end"), outcome
        count += len(batch)
    return count


async def measure(directory: Path, groups: int, offsets: int, stale: int) -> None:
    configs = {"offsets.topic.num.partitions": str(SHARDS)}
    config = BrokerConfig(data=directory, port=0, configs=configs)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        async with RawClient(f"{broker.host}:{broker.port}") as client:
            await client.create_topic("orders", max(offsets, 1))
            assert (await client.ask(2, FindCoordinatorRequest(key="g"))).error_code == 0
        names: list[list[str]] = [[] for _ in range(SHARDS)]
        for number in range(groups):
            names[partition_for(f"group-{number:06}", SHARDS)].append(f"group-{number:06}")
        image = broker.image
        total = 0
        for index in range(SHARDS):
            key = TopicPartition(image.topic_ids[OFFSETS_TOPIC], PartitionIndex(index))
            partition = broker.parts.partitions.find(key, image)
            assert isinstance(partition, Partition)
            total += fill(partition, names[index], offsets, stale, image.topic_ids["orders"])
            await asyncio.sleep(0)
        service = broker.parts.requests.services.groups
        for shard in list(service.shards):
            shard.lose()
        tune_interpreter()
        held_s, begun, busy = 0.0, time.perf_counter(), time.process_time()
        while len(service.shards) < SHARDS or not all(shard.loaded for shard in service.shards):
            before = time.perf_counter()
            await asyncio.sleep(TICK_S)
            held_s = max(held_s, time.perf_counter() - before - TICK_S)
        took_s, busy_s = time.perf_counter() - begun, time.process_time() - busy
        assert sum(1 for _ in service.groups()) == groups
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(
            f"{groups} groups of {total} records loaded in {took_s:.2f} s (promised {LOAD_S_MAX:.0f}), "
            f"{busy_s:.2f} s of processor time, "
            f"the loop was late by {held_s * 1000:.0f} ms at most, {pages * 4096 / 1e6:.0f} MB resident"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--offsets", type=int, default=10)
    parser.add_argument("--stale", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), chosen.groups, chosen.offsets, chosen.stale))


if __name__ == "__main__":
    main()
