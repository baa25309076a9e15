"""How a table's columns change: new ones come, old ones stay, and a number may grow wider; nothing else.

Promises that a reader of the newest columns reads every file that was ever added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.base.errors import UsageError
from headrace.spark.pipelines.progress import Column

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
"""What Spark reads as the other."""


def evolved(table: Sequence[Column], rows: Sequence[Column], *, widening: bool = True) -> tuple[Column, ...]:
    """The table's columns, once rows of these are added; without `widening` a type stays as it is, for the rows too.
    Raises UsageError."""
    found = {column.name.lower(): column for column in table}
    for column in rows:
        known = found.get(column.name.lower())
        if known is None:
            found[column.name.lower()] = column
        elif known.name != column.name:
            raise UsageError(f"Column '{column.name}' is called '{known.name}' in the table: call it so.")
        elif widening and (known.type, column.type) in WIDER:
            found[column.name.lower()] = column
        elif known.type != column.type and not (widening and (column.type, known.type) in WIDER):
            raise UsageError(
                f"Column '{column.name}' is {known.type} in the table, and would be {column.type}, which does not hold "
                "it: give the new one another name."
            )
    return tuple(found.values())


def ddl(columns: Sequence[Column]) -> str:
    """As Spark's DDL."""
    return ", ".join(f"`{each.name.replace('`', '``')}` {each.type}" for each in columns)
