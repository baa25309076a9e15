"""A client's knowledge of a cluster, frozen: brokers, topics, leaders. Made from one Metadata response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def view_of(response: Any) -> ClusterView:
    """The view that a MetadataResponse describes."""
    brokers = {
        BrokerId(broker.node_id): BrokerView(
            id=BrokerId(broker.node_id), address=Address(broker.host, broker.port), rack=broker.rack
        )
        for broker in response.brokers
    }
    topics = {topic.name: _topic_view(topic) for topic in response.topics if topic.name is not None}
    return ClusterView(
        cluster_id=response.cluster_id, controller=BrokerId(response.controller_id), brokers=brokers, topics=topics
    )


def _topic_view(topic: Any) -> TopicView:
    partitions = tuple(
        PartitionView(
            index=PartitionIndex(part.partition_index),
            leader=BrokerId(part.leader_id),
            leader_epoch=LeaderEpoch(part.leader_epoch),
            replicas=tuple(BrokerId(node) for node in part.replica_nodes),
            isr=tuple(BrokerId(node) for node in part.isr_nodes),
            offline=tuple(BrokerId(node) for node in part.offline_replicas),
            error_code=part.error_code,
        )
        for part in sorted(topic.partitions, key=lambda part: part.partition_index)
    )
    return TopicView(
        name=topic.name,
        id=TopicId(topic.topic_id),
        internal=topic.is_internal,
        partitions=partitions,
        error_code=topic.error_code,
    )
