"""DescribeUserScramCredentials: finds no user, for there is no authentication and no credentials (KIP-554).

A user who is named twice is DUPLICATE_RESOURCE, as on Kafka. Kafka's ConfigCommand sends this request along with that
for the quotas of users. v0 flexible.
"""

from __future__ import annotations

from collections import Counter

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return one result for each user in the request."""
    named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(results=tuple(_nothing(name, times) for name, times in named.items()))


def _nothing(name: str, times: int) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.RESOURCE_NOT_FOUND, "There are no SCRAM credentials: nobody is authenticated."
    if times > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"User '{name}' is in the request {times} times: name it once."
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)


HANDLER = Handler(
    int(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
    (0, 0),
    handle,
    on_cluster(
        lambda _, error: DescribeUserScramCredentialsResponse(error_code=error, error_message=error.message),
        AclOperation.DESCRIBE,
    ),
)
