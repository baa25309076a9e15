"""DescribeTopicPartitions: lists topics in name order, page by page (KIP-966).

A page has at most `response_partition_limit` partitions, and never more than 2000. `next_cursor` is where the next page
begins: the client repeats its request with it. Without topics in the request, all are listed. An unknown topic is error
3. v0 is the only version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from headrace.base.limits import DESCRIBED_PARTITIONS_MAX, NAMES_PER_TURN_MAX
from headrace.broker.requests.access import as_it_goes
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.rights import Rights
from headrace.broker.requests.topic_answers import Reached
from headrace.controller.topic_names import topic_name_problem
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    RequestCursor,
    ResponseCursor,
)


async def handle(request: DescribeTopicPartitionsRequest, context: RequestContext) -> DescribeTopicPartitionsResponse:
    """Return one page."""
    image, reached = context.image, Reached(context.image, context.listener)
    room = min(max(request.response_partition_limit, 1), DESCRIBED_PARTITIONS_MAX)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for number, (name, first) in enumerate(_from_cursor(_names(request, image, context.rights), request.cursor), 1):
        if number % NAMES_PER_TURN_MAX == 0:
            await asyncio.sleep(0)
        if not room:
            return DescribeTopicPartitionsResponse(
                topics=tuple(topics), next_cursor=ResponseCursor(topic_name=name, partition_index=first)
            )
        topic = image.topic(name)
        if not context.rights.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            topics.append(_forbidden(name))
            continue
        if topic is None:
            topics.append(_unknown(name))
            continue
        page = topic.partitions[first : first + room]
        topics.append(_topic(topic, page, reached, context.rights.operations(ResourceType.TOPIC, name)))
        room -= len(page)
        if first + len(page) < len(topic.partitions):
            cursor = ResponseCursor(topic_name=name, partition_index=first + len(page))
            return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _names(request: DescribeTopicPartitionsRequest, image: MetadataImage, rights: Rights) -> list[str]:
    if request.topics:
        return sorted({topic.name for topic in request.topics})
    return sorted(name for name in image.topic_ids if rights.sees(ResourceType.TOPIC, name))


def _from_cursor(names: Sequence[str], cursor: RequestCursor | None) -> Iterator[tuple[str, int]]:
    """Iterate over (topic, first partition) to answer, in name order."""
    for name in names:
        if cursor is None or name > cursor.topic_name:
            yield name, 0
        elif name == cursor.topic_name:
            yield name, max(cursor.partition_index, 0)


def _forbidden(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    bad = topic_name_problem(name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _topic(
    topic: TopicImage, page: Sequence[PartitionImage], reached: Reached, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=tuple(_partition(partition, reached) for partition in page),
        topic_authorized_operations=operations,
    )


def _partition(partition: PartitionImage, reached: Reached) -> DescribeTopicPartitionsResponsePartition:
    leader, error = reached.leader(partition)
    return DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=reached.offline_replicas(partition),
    )


HANDLER = Handler(int(ApiKey.DESCRIBE_TOPIC_PARTITIONS), (0, 0), handle, as_it_goes)
