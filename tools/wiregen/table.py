"""The model of Kafka's messages, read from `tools/kafka_messages.txt` (whose form tools/kafka_schema.py describes)."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).parent.parent / "kafka_messages.txt"
NEVER: Final = range(0)
OPEN_END: Final = 32768
"""`9+` is range(9, OPEN_END): a version is an int16."""


@dataclass(slots=True)
class Struct:
    """A record of the protocol. `python` is its class name, unique within its module."""

    name: str
    fields: list[Field] = field(default_factory=list)
    python: str = ""


@dataclass(slots=True)
class Field:
    name: str
    kind: str
    """Type of the field, or of its elements where `is_array`: int32, string, a struct's name."""
    is_array: bool
    versions: range
    nullable: range = NEVER
    tag: int = -1
    tagged: range = NEVER
    default: str | None = None
    never_flexible: bool = False
    ignorable: bool = False
    struct: Struct | None = None

    @property
    def python(self) -> str:
        """The attribute's name: snake_case."""
        name = snake(self.name)
        return name + "_" if keyword.iskeyword(name) else name

    def tagged_in(self, version: int) -> bool:
        return version in self.versions and version in self.tagged

    def inline_in(self, version: int) -> bool:
        return version in self.versions and version not in self.tagged


@dataclass(slots=True)
class Message:
    kind: str
    """request, response, header, data, coordinator-key or coordinator-value."""
    key: int
    versions: range
    flexible: range
    root: Struct
    structs: list[Struct]
    """All structs but the root, children before parents."""


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def parse_versions(text: str) -> range:
    """`none`, `3`, `3+`, `3-13`."""
    if text == "none":
        return NEVER
    if text.endswith("+"):
        return range(int(text[:-1]), OPEN_END)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def read_table(path: Path = TABLE) -> list[Message]:
    messages: list[Message] = []
    open_structs: list[Struct] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if line.startswith("#") or not words:
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 0:
            _, kind, key, name, versions, flexible = words
            root = Struct(name)
            number = -1 if key == "-" else int(key)
            known = parse_versions(flexible.removeprefix("flexible="))
            messages.append(Message(kind, number, parse_versions(versions), known, root, []))
            open_structs = [root]
        elif words[0] == "struct":
            open_structs[depth:] = [Struct(words[1])]
            messages[-1].structs.append(open_structs[depth])
        else:
            parsed = parse_field(words)
            open_structs[depth - 1].fields.append(parsed)
            open_structs[depth:] = [Struct(parsed.kind)]
            parsed.struct = open_structs[depth] if parsed.kind[0].isupper() else None
    for message in messages:
        resolve(message)
    return messages


def parse_field(words: list[str]) -> Field:
    name, kind, versions, *options = words
    result = Field(name, kind.removeprefix("[]"), kind.startswith("[]"), parse_versions(versions))
    for option in options:
        what, _, value = option.partition("=")
        if what == "null":
            result.nullable = parse_versions(value)
        elif what == "tag":
            number, _, tagged = value.partition("@")
            result.tag, result.tagged = int(number), parse_versions(tagged)
        elif what == "default":
            result.default = value
        elif what == "flexible":
            result.never_flexible = True
        elif what == "ignorable":
            result.ignorable = True
        else:
            raise ValueError(f"unknown option {option} of field {name}")
    return result


def resolve(message: Message) -> None:
    """Point fields at the common structs that they name, and list all structs, children first."""
    common = {struct.name: struct for struct in message.structs}
    message.structs = []

    def walk(struct: Struct) -> None:
        for child in struct.fields:
            if child.struct is not None:
                child.struct = child.struct if child.struct.fields else common[child.kind]
                walk(child.struct)
                if not any(child.struct is known for known in message.structs):
                    message.structs.append(child.struct)

    walk(message.root)


def name_classes(messages: list[Message]) -> None:
    """Give each struct of one module a class name: its own, or, where two clash, led by Request or Response."""
    names = [struct.name for message in messages for struct in message.structs]
    for message in messages:
        message.root.python = message.root.name
        for struct in message.structs:
            clash = names.count(struct.name) > 1
            struct.python = message.kind.capitalize() + struct.name if clash else struct.name


def all_structs(messages: list[Message]) -> Iterator[Struct]:
    for message in messages:
        yield from message.structs
        yield message.root
