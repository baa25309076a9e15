r"""Text forms of records: `--format '%k %s\n'` with kcat's letters, and JSON lines that `produce` reads back.

Promises: the bytes of a format are those that kcat prints. A record that went through JSON is the same record, also
where its bytes are no text: these stand in base64 under `..._base64`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.errors import UsageError
from headrace.base.reading import INT_MAX, LONG_MAX, json_value
from headrace.net.client.states import State
from headrace.wire.records import NAMES_KEEP_BYTES, Record, RecordHeaders

Shown: TypeAlias = Callable[[str, int, Record, State], bytes]
"""The bytes of a record of a topic's partition, with the state of its transaction."""

_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-9]{1,3})|([^x0-9]))", re.DOTALL)
_MEANT: Final = {"n": b"\n", "r": b"\r", "t": b"\t"}
_PIECE: Final = re.compile(r"%(.?)", re.DOTALL)
_LETTERS: Final[Mapping[str, Shown]] = {
    "t": lambda topic, *_: topic.encode(),
    "p": lambda _, partition, *__: b"%d" % partition,
    "o": lambda _, __, record, ___: b"%d" % record.offset,
    "k": lambda _, __, record, ___: record.key or b"",
    "s": lambda _, __, record, ___: record.value or b"",
    "h": lambda _, __, record, ___: b",".join(map(_header, record.headers)),
    "T": lambda _, __, record, ___: b"%d" % record.timestamp,
    "K": lambda _, __, record, ___: b"%d" % _length(record.key),
    "S": lambda _, __, record, ___: b"%d" % _length(record.value),
    "R": lambda _, __, record, ___: _length(record.value).to_bytes(4, "big", signed=True),
    "%": lambda *_: b"%",
}


def unescaped(text: str) -> bytes:
    r"""The bytes that a text means with `\n`, `\r`, `\t`, `\\`, `\x41` (hexadecimal) and `\65` (decimal). Raises
    UsageError."""
    found, at = b"", 0
    for match in _ESCAPE.finditer(text):
        found += _plain(text[at : match.start()]) + _escape(match)
        at = match.end()
    return found + _plain(text[at:])


def _plain(text: str) -> bytes:
    if "\\x" in text:
        raise UsageError("A \\x in a text needs hexadecimal digits behind it, as \\x41 has.")
    return text.encode(errors="surrogateescape")


def _escape(match: re.Match[str]) -> bytes:
    hexadecimal, decimal, letter = match.groups()
    if letter is not None:
        return _MEANT.get(letter, letter.encode(errors="surrogateescape"))
    number = int(hexadecimal, 16) if hexadecimal else int(decimal)
    if number > 255:
        raise UsageError(f"\\{decimal} is no byte: give a number up to \\255.")
    return bytes([number])


def compiled(text: str) -> Shown:
    """The function that prints records by this format. Raises UsageError."""
    pieces: list[bytes | Shown] = []
    at = 0
    for match in _PIECE.finditer(text):
        if (letter := _LETTERS.get(match[1])) is None:
            raise UsageError(
                f"--format has no '{match[0]}': choose %t topic, %p partition, %o offset, %k key, %s value, "
                "%h headers, %T time, %K and %S lengths, %%, or write --format json."
            )
        pieces += [unescaped(text[at : match.start()]), letter]
        at = match.end()
    pieces.append(unescaped(text[at:]))
    return lambda *of: b"".join(piece if isinstance(piece, bytes) else piece(*of) for piece in pieces)


def as_lines(key_separator: bytes | None) -> Shown:
    """The value on a line; with a separator, the key and that before it."""
    if key_separator is None:
        return lambda _, __, record, ___: (record.value or b"") + b"\n"
    return lambda _, __, record, ___: (record.key or b"") + key_separator + (record.value or b"") + b"\n"


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _header(header: tuple[str, bytes | None]) -> bytes:
    name, value = header
    return name.encode(errors=NAMES_KEEP_BYTES) + b"=" + (b"NULL" if value is None else value)


class Given(NamedTuple):
    """A record that a line of input describes."""

    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()
    timestamp_ms: int | None = None
    partition: int | None = None


_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers")
_TOLD: Final = ("transaction",)
"""Fields that are said of a record where it was read, and are not written."""
_HEADER_FIELDS: Final = ("name", "name_base64", "value", "value_base64")


def given(line: bytes, number: int) -> Given:
    """The record of a line of JSON, as `as_json` has it. Its place (topic, offset) is another's. Raises UsageError."""
    try:
        return _given(json_value(line))
    except ValueError as error:  # JSON's own errors, and bytes that are no UTF-8, are ValueErrors
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise UsageError(
            f"Line {number} is no record in JSON ({reason.rstrip('.')}): write for example "
            '{"key": "a", "value": "b"}; earlier lines may be written already.'
        ) from None


def _given(fields: Any) -> Given:
    _check_names(fields, _FIELDS + _TOLD)
    headers = fields.get("headers") or []
    if not isinstance(headers, list):
        raise ValueError("'headers' is no list")
    return Given(
        _bytes_of(fields, "key"),
        _bytes_of(fields, "value"),
        tuple(map(_header_of, headers)),
        _number_of(fields, "timestamp", LONG_MAX),
        _number_of(fields, "partition", INT_MAX),
    )


def _header_of(fields: Any) -> tuple[str, bytes | None]:
    _check_names(fields, _HEADER_FIELDS)
    if (name := _bytes_of(fields, "name")) is None:
        raise ValueError("a header has no 'name'")
    return name.decode(errors=NAMES_KEEP_BYTES), _bytes_of(fields, "value")


def _check_names(fields: Any, known: Iterable[str]) -> None:
    if not isinstance(fields, dict):
        raise ValueError("it is no object")
    if unknown := sorted(fields.keys() - set(known)):
        raise ValueError(f"'{unknown[0]:.60}' is no field of it")


def _bytes_of(fields: Mapping[str, Any], name: str) -> bytes | None:
    text, coded = fields.get(name), fields.get(f"{name}_base64")
    if coded is None:
        if text is None or isinstance(text, str):
            return None if text is None else text.encode()
        raise ValueError(f"'{name}' is no text")
    if text is not None or not isinstance(coded, str):
        raise ValueError(f"'{name}' has to be there once, as text or in base64")
    try:
        return base64.b64decode(coded, validate=True)
    except binascii.Error:
        raise ValueError(f"'{name}_base64' is no base64") from None


def _number_of(fields: Mapping[str, Any], name: str, most: int) -> int | None:
    """A number, or None where it is absent or -1, which stands for none."""
    number = fields.get(name)
    if number is None or number == -1:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
        raise ValueError(f"'{name}' is no number from 0 to {most}")
    return number
