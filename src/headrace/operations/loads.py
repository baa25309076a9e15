"""The registered brokers with their load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.net.client.cluster import Cluster
from headrace.net.client.disks import DiskView, disks
from headrace.net.client.members import BrokerView, Members


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


async def listed(cluster: Cluster) -> list[Listed]:
    """All registered brokers. Raises ClientError."""
    members = Members(cluster)
    brokers = await members.brokers()
    view = await members.metadata()
    room = await disks(cluster, [broker.id for broker in brokers if not broker.fenced])
    parts = [part for topic in view.topics.values() for part in topic.partitions]
    leads = Counter(int(part.leader) for part in parts)
    replicas = Counter(int(replica) for part in parts for replica in part.replicas)
    return loaded(brokers, leads, replicas, room)


def loaded(
    brokers: Iterable[BrokerView],
    leads: Mapping[int, int],
    replicas: Mapping[int, int],
    room: Mapping[int, DiskView],
) -> list[Listed]:
    """The brokers with the numbers of partitions that they lead, and that they hold."""
    return [Listed(each, leads.get(each.id, 0), replicas.get(each.id, 0), room.get(each.id)) for each in brokers]
