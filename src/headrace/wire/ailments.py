"""What a broker tells of its damaged logs: a private API, which `headrace doctor` asks each broker.

The request is a header and nothing else, the answer one JSON list. Sans-IO. Promises: what is not such an answer raises
CorruptData and nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData

API_KEY: Final = 18_516
"""'HT': far above the keys that Kafka gives out, and next to that of brokers that copy."""
REQUEST: Final = struct.pack(">ihhih", 10, API_KEY, 0, 0, -1)
"""The whole frame, its length first: key, version, correlation id, no client id."""


class Ailment(NamedTuple):
    """One damaged log of a broker."""

    topic: str
    partition: int
    leads: bool
    start: int
    """All that is known to be damaged lies from here on; where a leader's `end` is no other, nothing is: it cannot read
    durable history, which ends here, and leads nothing before that."""
    end: int
    """Up to here, exclusive; -1: nobody knows, for what was flushed last is gone."""
    obstacle: str
    """Why it is not copied anew, and what to do; empty: it will be, or is."""


def encode_ailments(ailments: Sequence[Ailment]) -> bytes:
    """The whole frame, its length first."""
    body = json.dumps([each._asdict() for each in ailments], separators=(",", ":")).encode()
    return struct.pack(">i", len(body)) + body


def decode_ailments(frame: memoryview) -> list[Ailment]:
    """A frame without its length."""
    try:
        return [_ailment(**each) for each in json.loads(bytes(frame))]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptData(f"this is no list of damaged logs: {error}") from error


def _ailment(*, topic: str, partition: int, leads: bool, start: int, end: int, obstacle: str) -> Ailment:
    return Ailment(str(topic), int(partition), bool(leads), int(start), int(end), str(obstacle))
