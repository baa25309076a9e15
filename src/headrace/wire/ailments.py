"""A broker's report of where it serves less than the metadata says: a private API that `headrace doctor` asks of each
broker. Sans-IO.

The report has the broker's damaged logs and its `State`s, and the feature levels of all brokers. The controller adds
the states that other brokers sent with their heartbeats. The request is a header and nothing else. The answer is JSON:
version 0 a list of damaged logs, version 1 an object. A broker that knows only version 0 answers with it whatever it is
asked.

Promises: bytes that are not such an answer raise CorruptData and nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.values import Value
from headrace.wire import own_apis

API_KEY: Final = own_apis.AILMENTS
REQUEST: Final = struct.pack(">ihhih", 10, API_KEY, 1, 0, -1)
"""The whole frame with its length: key, version, correlation id, no client id."""
VERSION_AT: Final = struct.Struct(">2xh")
"""Where the version lies in a frame without its length."""

KINDS: Final = (
    "partition offline",
    "store unreachable",
    "no durable store",
    "disk full",
    "read-only disk",
    "clock",
    "descriptors",
    "export stuck",
    "journal given up",
    "cleaning given up",
    "disk nearly full",
    "logs in redis",
)
"""Kinds of states, the worst first."""
NO_STORE: Final = "no durable store"
"""Durable history is there, and this broker cannot read it: nothing can be handed over to it."""
IN_REDIS: Final = "logs in redis"
"""Nothing is wrong: all brokers share their logs, and the text says how safe these are."""


class Ailment(NamedTuple):
    """One damaged log of a broker."""

    topic: str
    partition: int
    leads: bool
    start: int
    """All known damage lies at or after this offset. Where a leader's `end` equals it, nothing is damaged. The leader
    cannot read durable history, which ends here, and leads nothing before that."""
    end: int
    """Known damage lies before this offset; -1: unknown, because the data that was flushed last is gone."""
    obstacle: str
    """The reason why the log is not copied again, and what to do; empty: it is being copied, or will be."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class State(Value):
    """One way in which a broker serves less than it should, or soon will."""

    kind: str
    """One of KINDS; a later version may send others."""
    text: str
    """A clause about the broker: what is wrong."""
    todo: str
    """A clause: what to do."""


class Levels(NamedTuple):
    """The cluster's feature level, and what each registered broker knows."""

    level: int
    known: Mapping[int, tuple[int, int]]
    """The lowest and the highest level of each broker, by id."""


class Report(NamedTuple):
    """The whole report of a broker."""

    damaged: Sequence[Ailment]
    states: Sequence[State] = ()
    heard: Mapping[int, Sequence[State]] = {}
    """States of other brokers by id, as they reported them to this one, if it is the controller."""
    levels: Levels | None = None
    """None: the broker is of a version that does not tell them."""


def encode_ailments(ailments: Sequence[Ailment]) -> bytes:
    """The whole frame of version 0, its length first."""
    return _framed([each._asdict() for each in ailments])


def encode_report(report: Report) -> bytes:
    """The whole frame of version 1, its length first."""
    heard = {str(broker): [asdict(each) for each in states] for broker, states in report.heard.items()}
    states = [asdict(each) for each in report.states]
    value: dict[str, Any] = {"damaged": [each._asdict() for each in report.damaged], "states": states, "heard": heard}
    if report.levels is not None:
        value["level"], value["levels"] = report.levels.level, {str(key): at for key, at in report.levels.known.items()}
    return _framed(value)


def _framed(value: Any) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return struct.pack(">i", len(body)) + body


def version_of(frame: memoryview) -> int:
    """The version that a request frame, without its length, asks for. Raises CorruptData."""
    try:
        return int(VERSION_AT.unpack_from(frame)[0])
    except struct.error as error:
        raise CorruptData("this asks for no version") from error


def decode_report(frame: memoryview) -> Report:
    """The report in a frame of either version, without its length. Raises CorruptData."""
    try:
        value = json.loads(bytes(frame))
        if isinstance(value, list):
            return Report([_ailment(**each) for each in value])
        heard = {int(broker): [_state(**each) for each in states] for broker, states in value["heard"].items()}
        states = [_state(**each) for each in value["states"]]
        return Report([_ailment(**each) for each in value["damaged"]], states, heard, _levels(value))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptData(f"this is no report of a broker: {error}") from error


def _ailment(*, topic: str, partition: int, leads: bool, start: int, end: int, obstacle: str) -> Ailment:
    return Ailment(str(topic), int(partition), bool(leads), int(start), int(end), str(obstacle))


def _levels(value: Mapping[str, Any]) -> Levels | None:
    if "levels" not in value:
        return None
    known = {int(broker): (int(lowest), int(highest)) for broker, (lowest, highest) in value["levels"].items()}
    return Levels(int(value["level"]), known)


def _state(*, kind: str, text: str, todo: str, **_: object) -> State:
    return State(kind=str(kind), text=str(text), todo=str(todo))
