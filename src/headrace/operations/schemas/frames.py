"""Frames between the process that decodes and the one that asks it."""

from __future__ import annotations

import struct
from typing import Final

HEAD: Final = struct.Struct(">cII")
"""The kind of a frame, the number of its schema, and the bytes behind."""
SCHEMA: Final = b"S"
"""To the child: the texts of a schema, as a list in JSON. It is not answered."""
DATA: Final = b"D"
"""To the child: a value to be read by the schema with this number."""
READY: Final = b"R"
JSON: Final = b"J"
"""From the child: the value as JSON."""
OTHER: Final = b"O"
"""From the child: the bytes are not of this schema."""
LARGE: Final = b"L"
"""From the child: the JSON would be too large, or nested too deeply."""
REFUSED: Final = b"P"
"""From the child: the schema cannot be used, and why."""


def frame(kind: bytes, number: int = 0, data: bytes = b"") -> bytes:
    return HEAD.pack(kind, number, len(data)) + data
