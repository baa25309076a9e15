"""Requests of commands about moves, and a broker's answers: a private API, JSON both ways. Sans-IO.

Promises: bytes that are not such a request or answer raise CorruptData and nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.reading import json_value
from headrace.wire import own_apis

API_KEY: Final = own_apis.MOVES
_HEADER: Final = struct.Struct(">hhih")
LIST: Final = "list"
"""List all moves under way that this broker knows of."""
MEASURE: Final = "measure"
"""Measure how much this broker would have to export before it hands over its partitions of a topic."""
MOVE: Final = "move"
"""Move partitions."""
READS: Final = "reads"
"""Say whether this broker reads the durable store, of these partitions where it has any of them. It is sent as a dry
run: a broker of before takes it for a move."""
KINDS: Final = (LIST, MEASURE, MOVE, READS)


class MoveRequest(NamedTuple):
    """A request; `kind` is one of the above."""

    kind: str
    topic: str | None = None
    partitions: tuple[int, ...] = ()
    """Partitions of the topic; empty: all."""
    broker: int | None = None
    """The broker that they leave; None: any leader."""
    to: int | None = None
    """The target broker; None: the controller chooses."""
    bytes_per_second: int = -1
    dry_run: bool = False


class MoveView(NamedTuple):
    """One move that is under way, or that was measured."""

    topic: str
    partition: int
    source: int
    target: int
    phase: str
    bytes_left: int
    """Bytes to export before the seal; -1: unknown, because this broker is not the source."""
    obstacle: str
    """The reason why its last step failed, or what it waits for; empty: neither."""
    since_ms: int = 0
    """When that began, in milliseconds since 1970; 0: unknown."""


class FinishedView(NamedTuple):
    """A finished move that this broker took over."""

    topic: str
    partition: int
    source: int
    offset: int
    """First offset that the broker wrote itself."""
    pause_ms: int


class AskedView(NamedTuple):
    """The result of a request to move one partition."""

    topic: str
    partition: int
    source: int
    target: int
    """-1: there is none."""
    is_handed_over: bool
    """True: through the store; False: it is copied."""
    refusal: str
    """The reason for a refusal; empty: the move is under way."""
    has_copy: bool = False
    """The target has a copy already, and only leads from now on: nothing is exported or copied."""


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
    """The request in a frame without its length. Raises CorruptData."""
    fields = _fields(frame[_HEADER.size :])
    try:
        partitions = tuple(int(each) for each in fields.pop("partitions"))
        request = MoveRequest(partitions=partitions, **fields)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"this asks nothing of moves: {error}") from error
    if request.kind not in KINDS:
        raise CorruptData(f"this asks something of moves that this version does not know: {request.kind!r:.40}")
    return request


def encode_answer(answer: MoveAnswer) -> bytes:
    """The whole frame, its length first."""
    lists = {name: [each._asdict() for each in getattr(answer, name)] for name in ("moves", "finished", "asked")}
    # Commands of before know no such fields.
    since = [one.pop("since_ms") for one in lists["moves"]]
    copies = [one.pop("has_copy") for one in lists["asked"]]
    body = json.dumps({"error": answer.error, **lists, "since": since, "copies": copies}).encode()
    return struct.pack(">i", len(body)) + body


def decode_answer(frame: memoryview) -> MoveAnswer:
    """The answer in a frame without its length. Raises CorruptData."""
    fields = _fields(frame)
    try:
        moves = tuple(MoveView(**each) for each in fields["moves"])
        asked = tuple(AskedView(**each) for each in fields["asked"])
        since = fields.get("since", [0] * len(moves))
        copies = fields.get("copies", [False] * len(asked))
        return MoveAnswer(
            error=str(fields["error"]),
            moves=tuple(one._replace(since_ms=int(at)) for one, at in zip(moves, since, strict=True)),
            finished=tuple(FinishedView(**each) for each in fields["finished"]),
            asked=tuple(one._replace(has_copy=bool(has)) for one, has in zip(asked, copies, strict=True)),
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
