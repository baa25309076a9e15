"""The image's form in the answers of Metadata, DescribeCluster and DescribeTopicPartitions.

Promises: everything in one answer is from one image.
"""

from __future__ import annotations

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.broker.requests.context import RequestContext
from headrace.broker.requests.rights import OPERATIONS_NOT_ASKED_FOR
from headrace.metadata.access.acls import CLUSTER_NAME, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode


def cluster_operations(context: RequestContext, *, asked: bool) -> int:
    """Return what the client may do to the cluster (KIP-430), where it has asked for that: nothing, where it may not
    describe it."""
    if not asked:
        return OPERATIONS_NOT_ASKED_FOR
    rights = context.rights
    return rights.operations(ResourceType.CLUSTER) if rights.sees(ResourceType.CLUSTER, CLUSTER_NAME) else 0


def controller_id(context: RequestContext, image: MetadataImage) -> BrokerId:
    """Return the quorum's leader, where clients can reach it, else this broker. This broker accepts every request, and
    carries it to the controller as soon as there is one."""
    leader = context.services.metadata.leader
    known = None if leader is None else image.brokers.get(leader)
    is_reached = known is not None and not known.fenced and known.endpoint(context.listener) is not None
    return known.id if known is not None and is_reached else context.services.node_id


class Reached:
    """The brokers that clients of one listener can reach: the live ones that have it."""

    def __init__(self, image: MetadataImage, listener: str) -> None:
        self._image = image
        self._ids = frozenset(image.nodes(listener))

    def leader(self, partition: PartitionImage) -> tuple[BrokerId, ErrorCode]:
        """Return the leader, with the error of the partition. As on Kafka, one that lacks the listener is not told, and
        the error is LISTENER_NOT_FOUND (since Metadata v6)."""
        leader = partition.leader
        known = self._image.brokers.get(leader)
        if leader == NO_LEADER or leader in self._ids or known is None or known.fenced:
            return leader, ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE
        return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND

    def offline_replicas(self, partition: PartitionImage) -> tuple[BrokerId, ...]:
        """Return the replicas on brokers that cannot be reached."""
        return tuple(replica for replica in partition.replicas if replica not in self._ids)
