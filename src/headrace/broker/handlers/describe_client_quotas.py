"""DescribeClientQuotas: lists the quotas of the entities that match (KIP-546).

Each component of the filter names a kind (user, client-id, ip) and matches one name, the default, or any, default
included. If not strict, entities with further parts match too. Without components, all entities match; if strict, none.
v1 flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.access.quotas import IP, KINDS, QuotaEntity
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2

Filter = Mapping[str, tuple[int, str | None]]
"""By kind: the type of match, and the name."""


def handle(request: DescribeClientQuotasRequest, context: RequestContext) -> DescribeClientQuotasResponse:
    """Return the quotas of one image, in the order of the entities."""
    wanted = _filter(request.components)
    if isinstance(wanted, Refusal):
        return DescribeClientQuotasResponse(error_code=wanted.code, error_message=wanted.message, entries=None)
    found = [
        (entity, quotas)
        for entity, quotas in context.image.quotas.items()
        if _matches(entity, wanted, strict=request.strict)
    ]
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=tuple(_entry(entity, quotas) for entity, quotas in sorted(found, key=lambda item: _order(item[0]))),
    )


def _filter(components: tuple[ComponentData, ...]) -> Filter | Refusal:
    wanted: dict[str, tuple[int, str | None]] = {}
    for kind, match_type, match in components:
        if kind in wanted:
            return Refusal(ErrorCode.INVALID_REQUEST, f"The filter names {kind[:40]} twice.")
        if kind and kind not in KINDS:
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Quotas of a {kind[:40]} are not known here.")
        if not kind or match_type not in (EXACT, DEFAULT, ANY) or (match is None) == (match_type == EXACT):
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                "A component of the filter has a kind, and a name where it matches that name alone.",
            )
        wanted[kind] = (match_type, match)
    if IP in wanted and len(wanted) > 1:
        return Refusal(ErrorCode.INVALID_REQUEST, "A filter by ip cannot be combined with a user or client-id.")
    return wanted


def _matches(entity: QuotaEntity, wanted: Filter, *, strict: bool) -> bool:
    parts = dict(entity)
    if strict and parts.keys() != wanted.keys():
        return False
    return all(
        kind in parts and (match_type == ANY or parts[kind] == match) for kind, (match_type, match) in wanted.items()
    )


def _order(entity: QuotaEntity) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in entity]


def _entry(entity: QuotaEntity, quotas: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(ValueData(key=key, value=value) for key, value in sorted(quotas.items())),
    )


HANDLER = Handler(
    int(ApiKey.DESCRIBE_CLIENT_QUOTAS),
    (0, 1),
    handle,
    on_cluster(
        lambda _, error: DescribeClientQuotasResponse(error_code=error, error_message=error.message, entries=None),
        AclOperation.DESCRIBE_CONFIGS,
    ),
)
