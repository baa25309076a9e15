"""Writers: one function for each layout of a struct, `(item, out)`, or for all elements of an array, `(items, out)`.

`out` is the bytearray being filled. Where a struct holds records, its writer also takes `done`, the list of finished
buffers, and returns the next bytearray. Records are put between two bytearrays, never copied.
"""

from __future__ import annotations

from tools.wiregen.code import LETTERS, Lines, Module, default_of, is_default, is_not_default, local
from tools.wiregen.readers import SCALAR_ARRAYS, python_type
from tools.wiregen.table import Field, Message, Struct


class StructWriter:
    """Writes the code that writes the fields of one struct, held in `owner`, in one version."""

    def __init__(self, module: Module, message: Message, version: int, lines: Lines, owner: str) -> None:
        self.module = module
        self.message = message
        self.version = version
        self.flexible = version in message.flexible
        self.lines = lines
        self.owner = owner
        self.run: list[tuple[str, str]] = []
        """Fixed-width fields not yet written: (letter, expression)."""

    def write(self, struct: Struct) -> None:
        if self.message.kind == "request":
            self.refuse_unsayable(struct)
        for child in struct.fields:
            if child.inline_in(self.version):
                self.field(child)
        if self.flexible:
            self.tags(struct)
        self.flush()

    def refuse_unsayable(self, struct: Struct) -> None:
        """A request must not lose, without a word, a field that the version lacks."""
        for child in struct.fields:
            if self.version not in child.versions and not child.ignorable:
                self.refuse_if(is_not_default(self.owner, child), child)

    def refuse_if(self, condition: str, child: Field) -> None:
        self.lines.block(f"if {condition}:", lambda: self.lines.add(f"raise unsayable({self.owner}, {child.python!r})"))

    def flush(self) -> None:
        if self.run:
            self.lines.add(f"out += {self.packed(self.run)}")
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        letters = "".join(letter for letter, _ in run)
        if set(letters) == {"x"}:
            return "b'" + "\\0" * len(letters) + "'"
        values = ", ".join(expression for letter, expression in run if letter != "x")
        return f"{self.module.pack(letters)}({values})"

    def field(self, child: Field, *, known_set: bool = False) -> None:
        """Write one field's value. `known_set`: the code is already within a check that it is not its default."""
        value = f"{self.owner}.{child.python}"
        never_null = known_set and default_of(child) == "None"
        nullable = self.version in child.nullable and not never_null
        if not nullable and not never_null and python_type(child).endswith("| None"):
            self.refuse_if(f"{value} is None", child)
        if child.kind in LETTERS and not child.is_array:
            self.run.append((LETTERS[child.kind], f"{value}.bytes" if child.kind == "uuid" else value))
        elif child.struct is not None and not child.is_array:
            self.struct(child, value, nullable)
        else:
            self.sized(child, value, nullable)

    def sized(self, child: Field, value: str, nullable: bool) -> None:
        """Anything with a length or count in front: strings, bytes, records, arrays."""
        name = local(child)
        compact = self.flexible and not child.never_flexible
        plus = " + 1" if compact else ""
        null = "0" if compact else "-1"
        encoded = ".encode()" if child.kind == "string" and not child.is_array else ""
        if nullable and encoded:
            self.lines.add(f"{name} = {value}")
            self.lines.block(f"if {name} is None:", lambda: self.lines.add(f"n, raw = {null}, b''"))
            self.lines.block("else:", lambda: self.lines.add(f"raw = {name}.encode()", f"n = len(raw){plus}"))
            name = "raw"
        elif nullable:
            self.lines.add(f"{name} = {value}")
            self.lines.add(f"n = {null} if {name} is None else len({name}){plus}")
        else:
            self.lines.add(f"{name} = {value}{encoded}")
            self.lines.add(f"n = len({name}){plus}")
        self.length("h" if encoded else "i", compact)
        self.content(child, name, nullable)

    def length(self, letter: str, compact: bool) -> None:
        if not compact:
            self.run.append((letter, "n"))
            self.flush()
            return
        before = self.run
        self.run = []
        short = self.packed([*before, ("B", "n")])
        long = f"{self.packed(before)} + varint(n)" if before else "varint(n)"
        self.lines.block("if n < 128:", lambda: self.lines.add(f"out += {short}" if before else "out.append(n)"))
        self.lines.block("else:", lambda: self.lines.add(f"out += {long}"))

    def content(self, child: Field, name: str, nullable: bool) -> None:
        """Write the content after the length. An empty or null one adds nothing."""
        if child.is_array and child.struct is not None:
            function, has_records = array_writer(self.module, self.message, child.struct, self.version)
            call = f"out = {function}({name}, out, done)" if has_records else f"{function}({name}, out)"
        elif child.is_array and child.kind in SCALAR_ARRAYS:
            call = f"out += ARRAYS_{SCALAR_ARRAYS[child.kind]}[len({name})].pack(*{name})"
        elif child.is_array:
            function = {"string": "write_strings", "uuid": "write_uuids"}[child.kind]
            function = "write_compact_strings" if self.flexible and child.kind == "string" else function
            call = f"{function}({name}, out)"
        elif child.kind == "records":
            call = f"out = add_records({name}, out, done)"
        else:
            self.lines.add(f"out += {name}" if child.kind == "string" or not nullable else f"out += {name} or b''")
            return
        self.lines.block(f"if {name}:", lambda: self.lines.add(call))

    def struct(self, child: Field, value: str, nullable: bool) -> None:
        assert child.struct is not None
        function = struct_writer(self.module, self.message, child.struct, self.version)
        if nullable:
            absent = 0 if child.tagged_in(self.version) else -1  # a varint there, an int8 elsewhere
            self.run.append(("b", f"{absent} if {value} is None else 1"))
            self.flush()
            self.lines.block(f"if {value} is not None:", lambda: self.lines.add(f"{function}({value}, out)"))
        else:
            self.flush()
            self.lines.add(f"{function}({value}, out)")

    def tags(self, struct: Struct) -> None:
        in_version = [child for child in struct.fields if child.tagged_in(self.version)]
        known = sorted(in_version, key=lambda child: child.tag)  # the order on the wire
        if not known:
            self.run.append(("x", ""))
            return
        condition = " and ".join(is_default(self.owner, child) for child in known)
        function = tags_writer(self.module, self.message, struct, known, self.version)
        before, self.run = self.run, []
        self.lines.block(f"if {condition}:", lambda: self.lines.add(f"out += {self.packed([*before, ('x', '')])}"))
        self.lines.add("else:")
        self.lines.depth += 1
        if before:
            self.lines.add(f"out += {self.packed(before)}")
        self.lines.add(f"{function}({self.owner}, out)")
        self.lines.depth -= 1


