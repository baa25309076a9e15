"""What the groups of one partition write: records as pairs of bytes, batches, and what becomes of them in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from headrace.coordinators.groups import records
from headrace.coordinators.groups.commits import CommitWriter
from headrace.coordinators.groups.events import Append, Event, OffsetCommitted, Written
from headrace.wire.batches import encode_pairs
from headrace.wire.errors import ErrorCode

IN_DOUBT: Final = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Refusals of an append that say that this partition is lost to us, not that the append was at fault."""


class Entry(NamedTuple):
    """What one group has to write at once."""

    group_id: str
    write: int
    pairs: list[tuple[bytes, bytes | None]]
    """Keys and values."""


def entry(group_id: str, append: Append, commits: CommitWriter) -> Entry:
    """Raises EncodeError where a record is too large to be one."""
    write, encode = commits.write, records.encode
    pairs = [write(record) if isinstance(record, OffsetCommitted) else encode(record) for record in append.records]
    return Entry(group_id, append.write, pairs)


def batch(entries: Iterable[Entry], now_ms: int) -> bytes:
    """All of them."""
    return encode_pairs(list(itertools.chain.from_iterable(entry.pairs for entry in entries)), now_ms)


def told_as(error: ErrorCode) -> ErrorCode:
    """What a group's client is told of what became of an append, in the words that it knows how to take."""
    if error is ErrorCode.NONE:
        return error
    if error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.UNKNOWN_SERVER_ERROR


class Shard(Protocol):
    """Whose groups have written."""

    lost: bool

    def lose(self) -> None: ...
    def send(self, group_id: str, event: Event) -> None: ...


class Settled:
    """`Commit`: one append, of one group or more."""

    __slots__ = ("_entries", "_shard")

    def __init__(self, shard: Shard, entries: list[Entry]) -> None:
        self._shard = shard
        self._entries = entries

    def on_outcome(self, error: ErrorCode) -> None:
        if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._shard.lose()
        told = told_as(error)
        for group_id, write, _ in self._entries:
            if self._shard.lost:
                return
            self._shard.send(group_id, Written(write=write, error=told))
