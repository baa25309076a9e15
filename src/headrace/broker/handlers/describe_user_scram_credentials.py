"""DescribeUserScramCredentials: there are none, for there is no authentication; who is named is not found (KIP-554).

Kafka's ConfigCommand asks it along with the quotas of users. v0 flexible.
"""

from __future__ import annotations

from headrace.broker.context import Handler, RequestContext
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
    """One result for each user that is named."""
    names = dict.fromkeys(user.name for user in request.users or ())
    message = "There are no SCRAM credentials: nobody is authenticated."
    return DescribeUserScramCredentialsResponse(
        results=tuple(
            DescribeUserScramCredentialsResult(
                user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message
            )
            for name in names
        )
    )


HANDLER = Handler(int(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS), (0, 0), handle)
