"""The registered brokers with their load, for `headrace broker list`."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from headrace.cli.command_config import reached
from headrace.net.client.disks import DiskView, disks
from headrace.net.client.members import BrokerView, Members
from headrace.net.loops import run


class Listed(NamedTuple):
    """One broker."""

    view: BrokerView
    leads: int
    replicas: int
    disk: DiskView | None
    """None: it does not answer, or does not tell."""

    def fields(self) -> dict[str, Any]:
        disk = self.disk
        return {
            "leads": self.leads,
            "replicas": self.replicas,
            "disk_bytes": None if disk is None else disk.total,
            "disk_bytes_left": None if disk is None else disk.usable,
        }


def listed(bootstrap: str) -> list[Listed]:
    """All registered brokers. Raises ClientError."""

    async def work() -> list[Listed]:
        async with reached(bootstrap) as cluster:
            members = Members(cluster)
            brokers = await members.brokers()
            topics = (await members.metadata()).topics.values()
            parts = [part for topic in topics for part in topic.partitions]
            room = await disks(cluster, [broker.id for broker in brokers if not broker.fenced])
        leads = Counter(int(part.leader) for part in parts)
        replicas = Counter(int(replica) for part in parts for replica in part.replicas)
        return [Listed(each, leads[each.id], replicas[each.id], room.get(each.id)) for each in brokers]

    return run(work())
