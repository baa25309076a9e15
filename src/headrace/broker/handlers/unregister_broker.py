"""UnregisterBroker: removes a stopped broker for good, from the quorum too (KIP-500).

Refused while it runs, and while it has the only in-sync copy of a partition. v0.
"""

from __future__ import annotations

from headrace.base.ids import BrokerId
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.brokers import RemoveBroker
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(request: UnregisterBrokerRequest, context: RequestContext) -> UnregisterBrokerResponse:
    code, message = error_of(await submitted(context, RemoveBroker(broker_id=BrokerId(request.broker_id))))
    return UnregisterBrokerResponse(error_code=code, error_message=message)


HANDLER = Handler(
    int(ApiKey.UNREGISTER_BROKER),
    (0, 0),
    handle,
    on_cluster(
        lambda _, error: UnregisterBrokerResponse(error_code=error, error_message=error.message), AclOperation.ALTER
    ),
)
