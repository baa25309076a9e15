"""Requests about durable history: a broker reports it, and works on it on request. A private API for `headrace
durable`.

A request is a header and one JSON object, an answer one JSON object. Sans-IO. Promises: other bytes raise CorruptData
and nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.reading import json_value
from headrace.wire import own_apis

API_KEY: Final = own_apis.DURABLE
_HEADER: Final = struct.Struct(">hhih")
SUMMARIES: Final = "summaries"
"""List the catalogs."""
CATALOG: Final = "catalog"
"""List a part of one catalog."""
SWEEP: Final = "sweep"
MERGE: Final = "merge"
"""Merge a topic's small segments."""
RECOVER: Final = "recover"
"""Recover a topic's partitions whose brokers are gone for good."""


class Stray(NamedTuple):
    """An object of the store that nothing refers to."""

    key: str
    bytes: int
    age_ms: int
    reason: str
    due: bool
    """Whether a sweep removes it."""
    removed: bool


@dataclass(slots=True)
class MergeTotals:
    """The result of a merge of small segments: of one broker, or of all that were asked."""

    partitions: list[int] = field(default_factory=list)
    """The partitions whose leaders were asked."""
    before: int = 0
    """Segments that were replaced, or would be."""
    after: int = 0
    """Segments in their place."""
    bytes: int = 0
    """Bytes of the batches in the replaced segments."""
    unread: int = 0
    """Where nothing is executed: the other segments. Only by reading them would one know what stays."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each group that is not merged, and each partition that is not finished."""

    def count(self, *, before: int, after: int, size: int) -> None:
        """Count `after` segments that replace `before` others, with `size` bytes of batches."""
        self.before += before
        self.after += after
        self.bytes += size

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the result of another broker, as it answered."""
        self.partitions = sorted({*self.partitions, *answer["partitions"]})
        self.count(before=answer["before"], after=answer["after"], size=answer["bytes"])
        self.unread += answer.get("unread", 0)  # older brokers do not report it
        self.problems.extend(answer["problems"])


def encode_request(fields: Mapping[str, Any]) -> bytes:
    """The whole frame, its length first."""
    body = _HEADER.pack(API_KEY, 0, 0, -1) + _text(fields)
    return struct.pack(">i", len(body)) + body


def decode_request(frame: memoryview) -> dict[str, Any]:
    """The JSON object of a request frame without its length. Raises CorruptData."""
    return _fields(frame[_HEADER.size :])


def encode_answer(fields: Mapping[str, Any]) -> bytes:
    """The whole frame, its length first."""
    body = _text(fields)
    return struct.pack(">i", len(body)) + body


def decode_answer(frame: memoryview) -> dict[str, Any]:
    """The JSON object of an answer frame without its length. Raises CorruptData."""
    return _fields(frame)


def _text(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fields(text: memoryview) -> dict[str, Any]:
    try:
        value = json_value(bytes(text))
    except ValueError as error:
        raise CorruptData(f"this is no question about durable history, and no answer: {error}") from error
    if not isinstance(value, dict):
        raise CorruptData("this is no question about durable history, and no answer: it is no JSON object")
    return value
