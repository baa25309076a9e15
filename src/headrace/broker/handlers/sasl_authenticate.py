"""SaslAuthenticate: ILLEGAL_SASL_STATE, as Kafka answers on a listener without SASL. v2 flexible."""

from __future__ import annotations

from headrace.broker.requests.access import anyone
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(_: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    message = "This listener has no SASL: connect with security.protocol=PLAINTEXT."
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message)


HANDLER = Handler(int(ApiKey.SASL_AUTHENTICATE), (0, 2), handle, anyone)
