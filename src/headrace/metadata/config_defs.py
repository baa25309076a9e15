"""The values that a config may have, and how their text is read: one `ConfigDef` per config.

Promises: a value is read as Kafka's ConfigDef reads it (`headrace.base.reading`) and stored in the form in which Kafka
describes it. A bad value is refused in one sentence that names the key. A stored value that an earlier version accepted
is still understood, even where Java would not read it. Source: Kafka's ConfigDef.
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
from headrace.base.values import Value

SHORT_MAX: Final = 2**15 - 1


class ConfigType(IntEnum):
    """Types, with the numbers of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


HIDDEN: Final = "[hidden]"
"""Stands for a secret, as in Kafka."""
NUMBERS: Final = (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG)
MOST: Final = {ConfigType.INT: INT_MAX, ConfigType.SHORT: SHORT_MAX, ConfigType.LONG: LONG_MAX}
"""The maximum of each type of whole number."""

TypedValue: TypeAlias = str | int | float | bool
"""A list is stored as its items, joined by commas."""


def read(type_: ConfigType, text: str) -> TypedValue:
    """Read the text as that type. Raises ValueError that says briefly what is wrong."""
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


def written(value: TypedValue) -> str:
    """The value as Kafka describes it (ConfigDef.convertToString)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return fraction_text(value) if isinstance(value, float) else str(value)


@lru_cache(maxsize=CONFIG_TEXTS_KEPT_MAX)
def understood(type_: ConfigType, text: str) -> TypedValue:
    """`read` of a text that is stored already: earlier versions accepted Python's forms, such as `1_000` or `0_0.5`.
    Returns the text itself where neither can read it."""
    try:
        return read(type_, text)
    except ValueError:
        pass
    try:
        return int(text) if type_ in NUMBERS else float(text) if type_ is ConfigType.DOUBLE else text
    except ValueError:
        return text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConfigDef(Value):
    """One config. Values travel and are stored as strings."""

    key: str
    type: ConfigType
    default: str | None
    """None: null, there is no value."""
    doc: str
    topic: bool = False
    """Whether topics have it (under `key`); otherwise only brokers do."""
    broker_key: str | None = None
    """The broker config that gives a topic config its default. For a broker-only config None: `key` itself."""
    coarser: tuple[tuple[str, int], ...] = ()
    """Other names for `broker_key` with which a broker may be started, the finest first. Each has the number of finest
    units in one of its own: log.retention.hours for log.retention.ms."""
    dynamic: bool = True
    """Whether it can be changed while a broker runs."""
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    """The allowed values, where they are few; for a list, those of each item."""
    in_any_case: bool = False
    """Whether `values` may be written in capitals."""
    pattern: str | None = None
    """A regular expression for the whole value."""
    form: str = ""
    """The pattern in words."""
    honoured: tuple[str, ...] | None = None
    """The values that change nothing here, or that code honours; None: all."""
    instead: str = ""
    """Advice for other values: a clause that begins with the alternative."""
    is_hidden: bool = False
    """Described only where somebody has set it (Kafka's internal configs, and removed ones)."""

    @property
    def is_secret(self) -> bool:
        """Whether a value is never shown."""
        return self.type is ConfigType.PASSWORD

    def problem(self, value: str) -> str | None:
        """Why the value is not allowed, as a sentence that names the key; None where it is."""
        try:
            self.parsed(value)
        except ValueError as error:
            told = HIDDEN if self.is_secret else value
            return f"Invalid value {told} for configuration {self.key}: {error}."
        return None

    def parsed(self, value: str) -> TypedValue:
        """The value as its type. Raises ValueError that says briefly what is wrong."""
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
            return ",".join(dict.fromkeys(text.split(",")))  # a repeated item counts once, as in Kafka
        return text if self.in_any_case else found

    def kept(self, value: str) -> str:
        """An allowed value, as it is stored and described."""
        return written(self.parsed(value))

    def _check_number(self, number: float) -> None:
        if self.low is None and self.high is None and not math.isnan(number):
            return
        low = -math.inf if self.low is None else self.low
        high = self.high if self.high is not None else MOST.get(self.type, math.inf)
        if not low <= number <= high:  # this refuses NaN, too, which Kafka accepts
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
