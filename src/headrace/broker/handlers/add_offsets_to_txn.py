"""AddOffsetsToTxn: a group's partition of the offsets topic becomes part of a transaction (KIP-98).

v2: PRODUCER_FENCED; v3: flexible; v4: TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import ProducerEpoch, ProducerId
from headrace.broker.groups.service import OFFSETS_TOPIC
from headrace.broker.requests.access import in_turn, on_group, on_transaction
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.partitioning import partition_for
from headrace.coordinators.transactions.events import AddPartitions, AddReply
from headrace.coordinators.transactions.model import Producer, TransactionVersion
from headrace.coordinators.values import NamedPartition
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCED_VERSION: Final = 2
ABORTABLE_VERSION: Final = 4


async def handle(request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
    error = await _added(request, context)
    if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)


async def _added(request: AddOffsetsToTxnRequest, context: RequestContext) -> ErrorCode:
    if await context.services.groups.topic_is_there() is not None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    topic = context.services.metadata.image.topic(OFFSETS_TOPIC)
    if topic is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition = NamedPartition(OFFSETS_TOPIC, partition_for(request.group_id, len(topic.partitions)))
    is_new = context.version >= ABORTABLE_VERSION
    reply = await context.services.transactions.ask(
        request.transactional_id,
        lambda waiter: AddPartitions(
            waiter=waiter,
            producer=Producer(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)),
            partitions=frozenset([partition]),
            client_version=TransactionVersion.TV2 if is_new else TransactionVersion.TV0,
        ),
    )
    assert isinstance(reply, ErrorCode | AddReply)
    return reply if isinstance(reply, ErrorCode) else reply.error


def _forbidden(_: AddOffsetsToTxnRequest, error: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=error)


HANDLER = Handler(
    int(ApiKey.ADD_OFFSETS_TO_TXN),
    (0, 4),
    handle,
    in_turn(on_transaction(_forbidden), on_group(_forbidden, AclOperation.READ)),
)
