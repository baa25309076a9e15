"""Text of the generated modules: indented lines, compiled struct formats, and functions that several versions share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tools.wiregen.table import Field, Struct, snake

LETTERS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Fixed-width types, as letters of the `struct` module."""

WIDTHS: Final = {"?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8, "16s": 16}
RESERVED: Final = frozenset(
    {"data", "at", "n", "end", "count", "items", "item", "first", "out", "done", "raw", "whole"}
    | {"tags", "tag", "start", "end_of_tag"}
)
"""Names that generated functions use themselves."""


@dataclass(slots=True)
class Lines:
    text: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, *lines: str) -> None:
        self.text.extend("    " * self.depth + line if line else "" for line in lines)

    def block(self, head: str, body: Callable[[], None]) -> None:
        self.add(head)
        self.depth += 1
        body()
        self.depth -= 1


@dataclass(slots=True)
class Module:
    """The functions of one generated module. Two versions of a struct with the same code share a function."""

    formats: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    by_body: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def unpack(self, letters: str) -> str:
        return self._format("unpack", letters, "unpack_from")

    def pack(self, letters: str) -> str:
        return self._format("pack", letters, "pack")

    def _format(self, verb: str, letters: str, method: str) -> str:
        name = f"{verb}_{letters.replace('?', 'z')}"
        self.formats[name] = f'{name}: Final = Struct(">{letters}").{method}'
        return name

    def share(self, verb: str, struct: Struct, suffix: str, version: int, signature: str, body: list[str]) -> str:
        """The name of a function with this body, made if it is new."""
        key = (verb + suffix, struct.python, "\n".join(body))
        if key not in self.by_body:
            name = f"{verb}_{snake(struct.python)}{suffix}_v{version}"
            self.by_body[key] = name
            self.functions.append("\n".join([f"def {name}{signature}:", *body]))
        return self.by_body[key]


def local(child: Field) -> str:
    """The local variable for a field in a generated function."""
    return child.python + "_" if child.python in RESERVED else child.python


def default_of(child: Field) -> str:
    """The Python expression for what a field holds where nothing else is said."""
    if child.default == "null" or (child.kind == "records" and child.default is None):
        return "None"
    if child.is_array:
        return "()"
    if child.struct is not None:
        return default_name(child.struct)
    text = child.default or ""
    if child.kind == "string":
        return repr(text)
    if child.kind == "bytes":
        return "b''"
    if child.kind == "uuid":
        return "NO_UUID"
    if child.kind == "bool":
        return str(text.lower() == "true")
    if child.kind == "float64":
        return repr(float(text or 0))
    return str(int(text or "0", 0))


def default_name(struct: Struct) -> str:
    """The constant that holds a struct of defaults only, made once."""
    return f"DEFAULT_{snake(struct.python).upper()}"


def is_default(owner: str, child: Field) -> str:
    default = default_of(child)
    operator = "is" if default in ("None", "True", "False") else "=="
    return f"{owner}.{child.python} {operator} {default}"


def is_not_default(owner: str, child: Field) -> str:
    return is_default(owner, child).replace(" is ", " is not ", 1).replace(" == ", " != ", 1)
