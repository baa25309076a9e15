"""FindCoordinator: names the broker that keeps a group, or a transactional id. The first request of a kind creates
`__consumer_offsets` or `__transaction_state`, and waits for it.

Key type 0 is a group, 1 a transactional id. Share groups (2) have no coordinator here yet. They are INVALID_REQUEST,
with a message, as are types that the protocol does not know. After an error that clients retry, a client would wait for
ever.

- v1: key types and error messages.
- v3: flexible.
- v4: many keys at once (KIP-699).
- v5: TRANSACTION_ABORTABLE, never sent here.
- v6 is for share groups and not offered.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.groups.service import GroupService
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.topic_answers import endpoint_of
from headrace.broker.transactions.service import TransactionService
from headrace.controller.decision import Refusal
from headrace.metadata.image import BrokerImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEYS_VERSION: Final = 4
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
NOBODY: Final = -1


async def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    keeper = _keeper(request.key_type, context)
    no_topic = None if keeper is None else await keeper.topic_is_there()
    if context.version >= KEYS_VERSION:
        found = (_coordinator(key, request.key_type, context, no_topic) for key in request.coordinator_keys)
        return FindCoordinatorResponse(coordinators=tuple(found))
    one = _coordinator(request.key, request.key_type, context, no_topic)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _keeper(key_type: int, context: RequestContext) -> GroupService | TransactionService | None:
    if key_type == GROUP_KEY:
        return context.services.groups
    return context.services.transactions if key_type == TRANSACTION_KEY else None


def _coordinator(key: str, key_type: int, context: RequestContext, no_topic: Refusal | None) -> Coordinator:
    keeper = _keeper(key_type, context)
    if keeper is None:
        message = f"This broker coordinates groups and transactions, not key type {key_type}."
        return _refused(key, Refusal(ErrorCode.INVALID_REQUEST, message))
    found = no_topic or keeper.coordinator(key)
    return _refused(key, found) if isinstance(found, Refusal) else _found(key, found)


def _found(key: str, broker: BrokerImage) -> Coordinator:
    endpoint = endpoint_of(broker)
    return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message=None)


def _refused(key: str, refusal: Refusal) -> Coordinator:
    return Coordinator(
        key=key, node_id=NOBODY, host="", port=-1, error_code=refusal.code, error_message=refusal.message
    )


HANDLER = Handler(int(ApiKey.FIND_COORDINATOR), (0, 5), handle)
