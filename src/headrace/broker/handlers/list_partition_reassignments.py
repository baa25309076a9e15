"""ListPartitionReassignments: lists the partitions under reassignment, from the image (KIP-455).

Topics null: all of them; else those among the named partitions. A partition that is not reassigned, or does not exist,
is left out. A move between brokers (`controller.moves`) adds its target and removes its source until the target has
taken over.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.apis import ApiKey
from headrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(request: ListPartitionReassignmentsRequest, context: RequestContext) -> ListPartitionReassignmentsResponse:
    """Answer in the order of the request; where all are asked for, by name."""
    found = (_topic(name, partitions) for name, partitions in _asked(request, context.image))
    return ListPartitionReassignmentsResponse(
        error_message=None, topics=tuple(topic for topic in found if topic is not None)
    )


def _asked(
    request: ListPartitionReassignmentsRequest, image: MetadataImage
) -> Iterable[tuple[str, Iterable[PartitionImage | None]]]:
    if request.topics is None:
        return ((topic.name, topic.partitions) for topic in sorted(image.topics.values(), key=lambda one: one.name))
    return (
        (topic.name, (image.partition_info(topic.name, index) for index in topic.partition_indexes))
        for topic in request.topics
    )


def _topic(name: str, partitions: Iterable[PartitionImage | None]) -> OngoingTopicReassignment | None:
    """Return one topic; None where none of its partitions is reassigned."""
    ongoing = tuple(
        _ongoing(partition)
        for partition in partitions
        if partition is not None and (partition.is_reassigned or partition.move is not None)
    )
    return OngoingTopicReassignment(name=name, partitions=ongoing) if ongoing else None


def _ongoing(partition: PartitionImage) -> OngoingPartitionReassignment:
    move = partition.move
    replicas, adding, removing = partition.replicas, partition.adding, partition.removing
    if move is not None:
        replicas, adding, removing = (move.target, move.source), (move.target,), (move.source,)
    return OngoingPartitionReassignment(
        partition_index=partition.index, replicas=replicas, adding_replicas=adding, removing_replicas=removing
    )


HANDLER = Handler(
    int(ApiKey.LIST_PARTITION_REASSIGNMENTS),
    (0, 0),
    handle,
    on_cluster(
        lambda _, error: ListPartitionReassignmentsResponse(error_code=error, error_message=error.message),
        AclOperation.DESCRIBE,
    ),
)
