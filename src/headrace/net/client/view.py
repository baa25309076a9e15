"""A client's knowledge of a cluster, frozen: brokers, topics, leaders. Made from answers of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId, LeaderEpoch, PartitionIndex, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """One live broker."""

    id: BrokerId
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition. `leader` is NO_LEADER (-1) where it is offline."""

    index: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline: tuple[BrokerId, ...]
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic with its partitions in order. Where `error_code` is not 0 there are none."""

    name: str
    id: TopicId
    internal: bool
    partitions: tuple[PartitionView, ...]
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster at one moment, with the requested topics."""

    cluster_id: str | None
    controller: BrokerId
    brokers: Mapping[BrokerId, BrokerView]
    topics: Mapping[str, TopicView]


class Listing:
    """All topics, as they come in the pages of DescribeTopicPartitions (KIP-966).

    Promises: each topic is there with all of its partitions, or not at all. One that is deleted between two of its
    pages is left out, also where it is made again under its name.
    """

    def __init__(self) -> None:
        self._found: dict[str, TopicView] = {}
        self._begun: tuple[str, TopicId] | None = None
        """The topic that the next page goes on with; None: there is none."""
        self._parts: list[PartitionView] = []
        """Its partitions so far."""
        self._alike: dict[tuple[int, ...], tuple[int, ...]] = {}

    def add(self, page: Any) -> None:
        """Take a DescribeTopicPartitionsResponse."""
        begun, before = self._begun, self._parts
        self._begun, self._parts = None, []
        for topic in page.topics:
            parts = before if begun == (topic.name, topic.topic_id) else []
            begun = None
            parts += [_partition_view(part, self._alike) for part in topic.partitions]
            if parts and (parts[0].index != 0 or parts[-1].index != len(parts) - 1):
                continue
            if page.next_cursor is not None and page.next_cursor.topic_name == topic.name:
                self._begun, self._parts = (topic.name, topic.topic_id), parts
            else:
                self._found[topic.name] = _topic_view(topic, parts)

    def topics(self) -> Mapping[str, TopicView]:
        """Those that are whole."""
        return self._found


def view_of(response: Any) -> ClusterView:
    """The view that a MetadataResponse describes."""
    brokers = {
        BrokerId(broker.node_id): BrokerView(
            id=BrokerId(broker.node_id), address=Address(broker.host, broker.port), rack=broker.rack
        )
        for broker in response.brokers
    }
    alike: dict[tuple[int, ...], tuple[int, ...]] = {}
    topics = {}
    for topic in response.topics:
        if topic.name is not None:
            parts = sorted(topic.partitions, key=lambda part: part.partition_index)
            topics[topic.name] = _topic_view(topic, [_partition_view(part, alike) for part in parts])
    return ClusterView(
        cluster_id=response.cluster_id, controller=BrokerId(response.controller_id), brokers=brokers, topics=topics
    )


def _topic_view(topic: Any, partitions: Iterable[PartitionView]) -> TopicView:
    return TopicView(
        name=topic.name,
        id=TopicId(topic.topic_id),
        internal=topic.is_internal,
        partitions=tuple(partitions),
        error_code=topic.error_code,
    )


def _partition_view(part: Any, alike: dict[tuple[int, ...], tuple[int, ...]]) -> PartitionView:
    """The view of one partition. Most have the same brokers as another one: `alike` has each set of them once."""
    replicas, isr, offline = part.replica_nodes, part.isr_nodes, part.offline_replicas
    return PartitionView(
        index=PartitionIndex(part.partition_index),
        leader=BrokerId(part.leader_id),
        leader_epoch=LeaderEpoch(part.leader_epoch),
        replicas=cast("tuple[BrokerId, ...]", alike.setdefault(replicas, replicas)),
        isr=cast("tuple[BrokerId, ...]", alike.setdefault(isr, isr)),
        offline=cast("tuple[BrokerId, ...]", alike.setdefault(offline, offline)),
        error_code=part.error_code,
    )
