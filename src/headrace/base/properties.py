"""Kafka's files of settings: Java's properties, and the JAAS entries that stand in them as values.

Promises: a text means what Java's Properties.load and Kafka's JaasConfig make of it. No error repeats a value, which
may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.base.errors import UsageError

_BLANKS: Final = " \t\f"
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_MEANT: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_TOKEN: Final = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    r"|\"(?P<double>(?:[^\"\\\n]|\\.)*)\"|'(?P<single>(?:[^'\\\n]|\\.)*)'"
    r"|(?P<mark>[=;])|(?P<word>[^\s=;\"']+)",
    re.DOTALL,
)
_MEANT_IN_QUOTES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


def parse_properties(text: str) -> dict[str, str]:
    """The settings of a file, the last of each name. Raises UsageError."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None, "it matches an empty text, too"
        found[_unescaped(match[1])] = _unescaped(line[match.end() :])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments. One that ends with a backslash goes on in the next."""
    begun = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not begun and line[:1] in ("", "#", "!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    if re.search(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})", text):
        raise UsageError("A file of properties has a \\u without four hexadecimal digits behind it.")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _MEANT.get(match[2], match[2]), text)


@dataclass(frozen=True, slots=True)
class Login:
    """One entry of JAAS: a login module, and its options."""

    module: str
    """Its class, without the package."""
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str, name: str = "sasl.jaas.config") -> Login:
    """The one entry of a setting of this name, like `Module required username="alice" password="secret";`. Raises
    UsageError."""
    wrong = UsageError(f'{name} is malformed: write LoginModule required username="NAME" password="PASSWORD";')
    tokens = list(_tokens(text, wrong))
    if len(tokens) < 3 or tokens[1].text.lower() not in _FLAGS or tokens[-1] != _END:
        raise wrong
    rest, options = tokens[2:-1], dict[str, str]()
    if len(rest) % 3 or tokens[0].is_mark:
        raise wrong
    for key, equals, value in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if equals != _EQUALS or key.is_mark or value.is_mark:
            raise wrong
        options[key.text] = value.text
    return Login(tokens[0].text.rpartition(".")[2], options)


class _Token(NamedTuple):
    text: str
    is_mark: bool = False


_END: Final = _Token(";", is_mark=True)
_EQUALS: Final = _Token("=", is_mark=True)


def _tokens(text: str, wrong: UsageError) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise wrong
        at = match.end()
        if match["mark"]:
            yield _Token(match["mark"], is_mark=True)
        elif match["word"]:
            yield _Token(match["word"])
        elif match["skip"] is None:
            quoted = match["double"] if match["double"] is not None else match["single"]
            meant = re.sub(r"\\(.)", lambda one: _MEANT_IN_QUOTES.get(one[1], one[1]), quoted, flags=re.DOTALL)
            yield _Token(meant)
