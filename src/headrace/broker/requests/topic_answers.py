"""How the image looks in the answers of Metadata, DescribeCluster and DescribeTopicPartitions.

Promises: everything of one answer is of one image. Nothing is authorised yet, so every operation is allowed (KIP-430).
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.broker.requests.context import RequestContext
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, Endpoint, PartitionImage
from headrace.wire.errors import ErrorCode

OPERATIONS_NOT_ASKED_FOR: Final = -(2**31)
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12
TOPIC_OPERATIONS: Final = sum(
    1 << operation
    for operation in (_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
)
CLUSTER_OPERATIONS: Final = sum(
    1 << operation
    for operation in (
        _CREATE,
        _ALTER,
        _DESCRIBE,
        _CLUSTER_ACTION,
        _DESCRIBE_CONFIGS,
        _ALTER_CONFIGS,
        _IDEMPOTENT_WRITE,
    )
)


def endpoint_of(broker: BrokerImage) -> Endpoint:
    """Where clients reach it: its first listener."""
    return broker.endpoints[0]


def controller_id(context: RequestContext, image: MetadataImage) -> BrokerId:
    """Who leads the quorum, where clients can reach it; else this broker, which takes every request and carries it to
    the controller as soon as there is one."""
    leader = context.services.metadata.leader
    known = None if leader is None else image.brokers.get(leader.node)
    return context.services.node_id if known is None or known.fenced else known.id


def partition_error(partition: PartitionImage) -> int:
    """LEADER_NOT_AVAILABLE where nobody leads it."""
    return int(ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE)


def live_ids(image: MetadataImage) -> frozenset[BrokerId]:
    return frozenset(broker.id for broker in image.live_brokers())


def offline_replicas(partition: PartitionImage, live: frozenset[BrokerId]) -> tuple[BrokerId, ...]:
    """Replicas on brokers that are fenced."""
    return tuple(replica for replica in partition.replicas if replica not in live)
