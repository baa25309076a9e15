"""Decodes values of Avro in a process of its own: `python -m headrace.operations.schemas.child`.

It reads frames from standard input and answers on standard output, as `frames` has them. It ends when standard input
does, so it never outlives the console.

Values and schemas are input of others, and fastavro, being compiled, does as they say. An array of a billion nulls
takes six bytes, and holds the processor for minutes. A schema that contains itself takes none, and overflows the stack:
the process is gone. A thread can be neither stopped nor survived then. A check of schemas beforehand would have to know
each such way. So this process has limits of its own on time, memory and size. Its parent starts another in its place.

Source: Apache Avro 1.12, binary encoding and logical types.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, BinaryIO, Final
from uuid import UUID

import fastavro
import fastavro.read

from headrace.base.limits import (
    DECODED_BYTES_MAX,
    DECODING_CPU_MS_MAX,
    DECODING_MEMORY_BYTES_MAX,
    SCHEMA_NAME_CHARS_MAX,
)
from headrace.operations.schemas.frames import HEAD, JSON, LARGE, OTHER, READY, REFUSED, SCHEMA, frame

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DECIMAL_DIGITS_MAX: Final = 1_000
"""Bytes of a decimal that is written as a number, and digits behind its point."""
DECIMAL_CONTEXT: Final = Context(prec=4 * DECIMAL_DIGITS_MAX)


def main() -> None:
    _bound()
    fastavro.read.LOGICAL_READERS.update(LOGICAL)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    schemas: dict[int, Callable[[bytes], bytes]] = {}
    _answer(target, frame(READY))
    while len(head := source.read(HEAD.size)) == HEAD.size:
        kind, number, size = HEAD.unpack(head)
        data = source.read(size)
        _begin_turn()
        try:
            if kind == SCHEMA:
                schemas[number] = _reader(json.loads(data))
            else:
                _answer(target, schemas[number](data))
        except MemoryError:
            os._exit(1)


def _answer(target: BinaryIO, data: bytes) -> None:
    target.write(data)
    target.flush()


def _bound() -> None:
    """Limits that the system keeps, where it has them."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (DECODING_MEMORY_BYTES_MAX, DECODING_MEMORY_BYTES_MAX))


def _begin_turn() -> None:
    """The system ends the process unless the next turn begins before its time of the processor is over."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, DECODING_CPU_MS_MAX / 1000)


def _reader(texts: list[str]) -> Callable[[bytes], bytes]:
    """A function from a value to its answer. `texts`: the schema, behind those that it needs."""
    named: dict[str, Any] = {}
    try:
        for text in texts:
            schema = fastavro.parse_schema(json.loads(text), named)
    except MemoryError:
        raise
    except Exception as error:  # fastavro says by many kinds that it is no schema
        reason = f"{type(error).__name__}: {error}"[:SCHEMA_NAME_CHARS_MAX].encode(errors="replace")
        return lambda data: frame(REFUSED, data=reason)
    return lambda data: _decoded(data, schema)


def _decoded(data: bytes, schema: Any) -> bytes:
    source = io.BytesIO(data)
    try:
        value = fastavro.schemaless_reader(source, schema, None)
    except MemoryError:
        raise
    except Exception:  # fastavro says by many kinds that these are other bytes
        return frame(OTHER)
    if source.tell() != len(data):
        return frame(OTHER)
    try:
        text = as_json(value).encode()
    except (RecursionError, ValueError):
        return frame(LARGE)
    return frame(LARGE) if len(text) > DECODED_BYTES_MAX else frame(JSON, data=text)


def as_json(value: Any) -> str:
    """A value as JSON, on one line; one that is text as that text. Raises ValueError, RecursionError."""
    if isinstance(value, (str, bytes)):
        return value if isinstance(value, str) else _text(value)
    try:
        return _dumped(value)
    except ValueError:
        return _dumped(_without_nan(value))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)


def _text(value: object) -> str:
    """Bytes as Avro's JSON encoding has them: a character for each byte."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    raise ValueError(f"{type(value)} is no type of Avro")


def _without_nan(value: Any) -> Any:
    """JSON has no such numbers: they become words."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# Logical types. A value that has no such form stays as it is stored, which Avro asks of readers.


def _moment(per_second: int, zone: str) -> Callable[..., Any]:
    """Times since 1970, as ISO 8601 writes them."""
    digits = len(str(per_second)) - 1

    def read(data: int, *_: Any) -> Any:
        seconds, rest = divmod(data, per_second)
        try:
            begun = EPOCH + timedelta(seconds=seconds)
        except OverflowError:
            return data
        return f"{begun:%Y-%m-%dT%H:%M:%S}.{rest:0{digits}d}{zone}"

    return read


def _time_of_day(per_second: int) -> Callable[..., Any]:
    digits = len(str(per_second)) - 1

    def read(data: int, *_: Any) -> Any:
        seconds, rest = divmod(data, per_second)
        if not 0 <= seconds < 86_400:
            return data
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:0{digits}d}"

    return read


def _date(data: int, *_: Any) -> Any:
    try:
        return (EPOCH.date() + timedelta(days=data)).isoformat()
    except OverflowError:
        return data


def _decimal(data: bytes, schema: Any, *_: Any) -> Any:
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= DECIMAL_DIGITS_MAX or len(data) > DECIMAL_DIGITS_MAX:
        return data
    number = Decimal(int.from_bytes(data, "big", signed=True))
    return f"{number.scaleb(-scale, DECIMAL_CONTEXT):f}"


def _uuid(data: bytes, *_: Any) -> Any:
    return str(UUID(bytes=data)) if len(data) == 16 else data


def _duration(data: bytes, *_: Any) -> Any:
    if len(data) != 12:
        return data
    return dict(zip(("months", "days", "millis"), struct.unpack("<III", data), strict=True))


def _as_it_is(data: Any, *_: Any) -> Any:
    return data


LOGICAL: Final[dict[str, Callable[..., Any]]] = {
    "int-date": _date,
    "int-time-millis": _time_of_day(1_000),
    "long-time-micros": _time_of_day(1_000_000),
    "long-timestamp-millis": _moment(1_000, "Z"),
    "long-timestamp-micros": _moment(1_000_000, "Z"),
    "long-timestamp-nanos": _moment(1_000_000_000, "Z"),
    "long-local-timestamp-millis": _moment(1_000, ""),
    "long-local-timestamp-micros": _moment(1_000_000, ""),
    "long-local-timestamp-nanos": _moment(1_000_000_000, ""),
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "string-uuid": _as_it_is,
    "fixed-uuid": _uuid,
    "fixed-duration": _duration,
}
"""By type and logical type. They take the place of fastavro's own, which raise errors for values out of range."""


if __name__ == "__main__":
    main()
