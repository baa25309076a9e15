"""The image's form in the answers of Metadata, DescribeCluster and DescribeTopicPartitions.

Promises: everything in one answer is from one image.
"""

from __future__ import annotations

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.broker.requests.context import RequestContext
from headrace.broker.requests.rights import OPERATIONS_NOT_ASKED_FOR
from headrace.metadata.access.acls import CLUSTER_NAME, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, Endpoint, PartitionImage
from headrace.wire.errors import ErrorCode


def cluster_operations(context: RequestContext, *, asked: bool) -> int:
    """Return what the client may do to the cluster (KIP-430), where it has asked for that: nothing, where it may not
    describe it."""
    if not asked:
        return OPERATIONS_NOT_ASKED_FOR
    rights = context.rights
    return rights.operations(ResourceType.CLUSTER) if rights.sees(ResourceType.CLUSTER, CLUSTER_NAME) else 0


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
