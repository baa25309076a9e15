"""The writes of one partition's groups: records as pairs of bytes, batches, and the error code of their outcome."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from headrace.coordinators.groups import records
from headrace.coordinators.groups.commits import CommitWriter
from headrace.coordinators.groups.events import Append, Event, OffsetCommitted, Written
from headrace.coordinators.groups.model import TransactionalProducer
from headrace.wire.batches import encode_pairs
from headrace.wire.errors import ErrorCode

IN_DOUBT: Final = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Refusals of an append which say that this broker has lost the partition, not that the append was at fault."""


class Entry(NamedTuple):
    """The records that one group writes at once."""

    group_id: str
    write: int
    pairs: list[tuple[bytes, bytes | None]]
    """Keys and values."""
    producer: TransactionalProducer | None = None
    """They are a part of its transaction."""


def entry(group_id: str, append: Append, commits: CommitWriter) -> Entry:
    """Return the records of `append` as bytes. Raises EncodeError where a record is too large."""
    write, encode = commits.write, records.encode
    pairs = [write(record) if isinstance(record, OffsetCommitted) else encode(record) for record in append.records]
    return Entry(group_id, append.write, pairs, append.producer)


def batch(entries: Sequence[Entry], now_ms: int) -> bytes:
    """Return one batch of all entries, which are of no transaction, or of one producer's."""
    pairs = list(itertools.chain.from_iterable(entry.pairs for entry in entries))
    return encode_pairs(pairs, now_ms, entries[0].producer)


def told_as(error: ErrorCode) -> ErrorCode:
    """Return the error for a group's client, from the outcome of an append, in codes that clients of groups know."""
    if error is ErrorCode.NONE:
        return error
    if error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.UNKNOWN_SERVER_ERROR


class Shard(Protocol):
    """The part of a shard that an append needs."""

    lost: bool

    def lose(self) -> None: ...
    def send(self, group_id: str, event: Event) -> None: ...


class Settled:
    """A `Commit`: one append, of one group or more."""

    __slots__ = ("_entries", "_shard")

    def __init__(self, shard: Shard, entries: list[Entry]) -> None:
        self._shard = shard
        self._entries = entries

    def on_outcome(self, error: ErrorCode) -> None:
        if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._shard.lose()
        answer = told_as(error)
        for group_id, write, *_ in self._entries:
            if self._shard.lost:
                return
            self._shard.send(group_id, Written(write=write, error=answer))
