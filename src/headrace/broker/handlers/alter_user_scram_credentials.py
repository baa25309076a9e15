"""AlterUserScramCredentials: refuses all changes, for there is no authentication (KIP-554).

Setting a credential is SECURITY_DISABLED. Deleting one is RESOURCE_NOT_FOUND, as on Kafka where the user has none. v0
flexible.
"""

from __future__ import annotations

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


def handle(request: AlterUserScramCredentialsRequest, context: RequestContext) -> AlterUserScramCredentialsResponse:
    """Return one result for each user in the request."""
    users = dict.fromkeys(deletion.name for deletion in request.deletions)
    refused = dict.fromkeys(
        users, (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    )
    for upsertion in request.upsertions:
        message = "SCRAM credentials cannot be set: nobody is authenticated here."
        refused[upsertion.name] = (ErrorCode.SECURITY_DISABLED, message)
    return AlterUserScramCredentialsResponse(
        results=tuple(
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
            for name, (code, message) in refused.items()
        )
    )


def _forbidden(request: AlterUserScramCredentialsRequest, error: ErrorCode) -> AlterUserScramCredentialsResponse:
    named = (*(each.name for each in request.deletions), *(each.name for each in request.upsertions))
    names = dict.fromkeys(named)
    results = (
        AlterUserScramCredentialsResult(user=name, error_code=error, error_message=error.message) for name in names
    )
    return AlterUserScramCredentialsResponse(results=tuple(results))


HANDLER = Handler(int(ApiKey.ALTER_USER_SCRAM_CREDENTIALS), (0, 0), handle, on_cluster(_forbidden, AclOperation.ALTER))
