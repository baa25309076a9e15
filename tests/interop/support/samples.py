"""The messages that every client sends and must get back as they were, whichever client it is."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final, NamedTuple

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
MEBIBYTE: Final = 1024 * 1024
DEADLINE_S: Final = 150.0


class Message(NamedTuple):
    """A message that a client sends and gets back. `timestamp` is in milliseconds; a header may repeat and may be
    null."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def topic_name(about: str) -> str:
    return f"interop-{about}-{uuid.uuid4().hex[:12]}"


def described(admin: Any, topic: str, partitions: int) -> list[Any]:
    """The partitions of a topic as librdkafka's client is told of them, each with a leader. The broker that it asks may
    hear of a new topic later than the one that made it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        known = admin.list_topics(timeout=DEADLINE_S).topics.get(topic)
        found = [] if known is None else list(known.partitions.values())
        if len(found) == partitions and all(each.leader >= 0 for each in found):
            return found
        assert time.monotonic() < deadline, f"{topic}: {found}"


def recently() -> int:
    """An hour ago in whole seconds, in milliseconds: old enough to be told from now, young enough to be retained."""
    return (int(time.time()) - 3600) * 1000


def messages(count: int, *, start: int | None = None) -> list[Message]:
    """Messages that compress well, one second apart, each told from all others."""
    first = recently() if start is None else start
    return [Message(f"key-{n}".encode(), f"value-{n}-".encode() * 20, first + n * 1000) for n in range(count)]


def odd_messages() -> list[Message]:
    """Null and empty keys, values and headers, headers that repeat, and text that is not ASCII."""
    at = recently()
    return [
        Message(None, b"no key", at),
        Message(b"a tombstone", None, at + 1),
        Message(None, None, at + 2),
        Message(b"", b"", at + 3),
        Message(b"k", b"v", at + 4, (("source", b"tests"), ("empty", b""), ("null", None))),
        Message(b"k", b"v", at + 5, (("twice", b"1"), ("twice", b"2"), ("Grüße", "wörter".encode()))),
    ]
