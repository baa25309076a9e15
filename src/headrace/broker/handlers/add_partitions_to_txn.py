"""AddPartitionsToTxn: partitions become part of a transaction, or their leaders ask whether they are (KIP-98, KIP-890).

A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, and then the others are OPERATION_NOT_ATTEMPTED: a
transaction gets all partitions of a request, or none.

- v2: PRODUCER_FENCED.
- v3: flexible.
- v4: for brokers, many transactions at once, and `verifyOnly`.
- v5: TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.base.ids import ProducerEpoch, ProducerId
from headrace.broker.requests.context import Admitted, Handler, Refused, RequestContext
from headrace.coordinators.transactions.events import AddPartitions, AddReply, VerifyPartitions, VerifyReply
from headrace.coordinators.transactions.model import Producer, TransactionVersion
from headrace.coordinators.values import NamedPartition
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FENCED_VERSION: Final = 2
MANY_VERSION: Final = 4
ABORTABLE_VERSION: Final = 5
Outcomes = Mapping[NamedPartition, ErrorCode]


async def handle(request: AddPartitionsToTxnRequest, context: RequestContext) -> AddPartitionsToTxnResponse:
    if context.version < MANY_VERSION:
        own = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _outcome(own, context))
    results = await asyncio.gather(*(_outcome(each, context) for each in request.transactions))
    return AddPartitionsToTxnResponse(
        results_by_transaction=tuple(
            AddPartitionsToTxnResult(each.transactional_id, result)
            for each, result in zip(request.transactions, results, strict=True)
        )
    )


async def _outcome(
    wanted: AddPartitionsToTxnTransaction, context: RequestContext
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    partitions = [NamedPartition(topic.name, index) for topic in wanted.topics for index in topic.partitions]
    known = {each for each in partitions if _exists(each, context)}
    if wanted.verify_only:
        outcomes = await _verified(wanted, [each for each in partitions if each in known], context)
    elif len(known) == len(set(partitions)):
        outcomes = await _added(wanted, partitions, context)
    else:
        outcomes = dict.fromkeys(known, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return tuple(_topic(topic, outcomes, context.version) for topic in wanted.topics)


def _exists(partition: NamedPartition, context: RequestContext) -> bool:
    topic = context.image.topic(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)


async def _verified(
    wanted: AddPartitionsToTxnTransaction, partitions: Sequence[NamedPartition], context: RequestContext
) -> Outcomes:
    reply = await context.services.transactions.ask(
        wanted.transactional_id,
        lambda waiter: VerifyPartitions(waiter=waiter, producer=_producer(wanted), partitions=tuple(partitions)),
    )
    if isinstance(reply, VerifyReply) and reply.error is ErrorCode.NONE:
        return dict(zip(partitions, reply.partitions, strict=True))
    assert isinstance(reply, ErrorCode | VerifyReply)
    return dict.fromkeys(partitions, reply if isinstance(reply, ErrorCode) else reply.error)


async def _added(
    wanted: AddPartitionsToTxnTransaction, partitions: Sequence[NamedPartition], context: RequestContext
) -> Outcomes:
    is_new = context.version >= MANY_VERSION
    reply = await context.services.gate.ask_to_add(
        wanted.transactional_id,
        lambda waiter: AddPartitions(
            waiter=waiter,
            producer=_producer(wanted),
            partitions=frozenset(partitions),
            client_version=TransactionVersion.TV2 if is_new else TransactionVersion.TV0,
        ),
    )
    assert isinstance(reply, ErrorCode | AddReply)
    return dict.fromkeys(partitions, reply if isinstance(reply, ErrorCode) else reply.error)


def _producer(wanted: AddPartitionsToTxnTransaction) -> Producer:
    return Producer(ProducerId(wanted.producer_id), ProducerEpoch(wanted.producer_epoch))


def _topic(asked: AddPartitionsToTxnTopic, outcomes: Outcomes, version: int) -> AddPartitionsToTxnTopicResult:
    results = []
    for index in asked.partitions:
        error = outcomes.get(NamedPartition(asked.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        results.append(AddPartitionsToTxnPartitionResult(index, _in_words_of(error, version)))
    return AddPartitionsToTxnTopicResult(asked.name, tuple(results))


def _in_words_of(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_VERSION:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _access(request: AddPartitionsToTxnRequest, context: RequestContext) -> Admitted | Refused:
    """Access for brokers to many transactions at once. A client may write as its transactional id, and to each topic: a
    transaction gets all partitions of a request, or none."""
    rights = context.rights
    if context.version >= MANY_VERSION:
        if rights.may(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
            return Admitted(request)
        return Refused(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    topics = request.v3_and_below_topics
    if not rights.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        errors = dict.fromkeys((topic.name for topic in topics), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        allowed = {each.name: rights.may(AclOperation.WRITE, ResourceType.TOPIC, each.name) for each in topics}
        if all(allowed.values()):
            return Admitted(request)
        errors = {
            name: ErrorCode.OPERATION_NOT_ATTEMPTED if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for name, may in allowed.items()
        }
    results = tuple(
        AddPartitionsToTxnTopicResult(
            each.name,
            tuple(AddPartitionsToTxnPartitionResult(index, errors[each.name]) for index in each.partitions),
        )
        for each in topics
    )
    return Refused(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))


HANDLER = Handler(int(ApiKey.ADD_PARTITIONS_TO_TXN), (0, 5), handle, _access)
