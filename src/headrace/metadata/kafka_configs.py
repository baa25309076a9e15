"""Every topic and broker config of Apache Kafka, as its own classes tell them.

tools/generate_kafka_configs.py writes them to `kafka_configs.json`, which is read faster than Python is compiled.
`headrace.metadata.config_table` says which are honoured, `headrace.metadata.known_configs` what is taken of the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.metadata.config_defs import ConfigType


class Fact(NamedTuple):
    """One config, as Kafka describes it."""

    key: str
    type: ConfigType
    default: str | None
    """None: null, or that there is none."""
    low: float | None
    high: float | None
    values: tuple[str, ...]
    """Values that it, or each item of a list, may have; empty: any."""
    updates: str
    """Of a broker's: read-only, or changed while it runs, per-broker or cluster-wide; empty for a topic's."""
    broker_key: str | None = None
    """Of a topic's: the broker config that gives its default."""
    is_internal: bool = False


def _fact(row: list[Any]) -> Fact:
    key, type_, default, low, high, values, updates, *more = row
    return Fact(key, ConfigType[type_], default, low, high, tuple(values), updates, *more)


_TOLD: Final = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VERSION: Final[str] = _TOLD["version"]
"""Kafka's."""
TOPIC_FACTS: Final = tuple(map(_fact, _TOLD["topic"]))
BROKER_FACTS: Final = tuple(map(_fact, _TOLD["broker"]))
