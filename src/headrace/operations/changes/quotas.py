"""Plans of quotas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.reading import fraction
from headrace.metadata.access.quotas import CLIENT_ID, IP, USER, keys_of, quota_entity
from headrace.net.client.access.quotas import alter, quotas, told
from headrace.net.client.cluster import Cluster
from headrace.operations.changes.plan import Plan

EACH: Final = "*"
"""Stands for all of a kind that have no quota of their own."""


class Quota(NamedTuple):
    """One line of a plan."""

    entity: str
    key: str
    now: float | None
    then: float | None


async def quota(cluster: Cluster, names: Mapping[str, str], key: str, value: str) -> Plan:
    """`names`: of a user, a client-id or both, or of an ip; EACH for all others. `value` empty: the quota is removed.
    Raises UsageError, ClientError.
    """
    parts = {kind: None if name == EACH else name for kind, name in names.items() if name}
    if not parts or (IP in parts and len(parts) > 1):
        raise UsageError("Say whose quota: of a user, a client id or both, or of an address alone.")
    known = keys_of(IP if IP in parts else USER)
    if key not in known:
        raise UsageError(f"There is no quota '{key:.60}' of these: choose {', '.join(known)}.")
    now = (await quotas(cluster, parts, strict=True)).get(quota_entity(parts), {}).get(key)
    then = _number(key, value) if value else None
    change = partial(alter, cluster, parts, set_={} if then is None else {key: then}, delete=() if value else (key,))
    obstacle = "It is so already." if now == then else ""
    if not obstacle:
        await change(validate_only=True)
    words = ["quota", "set" if value else "unset", *_options(parts), f"{key}={value}" if value else key]
    return Plan(words, [Quota(told(quota_entity(parts)), key, now, then)], change, obstacle)


def _number(key: str, value: str) -> float:
    try:
        return fraction(value)
    except ValueError:
        raise UsageError(f"Quota {key} is a number: '{value:.60}' is none; write for example 1048576.") from None


def _options(parts: Mapping[str, str | None]) -> list[str]:
    words = []
    for kind in (USER, CLIENT_ID, IP):
        if kind in parts:
            name = parts[kind]
            words += [f"--default-{kind}"] if name is None else [f"--{kind}", name]
    return words
