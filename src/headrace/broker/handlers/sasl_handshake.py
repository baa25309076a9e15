"""SaslHandshake: ILLEGAL_SASL_STATE and no mechanisms, as Kafka answers on a listener without SASL."""

from __future__ import annotations

from headrace.broker.requests.access import anyone
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(_: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


HANDLER = Handler(int(ApiKey.SASL_HANDSHAKE), (0, 1), handle, anyone)
