"""ListPartitionReassignments: which partitions are on their way to other brokers, from the image (KIP-455).

Topics null: all that are; else those of the named ones that are. What is not reassigned, or is not there, is left out.
What is handed over (`controller.moves`) adds its target and removes its source until the target has taken it over.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.requests.context import Handler, RequestContext
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
    """In the order of the request; all of them by name."""
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
    """None where nothing of it is reassigned."""
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


HANDLER = Handler(int(ApiKey.LIST_PARTITION_REASSIGNMENTS), (0, 0), handle)
