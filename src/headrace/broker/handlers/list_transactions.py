"""ListTransactions: lists none, for there are no transactions; names unknown states in the filter (KIP-664).

v0 flexible; v1 by duration; v2 by a pattern of ids, which is ignored.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

STATES: Final = frozenset(
    {
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
        *("Dead", "PrepareEpochFence"),
    }
)


def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    unknown = dict.fromkeys(state for state in request.state_filters if state not in STATES)
    return ListTransactionsResponse(unknown_state_filters=tuple(unknown))


HANDLER = Handler(int(ApiKey.LIST_TRANSACTIONS), (0, 2), handle)
