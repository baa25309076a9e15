"""The registered brokers with their load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.net.client.cluster import Cluster
from headrace.net.client.disks import DiskView, disks
from headrace.net.client.members import BrokerView, Members
from headrace.net.client.view import TopicView


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
    return loaded(brokers, view.topics.values(), room)


def loaded(brokers: Iterable[BrokerView], topics: Iterable[TopicView], room: Mapping[int, DiskView]) -> list[Listed]:
    """The brokers with what these topics make them lead and hold."""
    parts = [part for topic in topics for part in topic.partitions]
    leads = Counter(int(part.leader) for part in parts)
    replicas = Counter(int(replica) for part in parts for replica in part.replicas)
    return [Listed(each, leads[each.id], replicas[each.id], room.get(each.id)) for each in brokers]
