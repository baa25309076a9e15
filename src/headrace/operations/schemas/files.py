"""Schemas in a directory: `TOPIC.avsc` and `TOPIC-key.avsc` for bytes without an id, and `ID.avsc` for those with one.

A file is read again when it has changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from headrace.base.limits import SCHEMA_BYTES_MAX
from headrace.operations.schemas.schema import Cache, Schema, avro_schema

SUFFIX: Final = ".avsc"


class Files:
    """The directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: Cache[tuple[str, int, int]] = Cache()

    def names(self) -> frozenset[str]:
        """Names that have a file, without its suffix. Raises OSError."""
        found = (name for name in os.listdir(self._directory) if name.endswith(SUFFIX))
        return frozenset(name.removesuffix(SUFFIX) for name in found)

    def of(self, name: str) -> Schema:
        """The schema with this name, one of `names`."""
        path = self._directory / (name + SUFFIX)
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                stamp = name, state.st_mtime_ns, state.st_size
                if (known := self._read.get(stamp)) is not None:
                    return known
                data = file.read(SCHEMA_BYTES_MAX + 1)
            if len(data) > SCHEMA_BYTES_MAX:
                return Schema(path.name, "", problem=_problem(path, f"it has more than {SCHEMA_BYTES_MAX:,} bytes"))
            schema = avro_schema(data.decode(), path.name)
        except OSError as error:
            return Schema(path.name, "", problem=_problem(path, error.strerror or str(error)))
        except UnicodeDecodeError:
            return Schema(path.name, "", problem=_problem(path, "it is no text in UTF-8"))
        self._read.put(stamp, schema)
        return schema


def _problem(path: Path, reason: str) -> str:
    return f"It cannot be read with {path.name}: {reason}."
