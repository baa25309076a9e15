"""Strict readers of outside text: configs as Kafka's ConfigDef reads them, our own numbers in ASCII digits, JSON.

Promises:
- A text is accepted only where Java accepts it with the same meaning, and never by Python's rules: no `1_000`, no
  `nan`.
- Digits of other scripts are refused. They are the one thing that Kafka accepts (Java's parseInt) and this does not.
- ValueError says briefly why a text is refused; the caller adds which text it was.

Sources: ConfigDef.parseType, and Java's Long.parseLong and Double.parseDouble.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's String.trim removes from both ends."""
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_WHOLE: Final = re.compile(r"([+-]?)0*([0-9]{1,39})")
_NATURAL: Final = re.compile(r"[0-9]{1,39}")
_COMMA: Final = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEX: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = {
    f"{sign}{name}": value * (-1 if sign == "-" else 1)
    for sign in ("", "+", "-")
    for name, value in (("NaN", math.nan), ("Infinity", math.inf))
}
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def trimmed(text: str) -> str:
    """Trim like Java's String.trim: blanks and control characters go from both ends, blanks of other scripts stay."""
    return text.strip(BLANKS)


def whole(text: str, low: int = -LONG_MAX - 1, high: int = LONG_MAX) -> int:
    """Parse the trimmed text like Long.parseLong (or Integer.parseInt, by the bounds). Raises ValueError."""
    match = _WHOLE.fullmatch(trimmed(text))
    if match is None:
        raise ValueError("it is not a whole number")
    number = int(match[1] + match[2])
    if not low <= number <= high:
        raise ValueError(f"it must be between {low} and {high}")
    return number


def natural(text: str, high: int = LONG_MAX) -> int:
    """Parse ASCII digits and nothing else: ids, ports, offsets, indexes. Raises ValueError."""
    if _NATURAL.fullmatch(text) is None or (number := int(text)) > high:
        raise ValueError(f"it is not a whole number between 0 and {high}")
    return number


def is_natural(text: str, high: int = LONG_MAX) -> bool:
    """Whether `natural` accepts the text."""
    return _NATURAL.fullmatch(text) is not None and int(text) <= high


def fraction(text: str) -> float:
    """Parse like Double.parseDouble: `1e3`, `.5`, `1.0f`, `0x1p3`, `Infinity`, `NaN`; not `inf`, `nan`. Raises
    ValueError."""
    text = trimmed(text)
    if (named := _NAMED.get(text)) is not None:
        return named
    if match := _DECIMAL.fullmatch(text):
        return float(match[1])
    if match := _HEX.fullmatch(text):
        return _hex_fraction(match[1])
    raise ValueError("it is not a number")


def _hex_fraction(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def truth(text: str) -> bool:
    """Parse `true` or `false` in any case. Raises ValueError."""
    lowered = trimmed(text).lower()
    if lowered not in ("true", "false"):
        raise ValueError("it must be true or false")
    return lowered == "true"


def items(text: str) -> list[str]:
    """Split like ConfigDef: blanks around commas are dropped, empty items stay, and an empty text has no items."""
    text = trimmed(text)
    return _COMMA.split(text) if text else []


def fraction_text(number: float) -> str:
    """Format like Java's Double.toString, but always with the fewest digits that read back as the same number."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "-Infinity" if number < 0 else "Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    mantissa = "".join(map(str, digits))
    return f"{'-' if sign else ''}{mantissa[0]}.{mantissa[1:] or '0'}E{int(exponent) + len(mantissa) - 1}"


def uuid_of(text: str) -> uuid.UUID:
    """Parse the usual form of 36 characters, without braces, `urn:` or hyphens elsewhere. Raises ValueError."""
    if _UUID.fullmatch(text) is None:
        raise ValueError("it is not a UUID, as 123e4567-e89b-42d3-a456-426614174000 is one")
    return uuid.UUID(text)


def json_value(text: str | bytes) -> Any:
    """Parse JSON by the letter: no NaN or Infinity, no number beyond a double, no key twice in an object. Raises
    ValueError."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_json_fraction, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _json_fraction(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' is there twice")
    return found
