"""Principals from the names of certificates, by `ssl.principal.mapping.rules`.

Promises: rules are split, matched and replaced as Kafka's SslPrincipalMapper does it. Where no rule matches a name, the
client has no principal and is refused. Source: KIP-371.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.base.errors import UsageError

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLIT: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSE: Final = re.compile(_RULE)
_REFERENCE: Final = re.compile(r"\\(.)|\$([0-9]+)", re.DOTALL)


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None: the name as it is."""
    replacement: str
    case: str
    """L: in small letters, U: in capitals."""


class PrincipalMapper:
    """Maps the names of certificates."""

    def __init__(self, rules: str) -> None:
        """Raises UsageError for a rule that cannot be read."""
        self._rules: Sequence[_Rule] = [_rule(text) for text in _split(rules) if text]

    def name(self, distinguished: str) -> str | None:
        """The name of the principal, without its type; None where no rule matches."""
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return distinguished
            if pattern.fullmatch(distinguished) is None:
                continue
            found = pattern.sub(partial(_expanded, replacement), distinguished)
            return found.lower() if case == "L" else found.upper() if case == "U" else found
        return None


def _split(rules: str) -> Iterator[str]:
    for match in _SPLIT.finditer((rules or "DEFAULT").strip()):
        yield match[1]


def _rule(text: str) -> _Rule:
    match = _PARSE.match(text)
    if match is None or match.end() != len(text):
        raise UsageError(f"ssl.principal.mapping.rules has a rule that cannot be read: '{text}'.")
    if match[1] is not None:
        return _Rule(None, "", "")
    try:
        return _Rule(re.compile(match[2]), match[4], match[6])
    except re.error as error:
        raise UsageError(
            f"ssl.principal.mapping.rules has a pattern that cannot be read: '{text}' ({error})."
        ) from None


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """The replacement with its references, as Java reads them. One to a group that is not there stays as it is."""
    count = match.re.groups

    def put(reference: re.Match[str]) -> str:
        if reference[1] is not None:
            return reference[1]
        digits = reference[2]
        known = next((end for end in range(len(digits), 0, -1) if int(digits[:end]) <= count), 0)
        return (match[int(digits[:known])] or "") + digits[known:] if known else reference[0]

    return _REFERENCE.sub(put, replacement)
