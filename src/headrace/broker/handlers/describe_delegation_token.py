"""DescribeDelegationToken: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, as Kafka answers on plaintext connections (KIP-48)."""

from __future__ import annotations

from headrace.broker.requests.access import anyone
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)


def handle(_: DescribeDelegationTokenRequest, context: RequestContext) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


HANDLER = Handler(int(ApiKey.DESCRIBE_DELEGATION_TOKEN), (1, 3), handle, anyone)
