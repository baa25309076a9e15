"""The room on brokers' disks, and the sizes of logs, as they tell it (DescribeLogDirs, KIP-113 and KIP-827)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.base.ids import BrokerId
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError
from headrace.wire.apis import ApiKey
from headrace.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)


class DiskView(NamedTuple):
    """Bytes of one broker's disks, all together."""

    total: int
    usable: int

    @property
    def percent(self) -> int:
        """How much of it is used."""
        return round(100 * (self.total - self.usable) / self.total) if self.total else 0


async def disks(cluster: Cluster, brokers: Collection[int]) -> dict[int, DiskView]:
    """The disks of these brokers; those that do not answer, or do not tell, are left out."""
    found = await asyncio.gather(*(_results(cluster, broker, ()) for broker in brokers))
    return _disks(dict(zip(brokers, found, strict=True)))


async def sizes(
    cluster: Cluster, brokers: Collection[int]
) -> tuple[dict[int, dict[tuple[str, int], int]], dict[int, DiskView]]:
    """For each broker that answers, the bytes of each log that it holds, by topic and partition. Their disks, too."""
    found = dict(zip(brokers, await asyncio.gather(*(_results(cluster, each, None) for each in brokers)), strict=True))
    logs = {
        broker: {
            (topic.name, part.partition_index): part.partition_size
            for result in results
            for topic in result.topics
            for part in topic.partitions
        }
        for broker, results in found.items()
        if results
    }
    return logs, _disks(found)


def _disks(found: Mapping[int, Sequence[DescribeLogDirsResult]]) -> dict[int, DiskView]:
    told = {broker: [result for result in results if result.total_bytes >= 0] for broker, results in found.items()}
    return {
        broker: DiskView(sum(each.total_bytes for each in results), sum(each.usable_bytes for each in results))
        for broker, results in told.items()
        if results
    }


async def _results(
    cluster: Cluster, broker: int, topics: tuple[DescribableLogDirTopic, ...] | None
) -> Sequence[DescribeLogDirsResult]:
    """The broker's directories, with the logs of these topics; None: of all. Empty where it does not answer."""
    try:
        connection = await cluster.broker_connection(BrokerId(broker))
        response = await connection.request(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=topics), timeout_ms=cluster.request_timeout_ms
        )
    except (ClientError, OSError, TimeoutError):
        return ()
    results: Sequence[DescribeLogDirsResult] = response.results
    return results
