"""AlterPartitionReassignments: moves a partition to other brokers; with null replicas, cancels its reassignment.

The answer comes once the reassignment has begun. It ends when the added brokers are in sync (KIP-455), and
ListPartitionReassignments shows whether it has. A broker that is not registered, or is named twice, is
INVALID_REPLICA_ASSIGNMENT. To cancel where nothing is under way is NO_REASSIGNMENT_IN_PROGRESS. v1 may forbid a change
of the number of replicas (KIP-860).
"""

from __future__ import annotations

from headrace.base.ids import BrokerId, PartitionIndex
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.moves import ReassignPartitions
from headrace.controller.decision import Refusal
from headrace.controller.reassignments import Reassignment
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Return one result for each partition, in the order of the request, or one for all."""
    wishes = tuple(_wish(topic.name, partition) for topic in request.topics for partition in topic.partitions)
    ask = ReassignPartitions(partitions=wishes, factor_may_change=request.allow_replication_factor_change)
    answers = await submitted(context, ask, request.timeout_ms)
    if isinstance(answers, Refusal):
        return AlterPartitionReassignmentsResponse(error_code=answers.code, error_message=answers.message)
    rest = iter(answers)
    topics = (
        ReassignableTopicResponse(
            name=topic.name,
            partitions=tuple(_result(partition.partition_index, next(rest)) for partition in topic.partitions),
        )
        for topic in request.topics
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=tuple(topics),
    )


def _wish(topic: str, partition: ReassignablePartition) -> Reassignment:
    replicas = None if partition.replicas is None else tuple(map(BrokerId, partition.replicas))
    return Reassignment(topic=topic, partition=PartitionIndex(partition.partition_index), replicas=replicas)


def _result(partition: int, refusal: Refusal | None) -> ReassignablePartitionResponse:
    code, message = error_of(refusal)
    return ReassignablePartitionResponse(partition_index=partition, error_code=code, error_message=message)


HANDLER = Handler(
    int(ApiKey.ALTER_PARTITION_REASSIGNMENTS),
    (0, 1),
    handle,
    on_cluster(
        lambda _, error: AlterPartitionReassignmentsResponse(error_code=error, error_message=error.message),
        AclOperation.ALTER,
    ),
)
