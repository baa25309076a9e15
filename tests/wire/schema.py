"""Kafka's messages for the tests: which there are, a random instance of each, and a plain, slow codec of our own.

The slow codec walks the table field by field. It shares nothing with the generated code but the table, whose facts
`test_java.py` holds against Kafka's own classes.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from random import Random
from typing import Any, NamedTuple

from headrace.wire.apis import APIS_BY_KEY, api, decode_whole, encode_whole
from tools.generate_wire import RECORDS
from tools.wiregen.table import Field, Message, Struct, name_classes, read_table, snake

FIXED = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d", "bool": ">?"}
TEXTS = ("", "a", "flights-6", "δρόμος", "x" * 126, "y" * 127, "z" * 300)


class Case(NamedTuple):
    """One message in one version, with its generated codec."""

    message: Message
    version: int
    encode: Callable[[Any], bytes]
    decode: Callable[[memoryview], Any]
    module: Any

    @property
    def flexible(self) -> bool:
        return self.version in self.message.flexible

    def __str__(self) -> str:
        return f"{self.message.root.name}-v{self.version}"


def cases() -> Iterator[Case]:
    """Every message that Headrace can code, in every version."""
    by_name = {message.root.name: message for message in read_table()}
    for key, name in APIS_BY_KEY.items():
        known = api(key)
        assert known is not None
        pair = [by_name[f"{name}Request"], by_name[f"{name}Response"]]
        name_classes(pair)
        module = import_module(f"headrace.wire.messages.{snake(name)}")
        for version in range(known.min_version, known.max_version + 1):

            def encode_request(message: Any, version: int = version, known: Any = known) -> bytes:
                return b"".join(known.encode_request(version, message))

            def encode_response(message: Any, version: int = version, known: Any = known) -> bytes:
                return b"".join(known.encode_response(version, message))

            def decode_request(data: memoryview, version: int = version, known: Any = known) -> Any:
                return known.decode_request(version, data)

            def decode_response(data: memoryview, version: int = version, known: Any = known) -> Any:
                return known.decode_response(version, data)

            yield Case(pair[0], version, encode_request, decode_request, module)
            yield Case(pair[1], version, encode_response, decode_response, module)
    for name in RECORDS:
        yield from record_cases(by_name[name])


def record_cases(message: Message) -> Iterator[Case]:
    name_classes([message])
    module = import_module(f"headrace.wire.messages.{snake(message.root.name)}")
    for number, version in enumerate(message.versions):

        def encode(item: Any, writer: Any = module.WRITERS[number], version: int = version) -> bytes:
            return b"".join(encode_whole(writer, item, bytearray(), version))

        def decode(data: memoryview, reader: Any = module.READERS[number]) -> Any:
            return decode_whole(reader, data, 0, "record")

        yield Case(message, version, encode, decode, module)


# Random instances


def random_instance(case: Case, random: Random, *, elements_max: int = 3) -> Any:
    """A message with random values in every field that the version has, and defaults elsewhere."""
    return _random_struct(case, case.message.root, random, elements_max)


def _random_struct(case: Case, struct: Struct, random: Random, elements_max: int) -> Any:
    values = {
        field.python: _random_field(case, field, random, elements_max)
        for field in struct.fields
        if case.version in field.versions and not (field.tagged_in(case.version) and random.random() < 0.4)
    }
    return getattr(case.module, struct.python)(**values)


def _random_field(case: Case, field: Field, random: Random, elements_max: int) -> Any:
    if case.version in field.nullable and random.random() < 0.3:
        return None
    if field.is_array:
        return tuple([_random_value(case, field, random, elements_max) for _ in range(random.randint(0, elements_max))])
    return _random_value(case, field, random, elements_max)


def _random_value(case: Case, field: Field, random: Random, elements_max: int) -> Any:
    if field.struct is not None:
        return _random_struct(case, field.struct, random, elements_max)
    match field.kind:
        case "string":
            return random.choice(TEXTS)
        case "bytes" | "records":
            return bytes(random.getrandbits(8) for _ in range(random.choice((0, 1, 3, 130))))
        case "uuid":
            return uuid.UUID(int=random.getrandbits(128))
        case "bool":
            return bool(random.getrandbits(1))
        case "float64":
            return float(random.randint(-1000, 1000)) / 8
        case "uint16":
            return random.choice((0, 1, 65535))
    bits = int(field.kind.removeprefix("int"))
    return random.choice((0, -1, 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), random.getrandbits(bits - 1)))


# The slow codec


def slow_varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + slow_varint(rest) if rest else bytes([low])


def slow_encode(case: Case, item: Any, *, unknown_tags: bool = False) -> bytes:
    """The bytes of a message. With `unknown_tags`, every struct also carries a tagged field from the future."""
    return _struct(case, case.message.root, item, unknown_tags)


def _struct(case: Case, schema: Struct, item: Any, unknown_tags: bool) -> bytes:
    inline = [field for field in schema.fields if field.inline_in(case.version)]
    out = b"".join(_field(case, field, getattr(item, field.python), unknown_tags) for field in inline)
    if not case.flexible:
        return out
    default = type(item)()
    tagged = {
        field.tag: _field(case, field, getattr(item, field.python), unknown_tags)
        for field in schema.fields
        if field.tagged_in(case.version) and getattr(item, field.python) != getattr(default, field.python)
    }
    if unknown_tags:
        tagged |= {77: b"from the future", 300: bytes(200)}
    sections = [slow_varint(tag) + slow_varint(len(raw)) + raw for tag, raw in sorted(tagged.items())]
    return out + slow_varint(len(tagged)) + b"".join(sections)


def _field(case: Case, field: Field, value: Any, unknown_tags: bool) -> bytes:
    compact = case.flexible and not field.never_flexible
    if not field.is_array:
        return _value(case, field, value, unknown_tags)
    if value is None:
        return b"\0" if compact else struct.pack(">i", -1)
    count = slow_varint(len(value) + 1) if compact else struct.pack(">i", len(value))
    return count + b"".join(_value(case, field, element, unknown_tags, element=True) for element in value)


def _value(case: Case, field: Field, value: Any, unknown_tags: bool, *, element: bool = False) -> bytes:
    if field.kind in FIXED:
        return struct.pack(FIXED[field.kind], value)
    if field.kind == "uuid":
        return bytes(value.bytes)
    if field.struct is not None:
        marker = b""
        if case.version in field.nullable and not element:
            absent = b"\0" if field.tagged_in(case.version) else b"\xff"
            marker = absent if value is None else b"\1"
        return marker if value is None else marker + _struct(case, field.struct, value, unknown_tags)
    width = ">h" if field.kind == "string" else ">i"
    compact = case.flexible and not field.never_flexible
    if value is None:
        return b"\0" if compact else struct.pack(width, -1)
    raw = value.encode() if field.kind == "string" else bytes(value)
    return (slow_varint(len(raw) + 1) if compact else struct.pack(width, len(raw))) + raw


# A canonical text, which the Java side writes too


def dump(value: Any) -> str:
    """The value as text: fields in order, strings and bytes in hexadecimal."""
    match value:
        case None:
            return "~"
        case bool():
            return str(int(value))
        case int():
            return str(value)
        case float():
            return struct.pack(">d", value).hex()
        case str():
            return "s" + value.encode().hex()
        case uuid.UUID():
            return "u" + value.hex
        case bytes() | memoryview():
            return "b" + bytes(value).hex()
        case tuple() if hasattr(value, "_fields"):
            pairs = zip(value._fields, value, strict=True)
            return "{" + ",".join(f"{re.sub('_', '', name)}={dump(inner)}" for name, inner in pairs) + "}"
        case tuple():
            return "[" + ",".join(map(dump, value)) + "]"
    raise TypeError(f"no canonical text for {value!r}")
