"""The journal's file format: rounds, each of which holds what many logs appended since the round before.

| bytes | a round, at a multiple of 4 KB |
|---|---|
| 4, 4 | magic, CRC32C of all that follows, begun with the journal's key |
| 8, 8, 8 | number; first number of this life; lowest number that recovery still needs |
| 4, 4 | size in bytes of the whole round, count of entries |
| | entries: name length, topic id, assignment epoch, lineage, base, end, size; name; batches |

Numbers rise by one, and a round is written only once the one before it is durable. So recovery must find all rounds of
a life from the lowest needed to the last. A missing one among them was damaged, whereas a torn last one was never
acknowledged. A journal's files are used again without being emptied: rounds below the lowest needed are left over. The
key keeps a record's value, which a client chose, from passing for a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.ids import Offset
from headrace.base.ports import Buffer

ALIGNMENT: Final = 4096
"""One page, so that no write touches a page that an earlier round made durable."""
MAGIC: Final = b"HRJ1"
_SEAL: Final = Struct(">4sI")
_HEAD: Final = Struct(">QQQII")
_ENTRY: Final = Struct(">H16sqqqqI")
HEAD_BYTES: Final = _SEAL.size + _HEAD.size
ENTRY_BYTES_MAX: Final = _ENTRY.size + 255


class LogKey(NamedTuple):
    """One log, even if its name is deleted and returns. A copy that is assigned to another broker and to this one again
    is another log with the same key: lineages tell the two apart.
    """

    directory: str
    """Name of its directory."""
    topic_id: bytes
    assignment_epoch: int


class Head(NamedTuple):
    """A round's position among the others."""

    number: int
    life: int
    """Number of the first round since the journal was opened."""
    oldest: int
    """Lowest number that was still needed when this round was written."""


class Entry(NamedTuple):
    """Consecutive whole batches that one log appended."""

    key: LogKey
    lineage: int
    """Rises whenever the log is cut: entries of an earlier lineage are void."""
    base: Offset
    end: Offset
    """Offset after the last record."""
    size: int
    """Bytes of the batches."""
    buffers: Sequence[Buffer]


class FoundEntry(NamedTuple):
    """An entry in a file: its batches are `size` bytes at `position`."""

    key: LogKey
    lineage: int
    base: Offset
    end: Offset
    position: int
    size: int


class FoundRound(NamedTuple):
    """A sound round in a file."""

    head: Head
    stop: int
    """Position where the next round may begin."""
    entries: Sequence[FoundEntry]


def aligned(position: int) -> int:
    """The first aligned position at or after this one."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def encode_round(key: bytes, head: Head, entries: Sequence[Entry]) -> list[Buffer]:
    """Returns the buffers to write. The batches among them are not copied."""
    body: list[Buffer] = [b""]
    size = HEAD_BYTES
    for entry in entries:
        name = entry.key.directory.encode()
        about = _ENTRY.pack(
            len(name), entry.key.topic_id, entry.key.assignment_epoch, entry.lineage, entry.base, entry.end, entry.size
        )
        body.append(about + name)
        body += entry.buffers
        size += len(about) + len(name) + entry.size
    fixed = _HEAD.pack(*head, size, len(entries))
    crc = crc32c(fixed, crc32c(key))
    for buffer in body:
        crc = crc32c(buffer, crc)
    body[0] = _SEAL.pack(MAGIC, crc) + fixed
    return body


def rounds_in(key: bytes, data: bytes) -> Iterator[FoundRound]:
    """Yields every sound round of a file, whatever lies between them."""
    at = 0
    while at >= 0:
        found = _round_at(key, data, at)
        if found is None:
            at = _next_magic(data, at + ALIGNMENT)
        else:
            yield found
            at = found.stop


def _next_magic(data: bytes, at: int) -> int:
    """The next position from `at` on where a round may begin; -1 where there is none."""
    while at <= len(data) - HEAD_BYTES:
        found = data.find(MAGIC, at)
        if found < 0:
            return -1
        at = aligned(found)
        if at == found:
            return at
    return -1


def _round_at(key: bytes, data: bytes, at: int) -> FoundRound | None:
    if at + HEAD_BYTES > len(data):
        return None
    magic, crc = _SEAL.unpack_from(data, at)
    *head, size, count = _HEAD.unpack_from(data, at + _SEAL.size)
    if magic != MAGIC or size < HEAD_BYTES or at + size > len(data):
        return None
    if crc32c(memoryview(data)[at + _SEAL.size : at + size], crc32c(key)) != crc:
        return None
    entries, position = [], at + HEAD_BYTES
    for _ in range(count):
        name_bytes, topic_id, assignment_epoch, lineage, base, end, bytes_ = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        name = data[position : position + name_bytes].decode()
        position += name_bytes
        log_key = LogKey(name, topic_id, assignment_epoch)
        entries.append(FoundEntry(log_key, lineage, Offset(base), Offset(end), position, bytes_))
        position += bytes_
    return FoundRound(Head(*head), aligned(at + size), entries)
