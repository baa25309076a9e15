"""InitProducerId: gives an idempotent producer an id, which no other ever gets.

A producer that sends its id and epoch (v3, KIP-360) gets its epoch raised, or a new id where the epochs are used up. An
id without an epoch (-1), or the reverse, is INVALID_REQUEST. Transactional ids are refused until transactions exist;
the empty one is INVALID_REQUEST. v2 flexible; v3 id and epoch; v4 PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import NO_PRODUCER_ID
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.decision import Refusal
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

EPOCH_MAX: Final = 2**15 - 1
NO_EPOCH: Final = -1


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Return a new id at epoch 0, or the caller's own at the next epoch."""
    one_is_lacking = (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH)
    if request.transactional_id == "" or one_is_lacking:
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.producer_id >= 0 and 0 <= request.producer_epoch < EPOCH_MAX - 1:
        return InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
    taken = await context.services.producer_ids.take()
    if isinstance(taken, Refusal):
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


HANDLER = Handler(int(ApiKey.INIT_PRODUCER_ID), (0, 4), handle)
