"""Decides on changes of client quotas (KIP-546).

Promises: each entity of a request is decided on its own, whole: with one bad key, none of its quotas change. A quota
that no broker would enforce is refused, never kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from headrace.base.limits import QUOTA_ENTITIES_MAX, QUOTA_NAME_CHARACTERS_MAX, QUOTA_PERCENTAGE_MIN
from headrace.controller.decision import Decision, Refusal, Verdict
from headrace.metadata.access.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    IP,
    IP_KEYS,
    REQUEST_PERCENTAGE,
    USER,
    WHOLE_KEYS,
    QuotaEntity,
    quota_entity,
)
from headrace.metadata.config_table import LONG_MAX
from headrace.metadata.events import MetadataEvent, QuotaChanged
from headrace.metadata.image import MetadataImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class QuotaOp:
    """One quota to set, or (None) to remove."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """One entity, its parts as they came, and the changes."""

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[QuotaOp, ...]


def alter_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Decision[list[Refusal | None]]:
    """Return one answer for each entity, in order; None: done."""
    seen: set[QuotaEntity] = set()
    events: list[MetadataEvent] = []
    answers: list[Refusal | None] = []
    for alteration in alterations:
        entity = _entity(alteration.entity)
        verdict: Verdict
        if isinstance(entity, Refusal):
            verdict = entity
        elif entity in seen:
            verdict = _bad("An entity is in the request twice.")
        else:
            seen.add(entity)
            verdict = _alter(image, entity, alteration.ops, room=QUOTA_ENTITIES_MAX - len(image.quotas) - len(events))
        answers.append(verdict if isinstance(verdict, Refusal) else None)
        if not isinstance(verdict, Refusal):
            events.extend(verdict)
    return Decision(() if validate_only else tuple(events), answers)


def _entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity | Refusal:
    entity: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            return _bad(f"Quotas are for a user, client-id or ip, not for '{kind[:40]}'.")
        if kind in entity:
            return _bad(f"The entity names its {kind} twice.")
        if name == "":
            return _bad(f"The entity's {kind} is empty: name it, or give null for the default of all.")
        if name is not None and len(name) > QUOTA_NAME_CHARACTERS_MAX:
            return _bad(f"The entity's {kind} is longer than {QUOTA_NAME_CHARACTERS_MAX} characters.")
        entity[kind] = name
    if not entity:
        return _bad("The entity is empty: name a user, a client-id or both.")
    if IP in entity:
        if len(entity) > 1:
            return _bad("A quota of an ip is of no user and no client-id: name the ip alone.")
        if entity[IP] is not None and not _is_address(entity[IP] or ""):
            return _bad(f"{(entity[IP] or '')[:60]!r} is no address: give the ip of a client, as in 10.0.0.1.")
    return quota_entity(entity)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _alter(image: MetadataImage, entity: QuotaEntity, ops: Sequence[QuotaOp], *, room: int) -> Verdict:
    known: Mapping[str, float] = image.quotas.get(entity) or {}
    changes: dict[str, float | None] = {}
    for op in ops:
        if op.key in changes:
            return _bad(f"Quota {op.key[:40]} is in the request twice for one entity.")
        if op.value is not None and (problem := _problem(entity, op.key, op.value)):
            return _bad(problem)
        changes[op.key] = op.value
    changes = {key: value for key, value in changes.items() if known.get(key) != value}
    if not changes:
        return []
    if not known and room <= 0:
        return Refusal(
            ErrorCode.POLICY_VIOLATION, f"There are quotas of {QUOTA_ENTITIES_MAX} entities already: remove some."
        )
    return [QuotaChanged(entity=entity, changes=changes)]


def _problem(entity: QuotaEntity, key: str, value: float) -> str | None:
    known = IP_KEYS if IP in dict(entity) else CLIENT_KEYS
    if key not in known:
        return f"Unknown quota {key[:40]}: there are {', '.join(known)}."
    if not math.isfinite(value) or value <= 0:
        return f"Quota {key} must be greater than 0."
    if key in WHOLE_KEYS and not value.is_integer():
        return f"Quota {key} must be a whole number."
    if key == REQUEST_PERCENTAGE and value < QUOTA_PERCENTAGE_MIN:
        return f"Quota {key} is too small: give {QUOTA_PERCENTAGE_MIN} or more."
    if value > LONG_MAX:
        return f"Quota {key} is too large."
    return None


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
