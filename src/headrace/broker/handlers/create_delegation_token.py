"""CreateDelegationToken: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, as Kafka answers on a plaintext connection (KIP-48).

v2 flexible; v3 an owner other than the requester.
"""

from __future__ import annotations

from headrace.broker.requests.access import anyone
from headrace.broker.requests.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse


def handle(_: CreateDelegationTokenRequest, context: RequestContext) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type="User",
        principal_name="ANONYMOUS",
        token_requester_principal_type="User",
        token_requester_principal_name="ANONYMOUS",
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )


HANDLER = Handler(int(ApiKey.CREATE_DELEGATION_TOKEN), (1, 3), handle, anyone)
