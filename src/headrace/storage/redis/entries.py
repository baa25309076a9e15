"""Reads the batches of a log from its Stream, in pieces of about REDIS_FETCH_BYTES."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from headrace.base.limits import REDIS_FETCH_BYTES, REDIS_FETCH_ENTRIES_MAX
from headrace.storage.redis.links.connection import Argument, Reply


class Ask(Protocol):
    """Sends one command to the server of `key`, and waits for its reply. Raises RedisFailure."""

    def __call__(self, *command: Argument, key: str = "") -> Reply: ...


def entries(ask: Ask, stream: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Batches of a log below `end`, from the one that holds `start`, with the offset after each. Blocks. Raises
    RedisFailure."""
    count = 1
    while start < end:
        found = ask("XRANGE", stream, f"({start}-0", f"{end}-0", "COUNT", count, key=stream)
        if not found:
            return
        for entry, fields in found:
            yield number_of(entry), fields[1]
        start = number_of(found[-1][0])
        count = count_for(sum(len(fields[1]) for _, fields in found), len(found))


def number_of(entry: bytes) -> int:
    """The offset in an entry's id."""
    return int(entry.partition(b"-")[0])


def count_for(size: int, count: int, wanted: int = REDIS_FETCH_BYTES) -> int:
    """Return how many entries have about as many bytes as wanted, if they are as those before."""
    return max(1, min(REDIS_FETCH_ENTRIES_MAX, wanted * count // max(1, size)))
