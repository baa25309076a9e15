"""What commands ask of a broker about moves, and what it tells: a private API, JSON both ways. Sans-IO.

Promises: what is not such a request or answer raises CorruptData and nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.reading import json_value

API_KEY: Final = 18_525
"""Far above the keys that Kafka gives out, and near to those of brokers that copy."""
_HEADER: Final = struct.Struct(">hhih")
LIST: Final = "list"
"""All moves that are under way, as far as this broker knows."""
MEASURE: Final = "measure"
"""How much this broker would have to export before it hands over what it leads of a topic."""
MOVE: Final = "move"
"""Have partitions moved."""


class MoveRequest(NamedTuple):
    """`kind` is one of the above."""

    kind: str
    topic: str | None = None
    partitions: tuple[int, ...] = ()
    """Of the topic; none: all."""
    broker: int | None = None
    """Whom they are to leave; None: whoever leads them."""
    to: int | None = None
    """None: the controller chooses."""
    bytes_per_second: int = -1
    dry_run: bool = False


class MoveView(NamedTuple):
    """One move that is under way, or that is measured."""

    topic: str
    partition: int
    source: int
    target: int
    phase: str
    bytes_left: int
    """To export before the seal; -1: this broker does not know, for it is not the source."""
    obstacle: str
    """Why its last step failed; empty: it did not."""


class FinishedView(NamedTuple):
    """One that this broker has taken over."""

    topic: str
    partition: int
    source: int
    offset: int
    """From which on it is its own."""
    pause_ms: int


class AskedView(NamedTuple):
    """What became of a wish for one partition."""

    topic: str
    partition: int
    source: int
    target: int
    is_handed_over: bool
    """Through the store; else it is copied."""
    refusal: str
    """Empty: it is on its way."""


class MoveAnswer(NamedTuple):
    error: str = ""
    moves: tuple[MoveView, ...] = ()
    finished: tuple[FinishedView, ...] = ()
    asked: tuple[AskedView, ...] = ()


def encode_request(request: MoveRequest) -> bytes:
    """The whole frame, its length first."""
    body = json.dumps(request._asdict()).encode()
    return struct.pack(">i", _HEADER.size + len(body)) + _HEADER.pack(API_KEY, 0, 0, -1) + body


def decode_request(frame: memoryview) -> MoveRequest:
    """A frame without its length."""
    fields = _fields(frame[_HEADER.size :])
    try:
        partitions = tuple(int(each) for each in fields.pop("partitions"))
        return MoveRequest(partitions=partitions, **fields)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"this asks nothing of moves: {error}") from error


def encode_answer(answer: MoveAnswer) -> bytes:
    """The whole frame, its length first."""
    lists = {name: [each._asdict() for each in getattr(answer, name)] for name in ("moves", "finished", "asked")}
    body = json.dumps({"error": answer.error, **lists}).encode()
    return struct.pack(">i", len(body)) + body


def decode_answer(frame: memoryview) -> MoveAnswer:
    """A frame without its length."""
    fields = _fields(frame)
    try:
        return MoveAnswer(
            error=str(fields["error"]),
            moves=tuple(MoveView(**each) for each in fields["moves"]),
            finished=tuple(FinishedView(**each) for each in fields["finished"]),
            asked=tuple(AskedView(**each) for each in fields["asked"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"this tells nothing of moves: {error}") from error


def _fields(body: memoryview) -> dict[str, Any]:
    try:
        fields = json_value(bytes(body))
    except ValueError as error:
        raise CorruptData(f"this is no JSON: {error}") from error
    if not isinstance(fields, Mapping):
        raise CorruptData("this is no JSON object")
    return dict(fields)
