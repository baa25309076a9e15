"""Changes of a table's columns: new ones are added, old ones stay, and a number may become wider; nothing else.

Promises that a reader of the newest columns reads every file that was ever added. Types are texts in Spark's DDL. Names
within them are quoted where needed, which earlier versions omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from headrace.base.errors import UsageError
from headrace.spark.pipelines.tables.progress import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

WIDER: Final = {
    ("tinyint", "smallint"),
    ("tinyint", "int"),
    ("tinyint", "bigint"),
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("float", "double"),
    ("int", "double"),
    ("date", "timestamp_ntz"),
}
"""Pairs of types, of which Spark reads the first as the second."""
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MARKS: Final = re.compile(r"`(?:[^`]|``)*`|[<>(),]")
_QUOTED_FIELD: Final = re.compile(r"`((?:[^`]|``)*)`:(.*)\Z", re.DOTALL)


def evolved(table: Sequence[Column], rows: Sequence[Column], *, widening: bool = True) -> tuple[Column, ...]:
    """The table's columns after rows with these columns are added. Without `widening` a type cannot change, for the
    rows either. Raises UsageError.
    """
    found = {column.name.lower(): column for column in table}
    for column in rows:
        known = found.get(column.name.lower())
        if known is None:
            found[column.name.lower()] = column
        elif known.name != column.name:
            raise UsageError(f"Column '{column.name}' is called '{known.name}' in the table: call it so.")
        elif widening and (known.type, column.type) in WIDER:
            found[column.name.lower()] = column
        elif _all_quoted(known.type) == _all_quoted(column.type):
            found[column.name.lower()] = column  # its type may be quoted better
        elif not (widening and (column.type, known.type) in WIDER):
            raise UsageError(
                f"Column '{column.name}' is {known.type} in the table, and would be {column.type}, which does not hold "
                "it: give the new one another name."
            )
    return tuple(found.values())


def ddl(columns: Sequence[Column]) -> str:
    """The columns as Spark DDL."""
    return ", ".join(f"{quoted(each.name)} {_all_quoted(each.type)}" for each in columns)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def type_text(kind: DataType) -> str:
    """A type in the form of a table's commits: as `simpleString`, with quotes around names that need them."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        fields = [
            f"{each.name if _PLAIN.match(each.name) else quoted(each.name)}:{type_text(each.dataType)}"
            for each in kind.fields
        ]
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)},{type_text(kind.valueType)}>"
    return kind.simpleString()


def _all_quoted(kind: str) -> str:
    """The type with all names in it quoted. A name that an earlier version left unquoted is taken to reach up to its
    type. Spark refuses a text that stays ambiguous.
    """
    head, _, inner = kind.partition("<")
    if head not in ("struct", "array", "map") or not inner.endswith(">"):
        return kind
    parts = _parts(inner[:-1])
    return f"{head}<{','.join(map(_field, parts) if head == 'struct' else map(_all_quoted, parts))}>"


def _field(text: str) -> str:
    if found := _QUOTED_FIELD.match(text):
        return f"`{found[1]}`:{_all_quoted(found[2])}"
    name, colon, kind = text.partition(":")
    return f"{quoted(name)}:{_all_quoted(kind)}" if colon else text


def _parts(text: str) -> Iterator[str]:
    """The parts between commas that stand neither in quotes nor in brackets."""
    begin = depth = 0
    for mark in _MARKS.finditer(text):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(mark[0], 0)
        if mark[0] == "," and depth == 0:
            yield text[begin : mark.start()]
            begin = mark.end()
    if text:
        yield text[begin:]
