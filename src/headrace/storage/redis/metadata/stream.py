"""Reads the commit log that is a Stream in Redis, with its snapshot, and checks the chain of hashes.

Promises: entries come in order, each once, and each has the chain that its predecessor calls for. A snapshot is taken
whole, or is read again.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.limits import (
    REDIS_BACKOFF_MS_MIN,
    REDIS_METADATA_PART_BYTES,
    REDIS_METADATA_READ_ENTRIES,
    REDIS_METADATA_TRIES_MAX,
)
from headrace.metadata.codec import decode_events, decode_line, encode_line
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.server_side.keys import Keys

_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class Position:
    """An entry of the log, and the hash over everything up to it."""

    index: int = 0
    chain: bytes = b""

    def is_beyond(self, end: Position) -> bool:
        """Whether a log with this end cannot hold the entry."""
        return self.index > end.index or (self.index == end.index and self.chain != end.chain)


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    token: bytes
    """Number of the lease under which it was committed, as text."""
    chain: bytes
    events: bytes


class Head(NamedTuple):
    """The end of the log, and what is noted beside it."""

    end: Position
    history: str
    """The history of the server in which a holder went on last; empty: not noted."""
    doubts: int
    """The number of the last `ChangesDoubted`; 0: there was none."""
    intended: int
    """The highest number that one was to have."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The image after the newest entry."""

    image: MetadataImage
    at: Position
    events: int
    """Events replayed behind the snapshot; an entry without any counts as one."""


class LogReplaced(Exception):  # noqa: N818 - a state
    """The log in Redis is not the one that was read until now: entries are lost, or trimmed behind a snapshot."""


def chain_of(before: bytes, token: bytes, events: bytes) -> bytes:
    """Return the chain of an entry, as the function `commit` computes it."""
    return hashlib.sha1(before + b"\n" + token + b"\n" + events).hexdigest().encode()


class MetadataStream:
    """Reads one cluster's log over `client`. All raise RedisFailure."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client = client
        self.keys: Final = keys

    async def head(self) -> Position:
        """Return the newest entry's position."""
        index, chain = await self._client.call("HMGET", self.keys.head, "index", "chain", key=self.keys.head)
        return Position(int(index or 0), chain or b"")

    async def state(self) -> Head:
        """Return the newest entry's position, and the rest."""
        key = self.keys.head
        fields = ("index", "chain", "history", "doubts", "intended")
        index, chain, history, doubts, intended = await self._client.call("HMGET", key, *fields, key=key)
        end = Position(int(index or 0), chain or b"")
        return Head(end, (history or b"").decode(), int(doubts or 0), int(intended or 0))

    async def wait(self, after: Position, block_ms: int) -> list[Entry]:
        """Return entries behind `after`, and wait for the first where there is none. Empty: none came in time. Raises
        LogReplaced."""
        found = await self._client.call(
            "XREAD",
            "COUNT",
            REDIS_METADATA_READ_ENTRIES,
            "BLOCK",
            block_ms,
            "STREAMS",
            self.keys.metadata,
            f"{after.index}-0",
            key=self.keys.metadata,
        )
        return [] if found is None else checked(after, _entries(*found.values()))

    async def recover(self) -> Recovered:
        """Read everything that is there. Raises CorruptData too."""
        for _ in range(REDIS_METADATA_TRIES_MAX):
            try:
                return await self._recovered()
            except LogReplaced:  # a new snapshot was written meanwhile, or Redis failed over
                await asyncio.sleep(REDIS_BACKOFF_MS_MIN / 1000)
        raise CorruptData(
            f"Entries of the cluster's metadata in {self.keys.metadata} do not follow from each other: restore the "
            "keys from a backup of the server."
        )

    async def _recovered(self) -> Recovered:
        image, at = await self._snapshot()
        last = await self.head()
        events = 0
        while at.index < last.index:
            found = await self._client.call(
                "XRANGE",
                self.keys.metadata,
                f"({at.index}-0",
                f"{last.index}-0",
                "COUNT",
                REDIS_METADATA_READ_ENTRIES,
                key=self.keys.metadata,
            )
            entries = _entries(found)
            if not entries or not (entries[0].index == at.index + 1 or follows(at, entries[0])):
                await self._check_moved(at, last)
            image, count = await asyncio.to_thread(_replayed, image, checked(at, entries))
            events += count
            at = Position(entries[-1].index, entries[-1].chain)
        return Recovered(image, at, events)

    async def _check_moved(self, at: Position, last: Position) -> None:
        """Raises CorruptData where entries behind the newest snapshot are missing, and LogReplaced otherwise."""
        if await self.head() != last:
            raise LogReplaced  # it failed over, or was trimmed for a newer snapshot
        index = await self._client.call("HGET", self.keys.snapshot, "index", key=self.keys.snapshot)
        if int(index or 0) <= at.index:
            raise CorruptData(
                f"Entries of the cluster's metadata behind {at.index} are gone from {self.keys.metadata} in Redis: "
                "restore the keys from a backup of the server."
            )
        raise LogReplaced

    async def _snapshot(self) -> tuple[MetadataImage, Position]:
        key = self.keys.snapshot
        index, chain, count = await self._client.call("HMGET", key, "index", "chain", "parts", key=key)
        if index is None:
            return EMPTY_IMAGE, Position()
        parts = [await self._client.call("HGET", key, str(number), key=key) for number in range(int(count))]
        if await self._client.call("HGET", key, "index", key=key) != index or None in parts:
            raise LogReplaced
        image = await asyncio.to_thread(image_of, parts, int(index))
        return image, Position(int(index), chain)


def parts_of(image: MetadataImage) -> list[bytes]:
    """Return the image as compressed lines, in parts that a function takes. Slow: for a thread."""
    squeeze = zlib.compressobj(_LEVEL)
    data = b"".join([*(squeeze.compress(line) for line in _lines(image)), squeeze.flush()])
    return [data[at : at + REDIS_METADATA_PART_BYTES] for at in range(0, len(data), REDIS_METADATA_PART_BYTES)]


def image_of(parts: Sequence[bytes], index: int) -> MetadataImage:
    """The inverse of `parts_of`. Raises CorruptData."""
    try:
        text = zlib.decompress(b"".join(parts))
    except zlib.error as error:
        raise CorruptData(
            "The snapshot of the cluster's metadata in Redis is damaged: restore the keys from a backup of the server."
        ) from error
    return EMPTY_IMAGE.replay(map(decode_line, text.splitlines()), index=index, is_snapshot=True)


def checked(after: Position, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries. Raises LogReplaced where one does not follow from the one before it."""
    at, found = after, list(entries)
    for entry in found:
        if not follows(at, entry):
            raise LogReplaced
        at = Position(entry.index, entry.chain)
    return found


def follows(at: Position, entry: Entry) -> bool:
    """Whether the entry is the next one behind this position. Indexes may leave a gap (`doubting`)."""
    return entry.index > at.index and entry.chain == chain_of(at.chain, entry.token, entry.events)


def _lines(image: MetadataImage) -> Iterator[bytes]:
    return map(encode_line, image.snapshot())


def _entries(found: Sequence[Any]) -> list[Entry]:
    return [
        Entry(int(number.partition(b"-")[0]), *(fields[1::2]))  # token, chain, events
        for number, fields in found
    ]


def _replayed(image: MetadataImage, entries: Iterable[Entry]) -> tuple[MetadataImage, int]:
    count = 0
    for entry in entries:
        events = decode_events(entry.events)
        image, count = image.replay(events, index=entry.index), count + max(1, len(events))
    return image, count
