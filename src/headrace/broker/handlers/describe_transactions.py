"""DescribeTransactions: TRANSACTIONAL_ID_NOT_FOUND for each id, for there are no transactions (KIP-664).

An empty id: INVALID_REQUEST, as on Kafka. v0 flexible.
"""

from __future__ import annotations

from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)


def handle(request: DescribeTransactionsRequest, context: RequestContext) -> DescribeTransactionsResponse:
    """Return one state for each id, in the order of the request."""
    return DescribeTransactionsResponse(
        transaction_states=tuple(
            TransactionState(
                transactional_id=name,
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST,
            )
            for name in request.transactional_ids
        )
    )


HANDLER = Handler(int(ApiKey.DESCRIBE_TRANSACTIONS), (0, 0), handle)
