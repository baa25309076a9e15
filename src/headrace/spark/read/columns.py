"""The columns that the data source yields. Names and types are those of Spark's own Kafka source.

Source: "Structured Streaming + Kafka Integration Guide", schema of the source. Promises an Arrow schema that is exactly
what Spark derives from the SQL schema. Never imports Spark, so that decoding can be tested and used without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.base.errors import UsageError

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

ARROW_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}

SQL_TYPES: Final[dict[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Values of `timestampType`, as in Kafka's TimestampType."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The wanted columns, in order."""

    names: tuple[str, ...]

    @classmethod
    def select(cls, names: Sequence[str] | None, *, headers: bool) -> Columns:
        """All columns (with `headers` only on request), or the named ones. Raises UsageError for an unknown name."""
        if names is None:
            return cls(tuple(name for name in ARROW_TYPES if headers or name != "headers"))
        known = {name.lower(): name for name in ARROW_TYPES}
        if unknown := [name for name in names if name.lower() not in known]:
            raise UsageError(f"Option columns names '{unknown[0]}'; there are: {', '.join(ARROW_TYPES)}.")
        chosen = tuple(known[name.lower()] for name in names)
        if not chosen or len(set(chosen)) < len(chosen):
            raise UsageError("Option columns must name each column once, at least one.")
        return cls(chosen)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def arrow_schema(self) -> Any:
        """A pyarrow.Schema."""
        return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in self.names])

    @property
    def sql(self) -> str:
        """The schema as Spark DDL."""
        return ", ".join(f"`{name}` {SQL_TYPES[name]}" for name in self.names)

    @property
    def simple_string(self) -> str:
        """The schema as Spark's `StructType.simpleString` writes it."""
        return f"struct<{','.join(f'{name}:{SQL_TYPES[name]}' for name in self.names)}>"
