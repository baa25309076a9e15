"""The image's form in the answers of Metadata, DescribeCluster and DescribeTopicPartitions.

Promises: everything in one answer is from one image. Nothing is authorised yet, so every operation is allowed
(KIP-430).
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
    """Return the address where clients reach a broker: its first listener."""
    return broker.endpoints[0]


def controller_id(context: RequestContext, image: MetadataImage) -> BrokerId:
    """Return the quorum's leader, where clients can reach it, else this broker. This broker accepts every request, and
    carries it to the controller as soon as there is one."""
    leader = context.services.metadata.leader
    known = None if leader is None else image.brokers.get(leader)
    return context.services.node_id if known is None or known.fenced else known.id


def partition_error(partition: PartitionImage) -> int:
    """Return LEADER_NOT_AVAILABLE where nobody leads the partition, else NONE."""
    return int(ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE)


def live_ids(image: MetadataImage) -> frozenset[BrokerId]:
    return frozenset(broker.id for broker in image.live_brokers())


def offline_replicas(partition: PartitionImage, live: frozenset[BrokerId]) -> tuple[BrokerId, ...]:
    """Return the replicas on brokers that are fenced."""
    return tuple(replica for replica in partition.replicas if replica not in live)
