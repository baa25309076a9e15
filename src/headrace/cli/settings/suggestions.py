"""The config that was meant, where a name is unknown: Kafka's name of it for another kind of thing, in another unit, or
misspelled.

Promises: the suggested name is known, and may be set there. A suggested value is allowed for it by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Final, NamedTuple

from headrace.base.reading import whole
from headrace.metadata.configs import EVERY_BROKER_DEF, EVERY_TOPIC_DEF, GROUP_DEFS, ConfigDef

TOPIC, BROKER, GROUP = "topic", "broker", "group"
TABLES: Final[Mapping[str, Mapping[str, ConfigDef]]] = {
    TOPIC: EVERY_TOPIC_DEF,
    BROKER: EVERY_BROKER_DEF,
    GROUP: GROUP_DEFS,
}
SIMILAR: Final = 0.75
"""How alike a misspelled name has to be, for difflib."""

_UNITS_MS: Final = {"seconds": 1_000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}
_OTHER_WORDS: Final = {
    "cleanup": "cleanup.policy",
    "compression": "compression.type",
    "max.request.size": "max.message.bytes",
    "message.size": "max.message.bytes",
    "min.isr": "min.insync.replicas",
    "retention": "retention.ms",
    "retention.size": "retention.bytes",
    "retention.time": "retention.ms",
    "segment.size": "segment.bytes",
    "ttl": "retention.ms",
}
"""Other words for topics' configs."""
_AMOUNT: Final = re.compile(r"([0-9]+) *([a-z]+)", re.IGNORECASE)
_AMOUNTS: Final = {
    ".ms": {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000},
    ".bytes": {"b": 1} | {f"{p}{unit}": 1024**n for n, p in enumerate("kmgt", 1) for unit in ("", "b", "ib")},
}


class Meant(NamedTuple):
    """A config that may be set. The value is None where what was given does not fit it, or is a secret."""

    key: str
    value: str | None


def meant(kind: str, key: str, value: str | None = None, *, at_start: bool = False) -> Meant | None:
    """The config of a topic, broker or group that this was to be; None where nothing is near. `at_start`: of a broker
    that is started, which may be set then alone, too."""
    names = _names(kind, at_start)
    plain = re.sub(r"[_\- ]", ".", key.strip().lower())
    found = names.get(plain) or names.get(f"{plain}s") or _in_another_unit(names, plain)
    found = found or names.get(_OTHER_WORDS.get(plain, ""))
    if found is None and not any(plain in table for table in TABLES.values()):
        near = get_close_matches(plain, names, n=1, cutoff=SIMILAR)
        found = names[near[0]] if near else None
    if found is None:
        return None
    name, factor = found
    definition = TABLES[kind][name]
    fits = None if value is None or definition.is_secret else _fitting(definition, value, factor)
    return None if (name, fits) == (key, value) else Meant(name, fits)


def _in_another_unit(names: Mapping[str, tuple[str, int]], key: str) -> tuple[str, int] | None:
    base, _, unit = key.rpartition(".")
    factor = _UNITS_MS.get(unit if unit.endswith("s") else f"{unit}s")
    known = names.get(f"{base}.ms")
    return (known[0], known[1] * factor) if factor is not None and known is not None else None


def _fitting(definition: ConfigDef, value: str, factor: int) -> str | None:
    """The value in the unit of the config."""
    try:
        number = whole(value)
        value = str(number * factor) if number > 0 else str(number)
    except ValueError:
        units = next((units for end, units in _AMOUNTS.items() if definition.key.endswith(end)), {})
        match = _AMOUNT.fullmatch(value.strip())
        if match is not None and (each := units.get(match[2].lower())) is not None:
            value = str(int(match[1]) * each)
    return value if definition.problem(value) is None else None


@cache
def _names(kind: str, at_start: bool) -> Mapping[str, tuple[str, int]]:
    """Names by which configs of this kind are known anywhere, with the factor of their unit. Own names go first."""
    table = {key: each for key, each in TABLES[kind].items() if _may_be_set(each, at_start) and not each.is_hidden}
    others: dict[str, tuple[str, int]] = {}
    for topic_key, each in EVERY_TOPIC_DEF.items():
        broker_key = each.broker_key or topic_key
        target = {TOPIC: topic_key, BROKER: broker_key}.get(kind)
        if target not in table:
            continue
        units = dict(each.coarser)
        for name, factor in {topic_key: 1, broker_key: 1, **units}.items():
            others.setdefault(name, (target, factor))
            others.setdefault(name.removeprefix("log."), (target, factor))
    if kind == GROUP:
        for key in table:
            others |= dict.fromkeys((f"group.{key}", key.removeprefix("consumer.")), (key, 1))
    return others | {key: (key, 1) for key in table}


def _may_be_set(definition: ConfigDef, at_start: bool) -> bool:
    """Whether any other value than one is allowed, so that to set it does something."""
    return (definition.dynamic or at_start) and (definition.honoured is None or len(definition.honoured) > 1)
