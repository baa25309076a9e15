"""The writes of one shard: the records of several names as one batch, and what becomes of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from headrace.wire.batches import encode_pairs
from headrace.wire.errors import ErrorCode

IN_DOUBT: Final = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Refusals of an append which say that this broker has lost the partition, not that the append was at fault."""


class Entry(NamedTuple):
    """The records that one group, or one transactional id, writes at once."""

    name: str
    write: int
    pairs: list[tuple[bytes, bytes | None]]
    """Keys and values."""
    producer: tuple[int, int] | None = None
    """They are a part of the transaction of this producer id, in this epoch."""


def batch(entries: Sequence[Entry], now_ms: int) -> bytes:
    """Return one batch of all entries, which are of no transaction, or all of one producer's."""
    pairs = list(itertools.chain.from_iterable(entry.pairs for entry in entries))
    return encode_pairs(pairs, now_ms, entries[0].producer)


class Writer(Protocol):
    """The part of a shard that an append needs."""

    lost: bool

    def lose(self) -> None: ...
    def told_as(self, error: ErrorCode) -> ErrorCode: ...
    def on_written(self, name: str, write: int, error: ErrorCode) -> None: ...


class Settled:
    """A `Commit`: one append, of one name or more."""

    __slots__ = ("_entries", "_shard")

    def __init__(self, shard: Writer, entries: list[Entry]) -> None:
        self._shard = shard
        self._entries = entries

    def on_outcome(self, error: ErrorCode) -> None:
        if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._shard.lose()
        answer = self._shard.told_as(error)
        for name, write, *_ in self._entries:
            if self._shard.lost:
                return
            self._shard.on_written(name, write, answer)
