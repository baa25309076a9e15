"""The framing of the commit log's files: one frame per synced write.

A file is a header and frames. A frame is magic, length, CRC32C, and a body: hard state and entries. The checksum also
covers the frame's own position, so that bytes inside an entry never pass for a frame. Little-endian throughout.
Promises: `scan` never raises on any bytes. One frame per sync is what lets recovery tell a torn tail (nothing good
after it) from a damaged middle (a later sync proves that this one had succeeded).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from headrace.base.ids import BrokerId
from headrace.raft.messages import Entry, EntryKind, HardState

FILE_HEADER: Final = b"HEADRACE COMMIT LOG 1\n\0\0"
MAGIC: Final = b"\xf1HRf"
_HEAD: Final = struct.Struct("<4sII")  # magic, length of the body, CRC32C
_POSITION: Final = struct.Struct("<QI")  # what the checksum covers before the body: position, length
_BODY: Final = struct.Struct("<QiI")  # term, vote, number of entries
_ENTRY: Final = struct.Struct("<QQI")  # term, index, length of the data


@dataclass(frozen=True, slots=True)
class Frame:
    """What one synced write held."""

    hard_state: HardState
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file holds."""

    frames: tuple[Frame, ...]
    good_bytes: int
    """Length of the header and the good frames: where the next one goes; 0 where even the header is not whole."""
    damaged: bool
    """Whether good frames follow the first bad byte: not a torn tail."""


def encode_frame(frame: Frame, position: int) -> bytes:
    """The frame as it stands at `position` in its file."""
    state = frame.hard_state
    parts = [_BODY.pack(state.term, state.vote, len(frame.entries))]
    for entry in frame.entries:
        assert entry.kind is EntryKind.DATA, "this version of the format knows no memberships"
        parts += [_ENTRY.pack(entry.term, entry.index, len(entry.data)), entry.data]
    body = b"".join(parts)
    return _HEAD.pack(MAGIC, len(body), _checksum(position, body)) + body


def scan(data: bytes) -> Scan:
    """The good frames of a whole file, and what comes after them."""
    if not data.startswith(FILE_HEADER):
        return Scan((), 0, _good_frame_after(data, 0))
    frames = []
    position = len(FILE_HEADER)
    while (found := _frame_at(data, position)) is not None:
        frame, position = found
        frames.append(frame)
    return Scan(tuple(frames), position, _good_frame_after(data, position + 1))


def _frame_at(data: bytes, position: int) -> tuple[Frame, int] | None:
    """The good frame that starts here, and where it ends."""
    start = position + _HEAD.size
    if start > len(data):
        return None
    magic, length, checksum = _HEAD.unpack_from(data, position)
    if magic != MAGIC or length > len(data) - start or length < _BODY.size:
        return None
    body = data[start : start + length]
    if _checksum(position, body) != checksum:
        return None
    return _decode_body(body), start + length


def _good_frame_after(data: bytes, position: int) -> bool:
    while (position := data.find(MAGIC, position)) >= 0:
        if _frame_at(data, position) is not None:
            return True
        position += 1
    return False


def _checksum(position: int, body: bytes) -> int:
    return crc32c(body, crc32c(_POSITION.pack(position, len(body))))


def _decode_body(body: bytes) -> Frame:
    """The body's checksum was right, so a mismatch in here is a bug of the writer."""
    term, vote, count = _BODY.unpack_from(body)
    at = _BODY.size
    entries = []
    for _ in range(count):
        entry_term, index, length = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        entries.append(Entry(entry_term, index, body[at : at + length]))
        at += length
    assert at == len(body), "a frame's body ends with its last entry"
    return Frame(HardState(term, BrokerId(vote)), tuple(entries))


def first_gap(entries: Sequence[Entry], after: int) -> int | None:
    """The index that is missing in a sequence that should go on from `after`; None where none is."""
    for expected, entry in enumerate(entries, after + 1):
        if entry.index != expected:
            return expected
    return None
