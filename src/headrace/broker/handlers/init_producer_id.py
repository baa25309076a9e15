"""InitProducerId: gives a producer an id, which no other ever gets, and an epoch, which fences its forerunner.

A producer without a transactional id that sends its id and epoch (v3, KIP-360) gets its epoch raised. Where its epochs
are used up, it gets a new id. With a transactional id the coordinator decides: an open transaction of the forerunner is
aborted first.
An id without an epoch (-1), or the reverse, is INVALID_REQUEST, and so is an empty transactional id.

- v2: flexible.
- v3: id and epoch.
- v4: PRODUCER_FENCED.
- v6: two-phase commit (KIP-939), where `transaction.two.phase.commit.enable` allows it.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, ProducerEpoch, ProducerId
from headrace.broker.requests.context import Admitted, Handler, Refused, RequestContext
from headrace.controller.decision import Refusal
from headrace.coordinators.transactions.events import InitProducer, InitReply
from headrace.coordinators.transactions.model import Producer
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_EPOCH: Final = -1
FENCED_VERSION: Final = 4


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Return a new id at epoch 0, or the caller's own at the next epoch."""
    one_is_lacking = (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH)
    if request.transactional_id == "" or one_is_lacking:
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await _transactional(request.transactional_id, request, context)
    if request.producer_id >= 0 and 0 <= request.producer_epoch < PRODUCER_EPOCH_MAX - 1:
        return InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
    taken = await context.services.producer_ids.take()
    if isinstance(taken, Refusal):
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)


async def _transactional(
    transactional_id: str, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = Producer(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    reply = await context.services.transactions.ask(
        transactional_id,
        lambda waiter: InitProducer(
            waiter=waiter,
            timeout_ms=request.transaction_timeout_ms,
            expected=expected,
            two_phase_commit=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
        ),
    )
    if isinstance(reply, ErrorCode):
        return _refused(reply)
    assert isinstance(reply, InitReply)
    if reply.error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_VERSION:
        return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
    return InitProducerIdResponse(
        error_code=reply.error,
        producer_id=reply.producer.id,
        producer_epoch=reply.producer.epoch,
        ongoing_txn_producer_id=reply.ongoing.id,
        ongoing_txn_producer_epoch=reply.ongoing.epoch,
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def _access(request: InitProducerIdRequest, context: RequestContext) -> Admitted | Refused:
    """Access for those who may write as this transactional id, or to any topic (KIP-679)."""
    rights, name = context.rights, request.transactional_id
    if name is not None:
        is_allowed = rights.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        if is_allowed and request.enable2_pc:
            is_allowed = rights.may(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        is_allowed = rights.may_for_some(AclOperation.WRITE, ResourceType.TOPIC) or rights.may(
            AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER
        )
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return Admitted(request) if is_allowed else Refused(_refused(error))


HANDLER = Handler(int(ApiKey.INIT_PRODUCER_ID), (0, 6), handle, _access)
