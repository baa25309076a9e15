"""Cut a stream of bytes into frames: a 4-byte length, then that many bytes. Sans-IO.

A frame that lies whole in one read is a view of that read. A frame that spans reads is gathered in a buffer of its own
size. So each byte is copied at most once, whatever the sizes. A length that is negative or above the bound is refused
before anything is allocated for it.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.base.limits import REQUEST_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.wire.varint import DecodeError

LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i").unpack_from
_FIRST_RESERVE_BYTES: Final = 1 << 20
"""A claimed length reserves no more than this before its bytes have arrived, and nothing before the second read."""


class FrameSplitter:
    """Pass each read to `feed`. After a DecodeError the rest of the stream has no meaning; close it."""

    __slots__ = ("_body", "_filled", "_prefix", "_size", "max_bytes")

    def __init__(self, max_bytes: int = REQUEST_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        """May be changed at any time. It applies to frames that begin after that."""
        self._prefix = b""
        """The first bytes of an incomplete length."""
        self._body: bytearray | None = None
        """The frame being gathered; it holds `_filled` of its `_size` bytes."""
        self._filled = 0
        self._size = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an incomplete frame."""
        return len(self._prefix) if self._body is None else LENGTH_BYTES + self._filled

    @property
    def unfinished_bytes(self) -> int:
        """Size of the incomplete frame, once its length is known; else 0."""
        return 0 if self._body is None else self._size

    def feed(self, data: Buffer) -> list[memoryview]:
        """The frames (without their lengths) that `data` completes, in order. `data` must not change afterwards.

        Raises DecodeError on an impossible length.
        """
        view = memoryview(data)
        at, end = 0, len(view)
        if self._body is None and not self._prefix and end >= LENGTH_BYTES:
            (size,) = _LENGTH(view)
            if size == end - LENGTH_BYTES and size <= self.max_bytes:
                return [view[LENGTH_BYTES:]]
        frames: list[memoryview] = []
        if self._body is not None:
            at = self._gather(view, 0, frames)
        elif self._prefix:
            at = self._finish_prefix(view, frames)
        if self._body is not None or self._prefix:
            return frames
        max_bytes = self.max_bytes
        while end - at >= LENGTH_BYTES:
            (size,) = _LENGTH(view, at)
            if not 0 <= size <= max_bytes:
                raise self._bad(size)
            at += LENGTH_BYTES
            if size > end - at:
                self._begin(size)
                self._gather(view, at, frames)
                return frames
            frames.append(view[at : at + size])
            at += size
        self._prefix = bytes(view[at:])
        return frames

    def _finish_prefix(self, view: memoryview, frames: list[memoryview]) -> int:
        """Complete a length that a read had cut, and its frame if that is there too. Return the next position."""
        missing = LENGTH_BYTES - len(self._prefix)
        self._prefix += view[:missing]
        if len(self._prefix) < LENGTH_BYTES:
            return len(view)
        (size,) = _LENGTH(self._prefix)
        if not 0 <= size <= self.max_bytes:
            raise self._bad(size)
        self._prefix = b""
        self._begin(size)
        return self._gather(view, missing, frames)

    def _begin(self, size: int) -> None:
        self._body = bytearray()
        self._filled = 0
        self._size = size

    def _gather(self, view: memoryview, at: int, frames: list[memoryview]) -> int:
        """Copy into the frame being gathered; hand it out when it is complete. Return the next position."""
        body = self._body
        assert body is not None
        taken = min(self._size - self._filled, len(view) - at)
        after = self._filled + taken
        if self._filled == 0:
            body += view[at : at + taken]
        else:
            if after > len(body):
                body.extend(bytes(min(self._size, max(after, 2 * len(body), _FIRST_RESERVE_BYTES)) - len(body)))
            body[self._filled : after] = view[at : at + taken]
        self._filled = after
        if after == self._size:
            frames.append(memoryview(body))
            self._body = None
        return at + taken

    def _bad(self, size: int) -> DecodeError:
        return DecodeError(f"a frame claims {size} bytes; at most {self.max_bytes} are taken")
