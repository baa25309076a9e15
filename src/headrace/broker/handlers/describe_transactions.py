"""DescribeTransactions: how transactional ids stand, as their coordinator has them on record (KIP-664).

TRANSACTIONAL_ID_NOT_FOUND for an id that nobody has. An empty id: INVALID_REQUEST, as on Kafka. v0 flexible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable

from headrace.broker.requests.access import in_turn, itself, on_each
from headrace.broker.requests.context import Admitted, Handler, RequestContext
from headrace.broker.requests.turns import answered
from headrace.coordinators.transactions.model import Standing
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(
    request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse | Awaitable[DescribeTransactionsResponse]:
    """Return one state for each id, in the order of the request."""
    described = context.services.transactions.described
    return answered(
        request.transactional_ids,
        lambda name: _state(name, described(name)),
        lambda states: DescribeTransactionsResponse(transaction_states=states),
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


def _topics(request: DescribeTransactionsRequest, context: RequestContext) -> Admitted:
    """Access to all, with those topics that the client may describe."""

    def finish(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        return response._replace(transaction_states=tuple(seen(state) for state in response.transaction_states))

    def seen(state: TransactionState) -> TransactionState:
        return state._replace(
            topics=tuple(each for each in state.topics if context.rights.sees(ResourceType.TOPIC, each.topic))
        )

    return Admitted(request, finish)


HANDLER = Handler(
    int(ApiKey.DESCRIBE_TRANSACTIONS),
    (0, 0),
    handle,
    in_turn(
        on_each(
            DescribeTransactionsResponse,
            ResourceType.TRANSACTIONAL_ID,
            AclOperation.DESCRIBE,
            lambda name, error: TransactionState(transactional_id=name, error_code=error),
            items="transactional_ids",
            answers="transaction_states",
            name_of=itself,
        ),
        _topics,
    ),
)
