"""TxnOffsetCommit: stores how far a group has read, as a part of the producer's transaction (KIP-98, KIP-447).

The offsets count once the transaction is committed. A client has added the group's partition before (AddOffsetsToTxn);
with v5 (TV2, KIP-890) this broker adds it. A transaction that the coordinator does not know is refused.

- v2: the leader epoch of what was read.
- v3: flexible; member id, generation and instance id, which are checked.
- v4: TRANSACTION_ABORTABLE.
- v5: the partition is added here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.base.ids import LeaderEpoch, Offset
from headrace.broker.groups.answers import Told
from headrace.broker.requests.access import in_turn, on_group, on_topics, on_transaction
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.broker.transactions.gate import producer_of
from headrace.coordinators.groups.events import CommitInTransaction, CommitReply, NewOffset
from headrace.coordinators.groups.model import TransactionalProducer
from headrace.coordinators.values import NamedPartition
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ABORTABLE_VERSION: Final = 4
ADDS_VERSION: Final = 5


async def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
    named = ((topic.name, each) for topic in request.topics for each in topic.partitions)
    wanted = await in_turns(_wanted(name, each, context) for name, each in named)
    offsets = tuple(one for one in wanted if not isinstance(one, ErrorCode))
    errors = iter(await _commit(request, offsets, context))
    outcomes = iter([one if isinstance(one, ErrorCode) else next(errors) for one in wanted])
    return _answer(request, outcomes)


def _wanted(name: str, partition: TxnOffsetCommitRequestPartition, context: RequestContext) -> NewOffset | ErrorCode:
    """Return the offset to commit, or why it cannot be."""
    known = context.image.topic(name)
    if known is None or not 0 <= partition.partition_index < len(known.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return NewOffset(
        partition=NamedPartition(name, partition.partition_index),
        topic_id=known.id,
        offset=Offset(partition.committed_offset),
        leader_epoch=LeaderEpoch(partition.committed_leader_epoch),
        metadata=partition.committed_metadata or "",
    )


async def _commit(
    request: TxnOffsetCommitRequest, offsets: tuple[NewOffset, ...], context: RequestContext
) -> tuple[ErrorCode, ...]:
    if not offsets:
        return ()
    if not request.transactional_id or request.producer_id < 0 or request.producer_epoch < 0:
        return (ErrorCode.INVALID_REQUEST,) * len(offsets)
    error = await context.services.gate.admit_offsets(
        request.transactional_id,
        producer_of(request.producer_id, request.producer_epoch),
        request.group_id,
        adds=context.version >= ADDS_VERSION,
        knows_abortable=context.version >= ABORTABLE_VERSION,
    )
    if error is not ErrorCode.NONE:
        return (error,) * len(offsets)
    reply: Told = await context.services.groups.ask(
        request.group_id,
        lambda waiter: CommitInTransaction(
            waiter=waiter,
            producer=TransactionalProducer(request.producer_id, request.producer_epoch),
            offsets=offsets,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        ),
    )
    if isinstance(reply, ErrorCode):
        return (reply,) * len(offsets)
    assert isinstance(reply, CommitReply)
    return reply.errors


def _answer(request: TxnOffsetCommitRequest, outcomes: Iterator[ErrorCode]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=next(outcomes))
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _all_forbidden(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(topics=tuple(_forbidden(topic, error) for topic in request.topics))


def _forbidden(topic: TxnOffsetCommitRequestTopic, error: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        topic.name,
        tuple(TxnOffsetCommitResponsePartition(each.partition_index, error) for each in topic.partitions),
    )


HANDLER = Handler(
    int(ApiKey.TXN_OFFSET_COMMIT),
    (0, 5),
    handle,
    in_turn(
        on_transaction(_all_forbidden),
        on_group(_all_forbidden, AclOperation.READ),
        on_topics(TxnOffsetCommitResponse, AclOperation.READ, _forbidden),
    ),
)
