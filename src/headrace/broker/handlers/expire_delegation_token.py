"""ExpireDelegationToken: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, as Kafka answers on a plaintext connection (KIP-48)."""

from __future__ import annotations

from headrace.broker.requests.access import anyone
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


def handle(_: ExpireDelegationTokenRequest, context: RequestContext) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )


HANDLER = Handler(int(ApiKey.EXPIRE_DELEGATION_TOKEN), (1, 2), handle, anyone)
