"""AlterClientQuotas: sets or removes the quotas of users and client ids, or the defaults of all (KIP-546).

Quotas are in force on every broker once its image has them; on this one, when the answer is sent. Each entity changes
whole or not at all. v1 flexible.
"""

from __future__ import annotations

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.access.quotas import QuotaAlteration, QuotaOp
from headrace.controller.asks.access import AlterQuotas
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_client_quotas as wire


async def handle(request: wire.AlterClientQuotasRequest, context: RequestContext) -> wire.AlterClientQuotasResponse:
    """Return one result for each entity, in the order of the request."""
    wanted = tuple(await in_turns(map(_alteration, request.entries)))
    answers = await submitted(context, AlterQuotas(alterations=wanted, validate_only=request.validate_only))
    refusals = (answers,) * len(wanted) if isinstance(answers, Refusal) else answers
    return wire.AlterClientQuotasResponse(entries=tuple(await in_turns(map(_result, request.entries, refusals))))


def _alteration(entry: wire.RequestEntryData) -> QuotaAlteration:
    return QuotaAlteration(
        tuple((part.entity_type, part.entity_name) for part in entry.entity),
        tuple(QuotaOp(op.key, None if op.remove else op.value) for op in entry.ops),
    )


def _result(entry: wire.RequestEntryData, refusal: Refusal | None) -> wire.ResponseEntryData:
    code, message = error_of(refusal)
    entity = tuple(wire.ResponseEntityData(*part) for part in entry.entity)
    return wire.ResponseEntryData(error_code=code, error_message=message, entity=entity)


def _forbidden(request: wire.AlterClientQuotasRequest, error: ErrorCode) -> wire.AlterClientQuotasResponse:
    refusal = Refusal(error, error.message)
    return wire.AlterClientQuotasResponse(entries=tuple(_result(entry, refusal) for entry in request.entries))


HANDLER = Handler(int(ApiKey.ALTER_CLIENT_QUOTAS), (0, 1), handle, on_cluster(_forbidden, AclOperation.ALTER_CONFIGS))
