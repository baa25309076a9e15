"""Java's properties: the form of Kafka's files of settings.

Promises: a text means what Java's Properties.load makes of it. No error repeats a value, which may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from headrace.base.errors import UsageError

_BLANKS: Final = " \t\f"
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_MEANT: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {"\\": "\\", "\t": "t", "\n": "n", "\r": "r", "\f": "f"}
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """The settings of a file, the last of each name. Raises UsageError."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None, "it matches an empty text, too"
        found[_unescaped(match[1])] = _unescaped(line[match.end() :])
    return found


def encode_properties(settings: Mapping[str, str]) -> str:
    """The text of a file, which `parse_properties` and Java read as these settings."""
    return "".join(f"{_escaped(key, '=: ')}={_escaped(value, '')}\n" for key, value in settings.items())


def _escaped(text: str, also: str) -> str:
    """With backslashes before what would be read otherwise. A character beyond ASCII is written by its number."""
    out = []
    for at, character in enumerate(text):
        if character in _WRITTEN:
            out.append("\\" + _WRITTEN[character])
        elif not " " <= character <= "~":
            units = character.encode("utf-16-be").hex()
            out += [f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)]
        else:
            out.append("\\" + character if character in also or (character in " #!" and not at) else character)
    return "".join(out)


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
    read = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _MEANT.get(match[2], match[2]), text)
    return read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # two numbers may be one character
