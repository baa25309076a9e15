"""Sees and sets client quotas (KIP-546). An entity has Kafka's parts: a user, a client id or both, or an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from headrace.metadata.access.quotas import QuotaEntity, quota_entity
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.messages import alter_client_quotas as alter_wire
from headrace.wire.messages import describe_client_quotas as wire

EXACT: Final = 0
DEFAULT: Final = 1
Quotas: TypeAlias = Mapping[str, float]


async def quotas(cluster: Cluster, parts: Mapping[str, str | None], *, strict: bool) -> dict[QuotaEntity, Quotas]:
    """The quotas of entities that have these parts, and (`strict`) no others. A name None is the default of its kind.
    Raises RefusedError, ClientError."""
    components = tuple(
        wire.ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in parts.items()
    )
    request = wire.DescribeClientQuotasRequest(components=components, strict=strict)

    async def ask() -> dict[QuotaEntity, Quotas]:
        response = await cluster.ask_any(ApiKey.DESCRIBE_CLIENT_QUOTAS, request)
        check(response.error_code, "Quotas", response.error_message)
        return {
            quota_entity({part.entity_type: part.entity_name for part in entry.entity}): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries or ()
        }

    return await cluster.retried(ask)


async def alter(
    cluster: Cluster,
    parts: Mapping[str, str | None],
    *,
    set_: Quotas | None = None,
    delete: Sequence[str] = (),
    validate_only: bool = False,
) -> None:
    """Set and remove quotas of one entity, all or none. Raises RefusedError, ClientError."""
    ops = (
        *(alter_wire.OpData(key=key, value=value, remove=False) for key, value in (set_ or {}).items()),
        *(alter_wire.OpData(key=key, value=0.0, remove=True) for key in delete),
    )
    entity = tuple(alter_wire.RequestEntityData(kind, name) for kind, name in parts.items())
    entry = alter_wire.RequestEntryData(entity=entity, ops=ops)
    request = alter_wire.AlterClientQuotasRequest(entries=(entry,), validate_only=validate_only)
    subject = f"Quotas of {told(quota_entity(parts))}"

    async def ask() -> bool:
        response = await cluster.ask_controller(ApiKey.ALTER_CLIENT_QUOTAS, request)
        for result in response.entries:
            check(result.error_code, subject, result.error_message)
        return True

    if validate_only:
        await cluster.retried(ask)
        return

    async def seen() -> bool | None:
        found = (await quotas(cluster, parts, strict=True)).get(quota_entity(parts), {})
        as_set = all(found.get(key) == value for key, value in (set_ or {}).items())
        return True if as_set and not found.keys() & set(delete) else None

    await cluster.changed(ask, seen=seen, subject=subject, look="headrace quota list")


def told(entity: QuotaEntity) -> str:
    """The entity in words."""
    return ", ".join(f"every {kind}" if name is None else f"{kind} '{name}'" for kind, name in entity)
