"""Plans of topics: one that is made, and one that is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.offsets import EARLIEST, LATEST
from headrace.operations.changes.plan import Plan
from headrace.operations.histories import offsets_of


class NewTopic(NamedTuple):
    """A topic that is to be made."""

    name: str
    partitions: int
    """-1 where the broker says nothing of it: its default."""
    replicas: int


class GoneTopic(NamedTuple):
    """A topic that is to go, with all its records."""

    name: str
    id: str
    partitions: int


async def creation(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = -1,
    replicas: int = -1,
    configs: Mapping[str, str] | None = None,
) -> Plan:
    """The broker checks all of it, and makes nothing. -1: its default. Raises ClientError."""
    create = partial(
        Admin(cluster).create_topic,
        name,
        partitions=partitions,
        replication_factor=replicas,
        configs=configs,
    )
    made = await create(validate_only=True)
    words = ["topic", "create", name]
    words += ["--partitions", str(partitions)] if partitions != -1 else []
    words += ["--replication-factor", str(replicas)] if replicas != -1 else []
    words += [word for key, value in sorted((configs or {}).items()) for word in ("--config", f"{key}={value}")]
    return Plan(words, [NewTopic(made.name, made.partitions, made.replication_factor)], create)


async def deletion(cluster: Cluster, name: str) -> Plan:
    """`known` is the number of its records, as far as leaders tell it. Only the topic that is there now is deleted, and
    none that is made by its name meanwhile. Raises ClientError, also where there is no such topic.
    """
    view = await cluster.existing_topic(name)
    indexes = [int(part.index) for part in view.partitions]
    first = await offsets_of(cluster, name, indexes, EARLIEST)
    end = await offsets_of(cluster, name, indexes, LATEST)
    records = sum(end[index] - first[index] for index in end.keys() & first.keys())
    row = GoneTopic(name, str(view.id), len(view.partitions))
    obstacle = f"Topic '{name}' is the brokers' own: they need it." if view.internal else ""
    return Plan(["topic", "delete", name], [row], partial(_delete, cluster, row), obstacle, records, name)


async def _delete(cluster: Cluster, row: GoneTopic) -> None:
    await Admin(cluster).delete_topic(row.name, UUID(row.id))
