"""The room on brokers' disks, and the sizes of logs, as they tell it (DescribeLogDirs, KIP-113 and KIP-827)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from headrace.base.ids import BrokerId
from headrace.base.limits import LOOK_PARTITIONS_PER_ASK_MAX
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
    cluster: Cluster, places: Mapping[int, Sequence[tuple[str, int]]]
) -> tuple[dict[tuple[str, int], int], dict[int, DiskView]]:
    """The bytes of logs, as the brokers that are named for them tell, and the disks of these brokers. `places`: topics
    and partitions by broker, those of a topic together. Brokers that do not answer are left out.
    """
    told = await asyncio.gather(*(_logs(cluster, broker, some) for broker, some in places.items()))
    logs = {place: size for found, _ in told for place, size in found.items()}
    return logs, _disks({broker: results for broker, (_, results) in zip(places, told, strict=True)})


async def _logs(
    cluster: Cluster, broker: int, places: Sequence[tuple[str, int]]
) -> tuple[dict[tuple[str, int], int], Sequence[DescribeLogDirsResult]]:
    """Some at once: a long question holds the event loops of both sides."""
    logs: dict[tuple[str, int], int] = {}
    results: Sequence[DescribeLogDirsResult] = ()
    for first in range(0, max(1, len(places)), LOOK_PARTITIONS_PER_ASK_MAX):
        some = places[first : first + LOOK_PARTITIONS_PER_ASK_MAX]
        topics = tuple(
            DescribableLogDirTopic(topic=name, partitions=tuple(index for _, index in group))
            for name, group in groupby(some, key=lambda place: place[0])
        )
        results = await _results(cluster, broker, topics)
        if not results:
            break
        for result in results:
            for topic in result.topics:
                logs.update(((topic.name, part.partition_index), part.partition_size) for part in topic.partitions)
    return logs, results


def _disks(found: Mapping[int, Sequence[DescribeLogDirsResult]]) -> dict[int, DiskView]:
    told = {broker: [result for result in results if result.total_bytes >= 0] for broker, results in found.items()}
    return {
        broker: DiskView(sum(each.total_bytes for each in results), sum(each.usable_bytes for each in results))
        for broker, results in told.items()
        if results
    }


async def _results(
    cluster: Cluster, broker: int, topics: tuple[DescribableLogDirTopic, ...]
) -> Sequence[DescribeLogDirsResult]:
    """The broker's directories, with the logs of these topics. Empty where it does not answer."""
    try:
        connection = await cluster.broker_connection(BrokerId(broker))
        response = await connection.request(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=topics), timeout_ms=cluster.request_timeout_ms
        )
    except (ClientError, OSError, TimeoutError):
        return ()
    results: Sequence[DescribeLogDirsResult] = response.results
    return results
