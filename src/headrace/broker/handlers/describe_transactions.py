"""DescribeTransactions: how transactional ids stand, as their coordinator has them on record (KIP-664).

TRANSACTIONAL_ID_NOT_FOUND for an id that nobody has. An empty id: INVALID_REQUEST, as on Kafka. v0 flexible.
"""

from __future__ import annotations

from collections import defaultdict

from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.transactions.model import Standing
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(request: DescribeTransactionsRequest, context: RequestContext) -> DescribeTransactionsResponse:
    """Return one state for each id, in the order of the request."""
    described = context.services.transactions.described
    return DescribeTransactionsResponse(
        transaction_states=tuple(_state(name, described(name)) for name in request.transactional_ids)
    )


def _state(name: str, found: Standing | ErrorCode) -> TransactionState:
    if isinstance(found, ErrorCode):
        return TransactionState(transactional_id=name, error_code=found)
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(found.partitions):
        topics[topic].append(index)
    return TransactionState(
        transactional_id=name,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(TopicData(topic, tuple(indexes)) for topic, indexes in topics.items()),
    )


HANDLER = Handler(int(ApiKey.DESCRIBE_TRANSACTIONS), (0, 0), handle)
