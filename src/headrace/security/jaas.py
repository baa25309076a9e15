"""Login modules of Java's authentication service, as Kafka's `sasl.jaas.config` names them. Source: Kafka's JaasConfig.

One value is `CLASS FLAG KEY=VALUE ... ;`. A value is a word or a quoted text, and comments are as in Java. Never does:
show a value, which may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)"""
    r"""|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)'"""
    r"""|(?P<sign>[=;])|(?P<word>[^\s=;"']+)""",
    re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One module, with its options."""

    name: str
    """Its Java class."""
    options: Mapping[str, str] = field(repr=False)


def read_jaas(text: str) -> LoginModule:
    """Read the value of `sasl.jaas.config`: exactly one module. Raises ValueError, which shows nothing of the value."""
    tokens = list(_tokens(text))
    if not tokens:
        raise ValueError("it names no login module")
    if len(tokens) < 2 or tokens[1].text.lower() not in FLAGS:
        raise ValueError("the login module is followed by 'required', or another control flag")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != _END:
        key, sign, value = (*tokens[at : at + 3], _END, _END, _END)[:3]
        if key.is_sign or sign != _EQUALS or value.is_sign:
            raise ValueError("an option is KEY=VALUE, and the module ends with a semicolon")
        if key.text in options:
            raise ValueError("an option comes twice")
        options[key.text] = value.text
        at += 3
    if at == len(tokens):
        raise ValueError("the module ends with a semicolon")
    if at + 1 < len(tokens):
        raise ValueError("it names more than one login module")
    return LoginModule(tokens[0].text, options)


class _Token(NamedTuple):
    text: str
    is_sign: bool = False


_EQUALS: Final = _Token("=", is_sign=True)
_END: Final = _Token(";", is_sign=True)


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError("a quotation is not closed")
        at = found.end()
        match found.lastgroup:
            case "blank":
                continue
            case "double" | "single":
                yield _Token(_unescaped(found[found.lastgroup]))
            case kind:
                yield _Token(found[0], is_sign=kind == "sign")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
