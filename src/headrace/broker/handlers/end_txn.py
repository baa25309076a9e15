"""EndTxn: commits or aborts a transaction. Answered once the decision is durable, and before its markers are written.

- v2: PRODUCER_FENCED.
- v3: flexible.
- v4: TRANSACTION_ABORTABLE.
- v5: the producer's epoch rises with each transaction (TV2, KIP-890), and the answer has it.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import ProducerEpoch, ProducerId
from headrace.broker.requests.access import on_transaction
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.transactions.events import EndReply, EndTransaction
from headrace.coordinators.transactions.model import Producer, TransactionVersion
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

FENCED_VERSION: Final = 2
BUMPS_VERSION: Final = 5


async def handle(request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    is_new = context.version >= BUMPS_VERSION
    reply = await context.services.transactions.ask(
        request.transactional_id,
        lambda waiter: EndTransaction(
            waiter=waiter,
            producer=Producer(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)),
            commit=request.committed,
            client_version=TransactionVersion.TV2 if is_new else TransactionVersion.TV0,
        ),
    )
    if isinstance(reply, ErrorCode):
        return EndTxnResponse(error_code=reply)
    assert isinstance(reply, EndReply)
    error = reply.error
    if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=error, producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)


HANDLER = Handler(
    int(ApiKey.END_TXN), (0, 5), handle, on_transaction(lambda _, error: EndTxnResponse(error_code=error))
)
