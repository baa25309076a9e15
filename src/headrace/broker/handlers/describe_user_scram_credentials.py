"""DescribeUserScramCredentials: lists the SCRAM mechanisms and iterations of users, and nothing else of them (KIP-554).

Without names it lists all users. A user without credentials is RESOURCE_NOT_FOUND, and one who is named twice is
DUPLICATE_RESOURCE, as on Kafka. Kafka's ConfigCommand sends this request along with that for the quotas of users. v0
flexible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return one result for each user, of one image."""
    known = context.image.scram
    named = Counter(user.name for user in request.users or ()) or Counter(sorted(known))
    results = tuple(_result(name, known.get(name), times) for name, times in named.items())
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _result(
    name: str, credentials: Mapping[ScramMechanism, ScramCredential] | None, times: int
) -> DescribeUserScramCredentialsResult:
    if times > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"User '{name}' is in the request {times} times: name it once."
        return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
    if credentials is None:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, f"User '{name}' has no SCRAM credentials."
        return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
    infos = tuple(CredentialInfo(mechanism, each.iterations) for mechanism, each in sorted(credentials.items()))
    return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)


HANDLER = Handler(
    int(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
    (0, 0),
    handle,
    on_cluster(
        lambda _, error: DescribeUserScramCredentialsResponse(error_code=error, error_message=error.message),
        AclOperation.DESCRIBE,
    ),
)
