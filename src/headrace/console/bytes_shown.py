"""Bytes of keys, values and headers as a page shows them: JSON, text or hexadecimal."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.base.limits import CONSOLE_VALUE_BYTES_MAX
from headrace.base.reading import json_value

LINE: Final = 16
PREVIEW: Final = 160


class Form(StrEnum):
    """How bytes are shown."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


class Shown(NamedTuple):
    """Bytes for a page."""

    form: str
    """`null`, `empty`, `json`, `text` or `hex`."""
    text: str
    left_out: int
    """Bytes behind those that are shown."""


def shown(data: bytes | None, form: Form) -> Shown:
    """All of it, as far as a page shows it."""
    if data is None:
        return Shown("null", "null", 0)
    if not data:
        return Shown("empty", "", 0)
    some, left_out = data[:CONSOLE_VALUE_BYTES_MAX], max(0, len(data) - CONSOLE_VALUE_BYTES_MAX)
    if form in (Form.AUTO, Form.JSON) and not left_out and (laid_out := _laid_out(some)) is not None:
        return Shown("json", laid_out, 0)
    if form is not Form.HEX and (text := _text(some, is_cut=bool(left_out))) is not None:
        return Shown("text", text, left_out)
    return Shown("hex", dumped(some), left_out)


def preview(data: bytes | None) -> str:
    """The beginning of it, on a line."""
    if data is None:
        return "null"
    text = _text(data[:PREVIEW], is_cut=len(data) > PREVIEW)
    begun = data[: PREVIEW // 3].hex(" ") if text is None else " ".join(text.split())
    return begun + " …" if len(data) > PREVIEW else begun


def _laid_out(data: bytes) -> str | None:
    """JSON with a field on each line; None where it is none, or a mere number or word."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json_value(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """UTF-8 that can be read; None where it is none. A cut one may end in the middle of a character."""
    for end in range(len(data), max(0, len(data) - 4 if is_cut else len(data)) - 1, -1):
        try:
            text = data[:end].decode()
        except UnicodeDecodeError:
            continue
        return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None
    return None


def dumped(data: bytes) -> str:
    """Sixteen bytes on a line, with their offset, and the letters among them."""
    lines = []
    for at in range(0, len(data), LINE):
        some = data[at : at + LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{at:06x}  {some.hex(' '):<{LINE * 3 - 1}}  {letters}")
    return "\n".join(lines)
