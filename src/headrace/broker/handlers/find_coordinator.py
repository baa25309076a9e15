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
from headrace.broker.requests.access import itself, on_each
from headrace.broker.requests.context import Admitted, Checked, Handler, Refused, RequestContext
from headrace.broker.requests.rights import DENIED
from headrace.broker.requests.turns import in_turns
from headrace.broker.transactions.service import TransactionService
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.image import BrokerImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEYS_VERSION: Final = 4
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
NOBODY: Final = -1
KINDS: Final = {GROUP_KEY: ResourceType.GROUP, TRANSACTION_KEY: ResourceType.TRANSACTIONAL_ID}


async def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    keeper = _keeper(request.key_type, context)
    no_topic = None if keeper is None else await keeper.topic_is_there()
    if context.version >= KEYS_VERSION:
        found = (_coordinator(key, request.key_type, context, no_topic) for key in request.coordinator_keys)
        return FindCoordinatorResponse(coordinators=tuple(await in_turns(found)))
    return _as_one(_coordinator(request.key, request.key_type, context, no_topic))


def _as_one(found: Coordinator) -> FindCoordinatorResponse:
    """Return the answer in the form of versions below 4."""
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
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
    return _refused(key, found) if isinstance(found, Refusal) else _found(key, found, context.listener)


def _found(key: str, broker: BrokerImage, listener: str) -> Coordinator:
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        message = f"Broker {broker.id} coordinates it, and has no listener {listener}."
        return _refused(key, Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
    return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message=None)


def _refused(key: str, refusal: Refusal) -> Coordinator:
    return Coordinator(
        key=key, node_id=NOBODY, host="", port=-1, error_code=refusal.code, error_message=refusal.message
    )


def _access(request: FindCoordinatorRequest, context: RequestContext) -> Checked:
    """Access to the groups and the transactional ids that the client may describe."""
    kind = KINDS.get(request.key_type)
    if kind is None:
        return Admitted(request)
    if context.version >= KEYS_VERSION:
        return on_each(
            FindCoordinatorResponse,
            kind,
            AclOperation.DESCRIBE,
            _forbidden,
            items="coordinator_keys",
            answers="coordinators",
            name_of=itself,
        )(request, context)
    if context.rights.may(AclOperation.DESCRIBE, kind, request.key):
        return Admitted(request)
    return Refused(_as_one(_forbidden(request.key, DENIED[kind])))


def _forbidden(key: str, error: ErrorCode) -> Coordinator:
    return _refused(key, Refusal(error, error.message))


HANDLER = Handler(int(ApiKey.FIND_COORDINATOR), (0, 5), handle, _access)
