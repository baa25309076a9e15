"""DescribeQuorum: who keeps the cluster's metadata, and how far each is (KIP-595, KIP-836, KIP-853).

The leader knows, and any broker asks it. While there is none, the answer is NOT_LEADER_OR_FOLLOWER, which is retried.
The one topic is `__cluster_metadata` with its one partition. v1 times of the last fetch; v2 directories, endpoints and
words. Offsets are those of the commit log: the end is one more than the last entry's index.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import NO_LEADER
from headrace.broker.admin import submitted
from headrace.broker.context import Handler, RequestContext
from headrace.controller.asks import QuorumView, ReadQuorum, Replica
from headrace.controller.decision import Refusal
from headrace.metadata.image import MetadataImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

METADATA_TOPIC: Final = "__cluster_metadata"


async def handle(request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
    """One answer for each partition that is asked for."""
    view = await submitted(context, ReadQuorum())
    topics = tuple(
        ResponseTopicData(
            topic_name=topic.topic_name,
            partitions=tuple(_partition(topic.topic_name, partition, view) for partition in topic.partitions),
        )
        for topic in request.topics
    )
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=_nodes(context.image, view))


def _partition(topic: str, asked: RequestPartitionData, view: QuorumView | Refusal) -> ResponsePartitionData:
    if topic != METADATA_TOPIC or asked.partition_index != 0:
        view = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Only {METADATA_TOPIC}-0 has a quorum.")
    elif isinstance(view, Refusal):
        view = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, view.message)
    if isinstance(view, Refusal):
        return ResponsePartitionData(
            partition_index=asked.partition_index,
            error_code=view.code,
            error_message=view.message,
            leader_id=NO_LEADER,
            leader_epoch=-1,
            high_watermark=-1,
        )
    return ResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=view.leader,
        leader_epoch=view.epoch,
        high_watermark=view.high_watermark,
        current_voters=tuple(_state(replica) for replica in view.replicas if replica.voter),
        observers=tuple(_state(replica) for replica in view.replicas if not replica.voter),
    )


def _state(replica: Replica) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.broker_id,
        replica_directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )


def _nodes(image: MetadataImage, view: QuorumView | Refusal) -> tuple[Node, ...]:
    if isinstance(view, Refusal):
        return ()
    members = [image.brokers[replica.broker_id] for replica in view.replicas if replica.broker_id in image.brokers]
    return tuple(
        Node(
            node_id=broker.id,
            listeners=tuple(Listener(name=at.listener, host=at.host, port=at.port) for at in broker.endpoints),
        )
        for broker in members
    )


HANDLER = Handler(int(ApiKey.DESCRIBE_QUORUM), (0, 2), handle)
