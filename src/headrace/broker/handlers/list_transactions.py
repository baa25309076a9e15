"""ListTransactions: lists the transactional ids that this broker coordinates (KIP-664). A tool asks every broker.

While some are being loaded: COORDINATOR_LOAD_IN_PROGRESS, and none is listed, as on Kafka. Unknown states of the filter
are named in the answer. v0 flexible; v1 by duration (KIP-994); v2 by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from headrace.broker.requests.access import as_it_goes
from headrace.broker.requests.context import Handler, RequestContext
from headrace.coordinators.groups.consumer.expressions import PatternError
from headrace.coordinators.groups.consumer.patterns import Pattern
from headrace.coordinators.transactions.views import Filter
from headrace.metadata.access.acls import ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    try:
        pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    wanted = Filter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        longer_than_ms=request.duration_filter,
        matches=None if pattern is None else pattern.matches,
    )
    transactions = context.services.transactions
    if transactions.loading:
        return ListTransactionsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown_state_filters=tuple(wanted.unknown_states)
        )
    now_ms = context.services.clock.now_ms()
    return ListTransactionsResponse(
        unknown_state_filters=tuple(wanted.unknown_states),
        transaction_states=tuple(
            TransactionState(each.id, each.standing.producer_id, each.standing.state.title)
            for each in wanted.listed(transactions.transactions(), now_ms)
            if context.rights.sees(ResourceType.TRANSACTIONAL_ID, each.id)
        ),
    )


HANDLER = Handler(int(ApiKey.LIST_TRANSACTIONS), (0, 2), handle, as_it_goes)
