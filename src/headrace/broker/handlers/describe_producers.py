"""DescribeProducers: lists the recent producers of a partition, from its leader (KIP-664).

It shows the first offset of a producer's open transaction, and the epoch of the coordinator that wrote its last marker.
A name that cannot be a topic's is INVALID_TOPIC_EXCEPTION. v0 is the only version.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.requests.access import on_topics
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.topic_names import topic_name_problem
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.values import TopicImage
from headrace.replica.producer_snapshots import ProducerEntry
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def handle(request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
    """Answer each partition by itself, in the order of the request."""
    topics = []
    for asked in request.topics:
        topic = context.image.topic(asked.name)
        absent = ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_problem(asked.name) else UNKNOWN
        partitions = tuple(
            PartitionResponse(partition_index=index, error_code=absent)
            if topic is None
            else _partition(topic, index, context)
            for index in asked.partition_indexes
        )
        topics.append(TopicResponse(name=asked.name, partitions=partitions))
    return DescribeProducersResponse(topics=tuple(topics))


def _partition(topic: TopicImage, index: int, context: RequestContext) -> PartitionResponse:
    found = context.services.partitions.find(TopicPartition(topic.id, PartitionIndex(index)), context.image)
    if isinstance(found, ErrorCode):
        return PartitionResponse(partition_index=index, error_code=found)
    return PartitionResponse(
        partition_index=index, active_producers=tuple(_producer(entry) for entry in found.producers.entries())
    )


def _producer(entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_start,
    )


def _forbidden(topic: TopicRequest, error: ErrorCode) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=tuple(
            PartitionResponse(partition_index=index, error_code=error, error_message=error.message)
            for index in topic.partition_indexes
        ),
    )


HANDLER = Handler(
    int(ApiKey.DESCRIBE_PRODUCERS), (0, 0), handle, on_topics(DescribeProducersResponse, AclOperation.READ, _forbidden)
)
