"""Masks: pieces of records that nobody is shown. A rule names topics, a piece of their records, and what stands there.

`orders:value.card.number=****`. A piece is `key`, `value`, a field of one that is JSON, or `header.NAME`. A field may
be a JSON pointer as well (`value/card/number`), and `*` stands for each field. Lists are looked into.

Promises:
- A masked record takes the place of the record for all that follows: searches, exports, sizes. So none of these tells
  what is under the mask.
- Where a rule names a field of bytes that are not JSON, or nested too deeply, all of the bytes are masked.
- Rules that cannot be read are refused: nothing is shown for want of a rule.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.limits import MASKED_JSON_BYTES_MAX
from headrace.base.reading import json_value
from headrace.wire.records import Record, readable_name

KEY: Final = "key"
VALUE: Final = "value"
HEADER: Final = "header"
PIECES: Final = (KEY, VALUE, HEADER)
EACH: Final = "*"
STARS: Final = "****"
EXAMPLE: Final = "write for example orders:value.card.number=**** or orders:header.token=****"


class Rule(NamedTuple):
    """One rule."""

    topics: str
    """A name, or several of them with `*` and `?`."""
    piece: str
    path: tuple[str, ...]
    """A field of it, from the outside in; of a header its name. Empty: all of the piece."""
    shown: str
    """The text in its place."""


def parse_rule(text: str) -> Rule:
    """`TOPIC:FIELD=TEXT`. Raises UsageError."""
    topics, colon, rest = text.partition(":")
    field, equals, shown = rest.partition("=")
    if not colon or not topics.strip():
        raise UsageError(f"The mask '{text:.80}' names no topic: {EXAMPLE}.")
    return _rule(topics.strip(), field.strip(), shown.strip() if equals else STARS)


def _rule(topics: str, field: str, shown: str) -> Rule:
    """Raises UsageError."""
    ends = [at for at in (field.find("."), field.find("/")) if at >= 0]
    piece = field[: min(ends)] if ends else field
    rest = field[len(piece) :]
    if piece not in PIECES or (piece == HEADER and len(rest) < 2) or rest in (".", "/"):
        raise UsageError(f"The mask of '{topics:.80}' names no piece of a record in '{field:.80}': {EXAMPLE}.")
    if piece == HEADER:
        return Rule(topics, piece, (rest[1:],), shown)
    if rest.startswith("/"):
        path = [each.replace("~1", "/").replace("~0", "~") for each in rest[1:].split("/")]
    else:
        path = rest[1:].split(".") if rest else []
    if "" in path:
        raise UsageError(f"The mask of '{topics:.80}' has an empty name in '{field:.80}': {EXAMPLE}.")
    return Rule(topics, piece, tuple(path), shown)


def read_rules(path: Path) -> list[Rule]:
    """The rules of a TOML file: tables `[[mask]]` with `topic`, `field` and perhaps `with`. Raises UsageError."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The masks in {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise UsageError(f"The masks in {path} are no TOML: {error}.") from error
    tables = found.pop("mask", None)
    if found or not isinstance(tables, list) or not tables:
        raise UsageError(f"The masks in {path} are tables [[mask]] with topic, field and with, and nothing else.")
    return [_of_table(table, path) for table in tables]


def _of_table(table: Any, path: Path) -> Rule:
    known = {"topic", "field", "with"}
    if not isinstance(table, dict) or table.keys() - known or not all(isinstance(each, str) for each in table.values()):
        raise UsageError(f"A table [[mask]] in {path} has texts topic, field and with, and nothing else.")
    if not table.get("topic") or not table.get("field"):
        raise UsageError(f"A table [[mask]] in {path} lacks topic or field.")
    return _rule(table["topic"], table["field"], table.get("with", STARS))


@dataclass(frozen=True, slots=True)
class Mask:
    """The rules of one topic."""

    rules: Sequence[Rule] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    def __call__(self, record: Record) -> Record:
        """The record as it is shown."""
        if not self.rules:
            return record
        return record._replace(
            key=_masked(record.key, [rule for rule in self.rules if rule.piece == KEY]),
            value=_masked(record.value, [rule for rule in self.rules if rule.piece == VALUE]),
            headers=tuple((name, self._header(name, value)) for name, value in record.headers),
        )

    def _header(self, name: str, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        known = readable_name(name).lower()
        for rule in self.rules:
            if rule.piece == HEADER and fnmatchcase(known, rule.path[0].lower()):
                return rule.shown.encode()
        return value

    def covers(self, piece: str) -> bool:
        """Whether a rule names this piece, or a field of it."""
        return any(rule.piece == piece for rule in self.rules)

    def hides(self, piece: str) -> bool:
        """Whether nothing is shown of this piece: a key or value."""
        return any(rule.piece == piece and not rule.path for rule in self.rules)

    @property
    def told(self) -> list[str]:
        """The masked pieces, for people."""
        return [".".join((rule.piece, *rule.path)) for rule in self.rules]


@dataclass(frozen=True, slots=True)
class Masks:
    """All rules."""

    rules: Sequence[Rule] = ()

    def of(self, topic: str) -> Mask:
        """The mask of this topic."""
        return Mask([rule for rule in self.rules if fnmatchcase(topic, rule.topics)])


NO_MASK: Final = Mask()


def _masked(data: bytes | None, rules: Sequence[Rule]) -> bytes | None:
    if data is None or not rules:
        return data
    for rule in rules:
        if not rule.path:
            return rule.shown.encode()
    try:
        if len(data) > MASKED_JSON_BYTES_MAX:
            raise ValueError("it is not looked into")
        found = json_value(data)
    except (ValueError, RecursionError):
        return rules[0].shown.encode()
    if not isinstance(found, (dict, list)):
        return rules[0].shown.encode()
    try:
        for rule in rules:
            found = _replaced(found, rule.path, rule.shown)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(found, separators=(",", ":")).encode()
    except RecursionError:
        return rules[0].shown.encode()


def _replaced(found: Any, path: Sequence[str], shown: str) -> Any:
    """The value with this field replaced. A list is looked into, whether or not the path says so."""
    if not path:
        return shown
    name, rest = path[0], path[1:]
    if isinstance(found, list):
        if name == EACH:
            return [_replaced(each, rest, shown) for each in found]
        if name.isdecimal() and int(name) < len(found):
            return [_replaced(each, rest, shown) if at == int(name) else each for at, each in enumerate(found)]
        return [_replaced(each, path, shown) for each in found]
    if isinstance(found, Mapping):
        return {key: _replaced(each, rest, shown) if name in (EACH, key) else each for key, each in found.items()}
    return found


def masks_of(texts: Iterable[str], file: Path | None) -> Masks:
    """The rules of options and of a file. Raises UsageError."""
    rules = [parse_rule(text) for text in texts]
    return Masks([*rules, *(read_rules(file) if file is not None else ())])
