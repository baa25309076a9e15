"""The room on brokers' disks, as they tell it (DescribeLogDirs, KIP-827)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from headrace.base.ids import BrokerId
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError
from headrace.wire.apis import ApiKey
from headrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest


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
    found = await asyncio.gather(*(_disk(cluster, broker) for broker in brokers))
    return {broker: disk for broker, disk in zip(brokers, found, strict=True) if disk is not None}


async def _disk(cluster: Cluster, broker: int) -> DiskView | None:
    try:
        connection = await cluster.broker_connection(BrokerId(broker))
        response = await connection.request(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(), timeout_ms=cluster.request_timeout_ms
        )
    except (ClientError, OSError, TimeoutError):
        return None
    told = [result for result in response.results if result.total_bytes >= 0]
    if not told:
        return None
    return DiskView(sum(each.total_bytes for each in told), sum(each.usable_bytes for each in told))
