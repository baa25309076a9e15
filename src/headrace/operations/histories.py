"""Durable history as the brokers know it: summaries of all partitions, and the catalog of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import ClusterId, PartitionIndex, TopicId
from headrace.base.limits import DURABLE_CATALOG_TRIES_MAX
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.durable import DurableLink
from headrace.net.client.members import BrokerView, Members
from headrace.net.client.offsets import LATEST, list_offsets
from headrace.storage.tier.mirror import MirroredState, MirroredTopic
from headrace.storage.tier.reader import DamagedHistory, rebuilt

Pages: TypeAlias = Callable[[UUID, int, int], Awaitable[Mapping[str, Any]]]
"""Pages of a partition's catalog, from the entry that holds an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A summary of one partition's history."""

    topic: str
    topic_id: UUID
    partition: int
    partitions: int
    """Number of the topic's partitions."""
    segments: int
    start: int
    end: int
    """Inclusive."""
    bytes: int
    log_end: int | None = None
    """The next offset of the log; None: not requested, or there is no leader."""

    @property
    def lag(self) -> int | None:
        """Number of records that are not durable yet."""
        return None if self.log_end is None else max(0, self.log_end - self.end - 1)

    def summary(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "segments": self.segments,
            "start_offset": self.start,
            "end_offset": self.end,
            "bytes": self.bytes,
            "log_end_offset": self.log_end,
            "lag": self.lag,
        }

    @property
    def mirrored_topic(self) -> MirroredTopic:
        return MirroredTopic(
            cluster_id=ClusterId(""), topic_id=TopicId(self.topic_id), name=self.topic, partitions=self.partitions
        )


async def known(cluster: Cluster, topics: Sequence[str]) -> list[History]:
    """Histories that the brokers know, with the ends of their logs. Raises UsageError where a topic does not exist,
    ClientError.
    """
    found = await summaries(cluster, topics)
    for name in sorted({each.topic for each in found}):
        ends = await offsets_of(cluster, name, [each.partition for each in found if each.topic == name], LATEST)
        found = [replace(each, log_end=ends.get(each.partition)) if each.topic == name else each for each in found]
    return found


async def exported_topics(cluster: Cluster) -> list[str]:
    """Names of the topics with durable.enable. Raises ClientError."""
    admin = Admin(cluster)
    names = [view.name for view in await admin.topics() if not view.internal]
    configured = await admin.one_config_of_topics(names, "durable.enable") if names else {}
    return sorted(name for name, value in configured.items() if value == "true")


async def summaries(cluster: Cluster, topics: Sequence[str]) -> list[History]:
    """Histories without the ends of their logs. Raises UsageError where a topic does not exist, ClientError."""
    found, names = [], set()
    async with DurableLink((await live_brokers(cluster))[0].address, cluster.security) as link:
        async for topic in link.topics():
            names |= {topic["topic"], topic["topic_id"]}
            if topics and not {topic["topic"], topic["topic_id"]} & set(topics):
                continue
            found += [
                History(
                    topic=topic["topic"],
                    topic_id=UUID(topic["topic_id"]),
                    partition=part["partition"],
                    partitions=topic["count"],
                    segments=part["segments"],
                    start=part["start_offset"],
                    end=part["end_offset"],
                    bytes=part["bytes"],
                )
                for part in topic["partitions"]
            ]
    for name in topics:
        if name not in names:
            raise UsageError(f"There is no topic '{name}'; see 'headrace topic list'.")
    return found


async def live_brokers(cluster: Cluster) -> list[BrokerView]:
    """The live brokers."""
    return [broker for broker in await Members(cluster).brokers() if not broker.fenced]


async def offsets_of(cluster: Cluster, topic: str, partitions: Sequence[int], at: int) -> dict[int, int]:
    """Offsets of the partitions that have a leader."""
    view = (await cluster.metadata((topic,))).topics[topic]
    online = {part.index for part in view.partitions if part.leader >= 0}
    found = await list_offsets(cluster, topic, [each for each in partitions if each in online], at)
    return {int(index): int(each.offset) for index, each in found.items()}


async def catalog(cluster: Cluster, history: History) -> PartitionCatalog:
    """The brokers' catalog, with its chain proven. Raises CorruptData, ClientError."""
    async with DurableLink((await live_brokers(cluster))[0].address, cluster.security) as link:
        return await steady(link.catalog, history)


async def steady(pages: Pages, history: History) -> PartitionCatalog:
    """The catalog at one moment. Raises CorruptData."""
    for _ in range(DURABLE_CATALOG_TRIES_MAX):
        whole = await _whole(pages, history)
        if whole is None:
            continue
        state, entries, has_moved = whole
        numbered = [(int(entry.descriptor.start_offset), entry) for entry in entries]
        try:
            return rebuilt(history.mirrored_topic, PartitionIndex(history.partition), state, numbered)
        except DamagedHistory:
            if not has_moved:
                raise
    raise HeadraceError(f"The catalog of {history.topic}-{history.partition} changes too fast to be read: ask again.")


async def _whole(pages: Pages, history: History) -> tuple[MirroredState, list[CatalogEntry], bool] | None:
    """The state and entries, and whether they span more than one moment. None where the next requested entry was
    deleted meanwhile.
    """
    page = await pages(history.topic_id, history.partition, -1)
    state = MirroredState.from_json(page["state"])
    entries, has_moved = [CatalogEntry.from_json(each) for each in page["entries"]], False
    while entries and entries[-1].descriptor.start_offset < state.last_start:
        page = await pages(history.topic_id, history.partition, entries[-1].descriptor.next_offset)
        if not page["entries"]:
            return None
        entries += [CatalogEntry.from_json(each) for each in page["entries"]]
        has_moved |= MirroredState.from_json(page["state"]).head != state.head
    return state, [each for each in entries if each.descriptor.start_offset <= state.last_start], has_moved
