"""DescribeQuorum: lists the members of the quorum, and how far each has the log (KIP-595, KIP-836, KIP-853).

The leader of the quorum knows, and any broker asks it. While there is none, the answer is NOT_LEADER_OR_FOLLOWER, on
which clients retry. Kafka's one topic is `__cluster_metadata`, with one partition. Its offsets are those of the commit
log: the end is one more than the last entry's index.

Here the leader of any partition answers for it too. In-sync replicas appear as voters, others as observers, each with
its flushed end.

v1 times of the last fetch; v2 directories, endpoints and messages. The quorum's message says, even without an error,
what becomes of its learners while it lacks voters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex, TopicPartition
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.brokers import QuorumReplica, QuorumView, ReadQuorum
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.image import MetadataImage
from headrace.replica.leader import Leader
from headrace.wire.apis import ApiKey
from headrace.wire.codec import NO_UUID
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
    """Return one answer for each partition in the request."""
    view = await submitted(context, ReadQuorum())
    topics = tuple(
        ResponseTopicData(
            topic_name=topic.topic_name,
            partitions=tuple(_partition(topic.topic_name, partition, view, context) for partition in topic.partitions),
        )
        for topic in request.topics
    )
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=_nodes(context.image, view))


def _partition(
    topic: str, asked: RequestPartitionData, view: QuorumView | Refusal, context: RequestContext
) -> ResponsePartitionData:
    if topic != METADATA_TOPIC:
        return _replicas(topic, asked.partition_index, context)
    if asked.partition_index != 0:
        view = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Only {METADATA_TOPIC}-0 has a quorum.")
    elif isinstance(view, Refusal):
        view = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, view.message)
    if isinstance(view, Refusal):
        return _refused(asked.partition_index, view)
    return ResponsePartitionData(
        partition_index=0,
        error_message=view.outlook or None,
        leader_id=view.leader,
        leader_epoch=view.epoch,
        high_watermark=view.high_watermark,
        current_voters=tuple(_state(replica) for replica in view.replicas if replica.voter),
        observers=tuple(_state(replica) for replica in view.replicas if not replica.voter),
    )


def _refused(index: int, why: Refusal) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=index,
        error_code=why.code,
        error_message=why.message,
        leader_id=NO_LEADER,
        leader_epoch=-1,
        high_watermark=-1,
    )


def _replicas(name: str, index: int, context: RequestContext) -> ResponsePartitionData:
    """Describe the replicas of a partition that this broker leads."""
    image, clock = context.image, context.services.clock
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return _refused(index, Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}."))
    found = context.services.partitions.find(TopicPartition(topic.id, PartitionIndex(index)), image)
    if isinstance(found, ErrorCode):
        return _refused(index, Refusal(found, f"{name}-{index} is not led by this broker."))
    leader = found.isr.leader
    moment = Moment(wall_ms=clock.now_ms(), monotonic_s=clock.monotonic())
    states = {
        replica: _standing(replica, leader, found.log.log_end_offset, image, moment) for replica in leader.replicas
    }
    return ResponsePartitionData(
        partition_index=index,
        error_message=None,
        leader_id=leader.node,
        leader_epoch=leader.epoch,
        high_watermark=leader.high_watermark,
        current_voters=tuple(states[replica] for replica in leader.replicas if replica in leader.isr),
        observers=tuple(states[replica] for replica in leader.replicas if replica not in leader.isr),
    )


class Moment(NamedTuple):
    """The current time, by two clocks."""

    wall_ms: int
    monotonic_s: float

    def wall_of(self, monotonic_s: float) -> int:
        """Return milliseconds since 1970."""
        return self.wall_ms - int(1000 * (self.monotonic_s - monotonic_s))


def _standing(replica: BrokerId, leader: Leader, log_end: int, image: MetadataImage, moment: Moment) -> ReplicaState:
    broker = image.brokers.get(replica)
    directory = NO_UUID if broker is None else broker.directory_id
    if replica == leader.node:
        return ReplicaState(replica, directory, log_end, moment.wall_ms, moment.wall_ms)
    known = leader.followers.get(replica)
    if known is None:
        return ReplicaState(replica, directory, -1, -1, -1)
    times = (moment.wall_of(known.fetched_at), moment.wall_of(known.caught_up_at))
    return ReplicaState(replica, directory, known.flushed_end, *times)


def _state(replica: QuorumReplica) -> ReplicaState:
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


HANDLER = Handler(
    int(ApiKey.DESCRIBE_QUORUM),
    (0, 2),
    handle,
    on_cluster(
        lambda _, error: DescribeQuorumResponse(error_code=error, error_message=error.message), AclOperation.DESCRIBE
    ),
)