def holds_records(struct: Struct, version: int) -> bool:
    return any(
        child.inline_in(version)
        and (child.kind == "records" or (child.struct is not None and holds_records(child.struct, version)))
        for child in struct.fields
    )


def root_writer(module: Module, message: Message, version: int) -> str:
    """The writer of a whole message: always with `done`."""
    lines = Lines()
    StructWriter(module, message, version, lines, "item").write(message.root)
    lines.add("return out")
    signature = f"(item: {message.root.python}, out: bytearray, done: list[Buffer]) -> bytearray"
    return module.share("write", message.root, "", version, signature, lines.text)


def struct_writer(module: Module, message: Message, struct: Struct, version: int) -> str:
    assert not holds_records(struct, version), f"{struct.name}: records in a struct outside an array"
    lines = Lines()
    StructWriter(module, message, version, lines, "item").write(struct)
    signature = f"(item: {struct.python}, out: bytearray) -> None"
    return module.share("write", struct, "", version, signature, lines.text or ["    pass"])


def array_writer(module: Module, message: Message, struct: Struct, version: int) -> tuple[str, bool]:
    has_records = holds_records(struct, version)
    lines = Lines()
    lines.block("for item in items:", lambda: StructWriter(module, message, version, lines, "item").write(struct))
    if has_records:
        lines.add("return out")
        signature = f"(items: tuple[{struct.python}, ...], out: bytearray, done: list[Buffer]) -> bytearray"
    else:
        signature = f"(items: tuple[{struct.python}, ...], out: bytearray) -> None"
    return module.share("write", struct, "_array", version, signature, lines.text), has_records


def tags_writer(module: Module, message: Message, struct: Struct, known: list[Field], version: int) -> str:
    lines = Lines()
    lines.add("tags: list[tuple[int, bytearray]] = []", "whole = out")
    for child in known:
        lines.add(f"if {is_not_default('item', child)}:")
        lines.depth += 1
        lines.add("out = bytearray()")
        writer = StructWriter(module, message, version, lines, "item")
        writer.field(child, known_set=True)
        writer.flush()
        lines.add(f"tags.append(({child.tag}, out))")
        lines.depth -= 1
    lines.add("write_tags(tags, whole)")
    signature = f"(item: {struct.python}, out: bytearray) -> None"
    return module.share("write", struct, "_tags", version, signature, lines.text)
