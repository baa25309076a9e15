"""Readers: one function for each layout of a struct, `(data, at) -> (struct, at)`, or for a whole array of them,
`(data, at, count) -> (tuple, at)`, so that an element costs no call.

Fixed-width fields that follow each other, together with the first byte of the length or count after them, are one
`struct` call.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.wiregen.code import LETTERS, WIDTHS, Lines, Module, default_of, local
from tools.wiregen.table import Field, Message, Struct

SCALAR_ARRAYS = {"int8": "B", "int16": "H", "int32": "I", "int64": "Q"}


class StructReader:
    """Writes the code that reads the fields of one struct in one version."""

    def __init__(self, module: Module, message: Message, version: int, lines: Lines) -> None:
        self.module = module
        self.message = message
        self.version = version
        self.flexible = version in message.flexible
        self.lines = lines
        self.run: list[tuple[str, str]] = []
        """Fixed-width fields not yet read: (letter, variable)."""

    def read(self, struct: Struct) -> None:
        for child in struct.fields:
            if child.inline_in(self.version):
                self.field(child)
        if self.flexible:
            self.tags(struct)
        self.flush()

    def flush(self) -> None:
        if not self.run:
            return
        letters = "".join(letter for letter, _ in self.run)
        names = ", ".join(name for _, name in self.run)
        if letters == "B":
            self.lines.add(f"{names} = data[at]")
        else:
            comma = "," if len(self.run) == 1 else ""
            names = f"({names}{comma})" if comma else names
            self.lines.add(f"{names} = {self.module.unpack(letters)}(data, at)")
        self.lines.add(f"at += {sum(WIDTHS[letter] for letter, _ in self.run)}")
        for letter, name in self.run:
            if letter == "16s":
                self.lines.add(f"{name} = uuid_of({name})")
        self.run = []

    def field(self, child: Field) -> None:
        """Read one field that is not tagged."""
        name = local(child)
        nullable = self.version in child.nullable
        if child.is_array:
            self.length("i")
            self.maybe_null(child, nullable, lambda: self.array(child))
        elif child.kind in LETTERS:
            self.run.append((LETTERS[child.kind], name))
        elif child.struct is not None:
            self.struct(child, nullable)
        else:
            self.length("h" if child.kind == "string" else "i", never_flexible=child.never_flexible)
            self.maybe_null(child, nullable, lambda: self.blob(child))

    def length(self, letter: str, *, never_flexible: bool = False) -> None:
        """Read a length or count into `n`: -1 (classic) or 0 (flexible) means null; flexible ones are one too large."""
        if not self.flexible or never_flexible:
            self.run.append((letter, "n"))
            self.flush()
            return
        self.run.append(("B", "n"))
        self.flush()
        read = "string_varint" if letter == "h" else "long_varint"
        self.lines.block("if n > 127:", lambda: self.lines.add(f"n, at = {read}(data, at, n)"))

    def maybe_null(self, child: Field, nullable: bool, otherwise: Callable[[], None]) -> None:
        is_null = "n == 0" if self.flexible and not child.never_flexible else "n < 0"
        if nullable:
            self.lines.block(f"if {is_null}:", lambda: self.lines.add(f"{local(child)} = None"))
            self.lines.block("else:", otherwise)
        else:
            self.lines.block(f"if {is_null}:", lambda: self.lines.add(f"raise unexpected_null({child.python!r})"))
            otherwise()

    def blob(self, child: Field) -> None:
        minus = " - 1" if self.flexible and not child.never_flexible else ""
        sliced = "data[at:end]"
        value = {"string": f'str({sliced}, "utf-8")', "bytes": f"bytes({sliced})", "records": sliced}[child.kind]
        self.lines.add(f"end = at + n{minus}", f"{local(child)} = {value}", "at = end")

    def array(self, child: Field) -> None:
        count = "n - 1" if self.flexible else "n"
        name = local(child)
        if child.struct is not None:
            function = array_reader(self.module, self.message, child.struct, self.version)
            self.lines.add(f"{name}, at = {function}(data, at, {count})")
        elif child.kind in SCALAR_ARRAYS:
            width = WIDTHS[LETTERS[child.kind]]
            times = f" * {width}" if width > 1 else ""
            counted = f"({count}){times}" if times and self.flexible else f"{count}{times}"
            self.lines.add(f"spend(data, {count})")
            self.lines.add(f"{name} = ARRAYS_{SCALAR_ARRAYS[child.kind]}[{count}].unpack_from(data, at)")
            self.lines.add(f"at += {counted}")
        else:
            function = {"string": "read_strings", "uuid": "read_uuids"}[child.kind]
            if child.kind == "string" and self.flexible:
                function = "read_compact_strings"
            self.lines.add(f"{name}, at = {function}(data, at, {count})")

    def struct(self, child: Field, nullable: bool) -> None:
        assert child.struct is not None
        name = local(child)
        call = f"{name}, at = {struct_reader(self.module, self.message, child.struct, self.version)}(data, at)"
        if nullable:
            self.run.append(("b", "n"))
            self.flush()
            absent = "n == 0" if child.tagged_in(self.version) else "n < 0"  # a varint there, an int8 elsewhere
            self.lines.block(f"if {absent}:", lambda: self.lines.add(f"{name} = None"))
            self.lines.block("else:", lambda: self.lines.add(call))
        else:
            self.flush()
            self.lines.add(call)

    def tags(self, struct: Struct) -> None:
        self.run.append(("B", "tags"))
        self.flush()
        known = [child for child in struct.fields if child.tagged_in(self.version)]
        if not known:
            self.lines.block("if tags:", lambda: self.lines.add("at = skip_tags(data, at, tags)"))
            return
        for child in known:
            self.lines.add(f"{annotated(child)} = {default_of(child)}")
        function = tags_reader(self.module, self.message, struct, known, self.version)
        names = ", ".join(local(child) for child in known)
        self.lines.block("if tags:", lambda: self.lines.add(f"{names}, at = {function}(data, at, tags)"))

    def built(self, struct: Struct) -> str:
        """The expression that makes the struct of the variables read."""
        values = [local(child) if self.version in child.versions else default_of(child) for child in struct.fields]
        comma = "," if len(values) == 1 else ""
        return f"new({struct.python}, ({', '.join(values)}{comma}))"


def struct_reader(module: Module, message: Message, struct: Struct, version: int) -> str:
    lines = Lines()
    reader = StructReader(module, message, version, lines)
    reader.read(struct)
    lines.add(f"return {reader.built(struct)}, at")
    signature = f"(data: memoryview, at: int) -> tuple[{struct.python}, int]"
    return module.share("read", struct, "", version, signature, lines.text)


def array_reader(module: Module, message: Message, struct: Struct, version: int) -> str:
    lines = Lines()
    lines.add(f"check_count(data, at, count, {bytes_min(message, struct, version)})", "items = []")
    lines.add("for _ in range(count):")
    lines.depth += 1
    reader = StructReader(module, message, version, lines)
    reader.read(struct)
    lines.add(f"items.append({reader.built(struct)})")
    lines.depth -= 1
    lines.add("return tuple(items), at")
    signature = f"(data: memoryview, at: int, count: int) -> tuple[tuple[{struct.python}, ...], int]"
    return module.share("read", struct, "_array", version, signature, lines.text)


def tags_reader(module: Module, message: Message, struct: Struct, known: list[Field], version: int) -> str:
    lines = Lines()
    for child in known:
        lines.add(f"{annotated(child)} = {default_of(child)}")
    lines.add("tags = split_tags(data, at, first)", "for tag, start, end_of_tag in tags:")
    lines.depth += 1
    for position, child in enumerate(known):
        lines.add(f"{'elif' if position else 'if'} tag == {child.tag}:")
        lines.depth += 1
        lines.add("at = start")
        reader = StructReader(module, message, version, lines)
        reader.field(child)
        reader.flush()
        lines.add(f"check_tag({child.python!r}, at, end_of_tag)")
        lines.depth -= 1
    lines.depth -= 1
    names = ", ".join(local(child) for child in known)
    lines.add(f"return {names}, at_end_of(tags, at)")
    signature = f"(data: memoryview, at: int, first: int) -> tuple[{', '.join(map(python_type, known))}, int]"
    return module.share("read", struct, "_tags", version, signature, lines.text)


def annotated(child: Field) -> str:
    return f"{local(child)}: {python_type(child)}"


def python_type(child: Field) -> str:
    """The annotation of a field: its type in all versions together."""
    scalars = {
        "string": "str",
        "bytes": "bytes",
        "records": "Buffer",
        "bool": "bool",
        "uuid": "UUID",
        "float64": "float",
    }
    inner = child.struct.python if child.struct is not None else scalars.get(child.kind, "int")
    outer = f"tuple[{inner}, ...]" if child.is_array else inner
    return f"{outer} | None" if child.nullable or default_of(child) == "None" else outer


def bytes_min(message: Message, struct: Struct, version: int) -> int:
    """The fewest bytes that one such struct takes. Never 0, so that a count is bounded by the bytes that follow."""
    flexible = version in message.flexible
    total = 1 if flexible else 0
    for child in struct.fields:
        if not child.inline_in(version):
            continue
        if child.is_array or child.kind in ("bytes", "records"):
            total += 1 if flexible else 4
        elif child.kind == "string":
            total += 1 if flexible else 2
        elif child.struct is not None:
            total += 1 if version in child.nullable else bytes_min(message, child.struct, version)
        else:
            total += WIDTHS[LETTERS[child.kind]]
    assert total > 0, f"{struct.name} version {version} takes no bytes"
    return total
