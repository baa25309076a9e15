"""What a config may be, and how its text is read: one `ConfigDef` a config.

Promises: a value is read as Kafka's ConfigDef reads it (`headrace.base.reading`), kept as Kafka describes it, and
refused in one sentence that names the key. What an earlier version took, and Java would not read, is still understood
where it is kept. Source: Kafka's ConfigDef.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias

from headrace.base.limits import CONFIG_TEXTS_KEPT_MAX
from headrace.base.reading import INT_MAX, LONG_MAX, fraction, fraction_text, items, trimmed, truth, whole

SHORT_MAX: Final = 2**15 - 1


class ConfigType(IntEnum):
    """As DescribeConfigs numbers them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


NUMBERS: Final = (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG)
MOST: Final = {ConfigType.INT: INT_MAX, ConfigType.SHORT: SHORT_MAX, ConfigType.LONG: LONG_MAX}
"""Of each type of whole number."""

Value: TypeAlias = str | int | float | bool
"""A list is its items, joined by commas."""


def read(type_: ConfigType, text: str) -> Value:
    """The text as that type. ValueError says in a few words why it is not."""
    match type_:
        case ConfigType.BOOLEAN:
            return truth(text)
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            return whole(text, -MOST[type_] - 1, MOST[type_])
        case ConfigType.DOUBLE:
            return fraction(text)
        case ConfigType.LIST:
            return ",".join(items(text))
        case _:
            return trimmed(text)


def written(value: Value) -> str:
    """As Kafka describes it (ConfigDef.convertToString)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return fraction_text(value) if isinstance(value, float) else str(value)


@lru_cache(maxsize=CONFIG_TEXTS_KEPT_MAX)
def understood(type_: ConfigType, text: str) -> Value:
    """`read` of a text that is kept already: earlier versions took what Python reads, `1_000` or `0_0.5`. The text
    itself where it is neither."""
    try:
        return read(type_, text)
    except ValueError:
        pass
    try:
        return int(text) if type_ in NUMBERS else float(text) if type_ is ConfigType.DOUBLE else text
    except ValueError:
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One config. Values travel and are stored as strings."""

    key: str
    type: ConfigType
    default: str | None
    """None: null, there is no value."""
    doc: str
    topic: bool = False
    """Whether topics have it (under `key`); else only brokers do."""
    broker_key: str | None = None
    """The broker config that gives a topic config its default; for a broker-only config None: `key` itself."""
    coarser: tuple[tuple[str, int], ...] = ()
    """Other names that a broker may be started with for `broker_key`, the finest first, each with the number of its
    unit that one of theirs is: log.retention.hours for log.retention.ms."""
    dynamic: bool = True
    """Whether it can be changed while a broker runs."""
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    """The values that it may take, where they are few; those of each item, of a list."""
    in_any_case: bool = False
    """Whether `values` may be written in capitals."""
    pattern: str | None = None
    """A regular expression for all of the value."""
    form: str = ""
    """The same in words."""
    honoured: tuple[str, ...] | None = None
    """The values that change nothing here, or that code honours; None: all."""
    instead: str = ""
    """What to do for another value: a clause that begins with what to use."""
    is_hidden: bool = False
    """Described only where somebody has set it (Kafka's internal configs, and those that it has no more)."""

    def problem(self, value: str) -> str | None:
        """Why the value cannot be, as a sentence that names the key; None where it can."""
        try:
            self.parsed(value)
        except ValueError as error:
            return f"Invalid value {value} for configuration {self.key}: {error}."
        return None

    def parsed(self, value: str) -> Value:
        """ValueError says in a few words why it cannot be."""
        found = read(self.type, value)
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            self._check_number(found)
        text = written(found)
        if self.in_any_case:
            text = text.lower()
        if self.pattern is not None and re.fullmatch(self.pattern, text) is None:
            raise ValueError(f"it must be {self.form}")
        if self.values is not None:
            self._check_values(text, self.values)
        if self.honoured is not None and text not in self.honoured:
            raise ValueError(self._not_honoured())
        if self.type is ConfigType.LIST and self.values is not None:
            return ",".join(dict.fromkeys(text.split(",")))  # named twice is named once, as in Kafka
        return text if self.in_any_case else found

    def kept(self, value: str) -> str:
        """A value that can be, as it is stored and described."""
        return written(self.parsed(value))

    def _check_number(self, number: float) -> None:
        if self.low is None and self.high is None and not math.isnan(number):
            return
        low = -math.inf if self.low is None else self.low
        high = self.high if self.high is not None else MOST.get(self.type, math.inf)
        if not low <= number <= high:  # neither is NaN, which Kafka lets pass
            raise ValueError(f"it must be between {low} and {high}")

    def _check_values(self, text: str, values: tuple[str, ...]) -> None:
        is_list = self.type is ConfigType.LIST
        chosen = [item for item in text.split(",") if text] if is_list else [text]
        if any(item not in values for item in chosen):
            told = ", ".join(value or "nothing" for value in values)
            raise ValueError(f"it must be one of {told}{', or several of them' if is_list else ''}")

    def _not_honoured(self) -> str:
        assert self.honoured is not None
        only = " or ".join(value or "nothing" for value in self.honoured)
        return (
            "it is not supported"
            + (f", only {only} is" if only else "")
            + (f"; {self.instead}" if self.instead else "")
        )
