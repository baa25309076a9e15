"""The framing of the commit log's files: one frame per synced write.

A file is a header and frames. A frame is magic, length, CRC32C, and a body: hard state, the index that its entries
follow, and the entries. The checksum also covers the frame's own position, so that bytes inside an entry never pass for
a frame. Little-endian throughout. Version 1, which had no kinds of entries and replaced none, is still read. Promises:
`scan` never raises on any bytes. Because each sync covers one frame, recovery can tell a torn tail from a damaged
middle. Nothing good follows a torn tail. A good frame after a bad one proves that the bad one's sync had succeeded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from headrace.base.ids import BrokerId
from headrace.base.values import Value
from headrace.raft.messages import Entry, EntryKind, HardState

FILE_HEADER: Final = b"HEADRACE COMMIT LOG 2\n\0\0"
FILE_HEADER_1: Final = b"HEADRACE COMMIT LOG 1\n\0\0"
MAGIC: Final = b"\xf1HRf"
_HEAD: Final = struct.Struct("<4sII")  # Magic, length of the body, CRC32C.
_POSITION: Final = struct.Struct("<QI")  # Covered by the checksum before the body: position, length.
_BODY: Final = struct.Struct("<QiQBI")  # Term, vote, index before the entries, whether it restores, number of entries.
_ENTRY: Final = struct.Struct("<QBI")  # Term, kind, length of the data.
_BODY_1: Final = struct.Struct("<QiI")  # Term, vote, number of entries.
_ENTRY_1: Final = struct.Struct("<QQI")  # Term, index, length of the data.


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Frame(Value):
    """The content of one synced write.

    Invariant: the entries are contiguous from `follows + 1` on.
    """

    hard_state: HardState
    follows: int
    """Index of the last entry before this frame's. With entries, anything written behind that index before is void.
    Without entries, it is where the log ended. -1 where version 1 did not record it.
    """
    entries: tuple[Entry, ...] = ()
    restores: bool = False
    """The snapshot at `follows`, a leader's, replaces everything written before, once it has its name."""

    @property
    def last_index(self) -> int:
        return self.follows + len(self.entries)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scan(Value):
    """The frames of a file."""

    frames: tuple[Frame, ...]
    good_bytes: int
    """Length of the header and the good frames: the position of the next frame. 0 where even the header is not whole.
    """
    damaged: bool
    """Whether good frames follow the first bad byte: then it is not a torn tail."""
    is_current: bool = True
    """Whether the file has the current version."""


def encode_frame(frame: Frame, position: int) -> bytes:
    """Encode the frame for `position` in its file."""
    state, entries = frame.hard_state, frame.entries
    parts = [_BODY.pack(state.term, state.vote, frame.follows, frame.restores, len(entries))]
    for index, entry in enumerate(entries, frame.follows + 1):
        assert entry.index == index, "a frame's entries are contiguous"
        parts += [_ENTRY.pack(entry.term, entry.kind, len(entry.data)), entry.data]
    body = b"".join(parts)
    return _HEAD.pack(MAGIC, len(body), _checksum(position, body)) + body


def scan(data: bytes) -> Scan:
    """Read the good frames of a whole file, and check what follows them."""
    decode = _decode_body
    if data.startswith(FILE_HEADER_1):
        decode = _decode_body_1
    elif not data.startswith(FILE_HEADER):
        return Scan((), 0, _good_frame_after(data, 0))
    frames = []
    position = len(FILE_HEADER)
    while (found := _frame_at(data, position)) is not None:
        body, position = found
        frames.append(decode(body))
    return Scan(tuple(frames), position, _good_frame_after(data, position + 1), decode is _decode_body)


def _frame_at(data: bytes, position: int) -> tuple[bytes, int] | None:
    """The body of the good frame that starts here, and its end. None where there is none."""
    start = position + _HEAD.size
    if start > len(data):
        return None
    magic, length, checksum = _HEAD.unpack_from(data, position)
    if magic != MAGIC or length > len(data) - start or length < _BODY_1.size:
        return None
    body = data[start : start + length]
    if _checksum(position, body) != checksum:
        return None
    return body, start + length


def _good_frame_after(data: bytes, position: int) -> bool:
    while (position := data.find(MAGIC, position)) >= 0:
        if _frame_at(data, position) is not None:
            return True
        position += 1
    return False


def _checksum(position: int, body: bytes) -> int:
    return crc32c(body, crc32c(_POSITION.pack(position, len(body))))


def _decode_body(body: bytes) -> Frame:
    """Decode a body whose checksum was right: a mismatch here is a bug of the writer."""
    term, vote, follows, restores, count = _BODY.unpack_from(body)
    at = _BODY.size
    entries = []
    for index in range(follows + 1, follows + 1 + count):
        entry_term, kind, length = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        entries.append(Entry(entry_term, index, body[at : at + length], EntryKind(kind)))
        at += length
    assert at == len(body), "a frame's body ends with its last entry"
    return Frame(HardState(term, BrokerId(vote)), follows, tuple(entries), bool(restores))


def _decode_body_1(body: bytes) -> Frame:
    term, vote, count = _BODY_1.unpack_from(body)
    at = _BODY_1.size
    entries = []
    for _ in range(count):
        entry_term, index, length = _ENTRY_1.unpack_from(body, at)
        at += _ENTRY_1.size
        entries.append(Entry(entry_term, index, body[at : at + length]))
        at += length
    assert at == len(body), "a frame's body ends with its last entry"
    return Frame(HardState(term, BrokerId(vote)), entries[0].index - 1 if entries else -1, tuple(entries))
