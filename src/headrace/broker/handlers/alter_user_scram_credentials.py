"""AlterUserScramCredentials: sets and deletes SCRAM credentials of users (KIP-554).

The client sends the salted password; it is kept as the two keys that follow from it. One result for each user. A user
may have one change in a request. v0 flexible.
"""

from __future__ import annotations

import asyncio

from headrace.base.limits import RESOURCES_PER_TURN_MAX, SCRAM_ALTERATIONS_PER_REQUEST_MAX
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.access.scram import ScramAlteration
from headrace.controller.asks.access import AlterScram
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.security.scram import credential_of_salted
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)

SECRET_BYTES = 32
NO_CREDENTIAL = ScramCredential(b"", b"", b"", 0)
"""Stands for one that cannot be, and that the controller refuses."""


async def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Return one result for each user in the request, in its order."""
    wanted = [ScramAlteration(each.name, _mechanism(each.mechanism)) for each in request.deletions]
    if len(wanted) + len(request.upsertions) > SCRAM_ALTERATIONS_PER_REQUEST_MAX:
        names = (*(each.name for each in request.deletions), *(each.name for each in request.upsertions))
        message = f"A request changes at most {SCRAM_ALTERATIONS_PER_REQUEST_MAX} credentials: send several."
        return _response(dict.fromkeys(names, Refusal(ErrorCode.POLICY_VIOLATION, message)))
    for number, each in enumerate(request.upsertions):
        wanted.append(ScramAlteration(each.name, _mechanism(each.mechanism), _credential(each)))
        if number % RESOURCES_PER_TURN_MAX == RESOURCES_PER_TURN_MAX - 1:
            await asyncio.sleep(0)
    secret = context.services.random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
    answers = await submitted(context, AlterScram(alterations=tuple(wanted), secret=secret))
    refusals = (answers,) * len(wanted) if isinstance(answers, Refusal) else answers
    return _response({each.user: refusal for each, refusal in zip(wanted, refusals, strict=True)})


def _response(refusals: dict[str, Refusal | None]) -> AlterUserScramCredentialsResponse:
    results = []
    for user, refusal in refusals.items():
        code, message = error_of(refusal)
        results.append(AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message))
    return AlterUserScramCredentialsResponse(results=tuple(results))


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        return ScramMechanism.UNKNOWN


def _credential(wanted: ScramCredentialUpsertion) -> ScramCredential:
    mechanism = _mechanism(wanted.mechanism)
    if mechanism is ScramMechanism.UNKNOWN or len(wanted.salted_password) != mechanism.key_bytes:
        return NO_CREDENTIAL
    return credential_of_salted(mechanism, wanted.salted_password, salt=wanted.salt, iterations=wanted.iterations)


def _forbidden(request: AlterUserScramCredentialsRequest, error: ErrorCode) -> AlterUserScramCredentialsResponse:
    named = (*(each.name for each in request.deletions), *(each.name for each in request.upsertions))
    names = dict.fromkeys(named)
    results = (
        AlterUserScramCredentialsResult(user=name, error_code=error, error_message=error.message) for name in names
    )
    return AlterUserScramCredentialsResponse(results=tuple(results))


HANDLER = Handler(int(ApiKey.ALTER_USER_SCRAM_CREDENTIALS), (0, 0), handle, on_cluster(_forbidden, AclOperation.ALTER))
