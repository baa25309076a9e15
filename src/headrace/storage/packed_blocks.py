"""Blocks: bytes of record batches that a store keeps compressed. Durable segments and Redis entries consist of them.

Promises:
- A block unpacks to the bytes that were packed, or raises CorruptData. It is never longer than the caller's limit.
- A block that its codec makes hardly smaller is kept as it is.
- A block's first byte is never 0, with which every record batch begins. So a store may hold blocks and bare batches.

A block proves nothing: its reader has the checksums of the bytes inside. Packing and unpacking release the interpreter,
and block: never call them on the event loop.

Layout (integers big-endian, unsigned):

| position | bytes | content |
|---|---|---|
| 0 | 1 | 0xB0 plus the codec, with a batch's number of it: 0 as it is, 3 lz4 (block format), 4 zstd (frames) |
| 1 | 4 | bytes of the content |
| 5 | 4 | bytes stored behind this header |
| 9 | | the content, packed |
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

import cramjam
import lz4.block

from headrace.base.errors import CorruptData
from headrace.base.ports import Buffer
from headrace.wire.compression import ZSTD_LEVEL, Compression

CODECS: Final[Mapping[str, Compression]] = {
    "none": Compression.NONE,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""The values of `storage.compression`."""
HEADER: Final = Struct(">BII")
_MARK: Final = 0xB0
_CODEC_BITS: Final = 0x0F
LEAST_GAIN: Final = 16
"""A block is packed where that saves at least one byte in this many. Unpacking costs more than the rest would save."""


class BlockHeader(NamedTuple):
    """The first bytes of a block."""

    codec: Compression
    content_bytes: int
    """Bytes that were packed."""
    stored_bytes: int
    """Bytes behind the header."""

    @property
    def size(self) -> int:
        """Bytes of the whole block."""
        return HEADER.size + self.stored_bytes


def pack_block(codec: Compression, content: Buffer) -> bytes:
    """Pack whole record batches, of less than 4 GiB."""
    stored: Buffer = content
    match codec:
        case Compression.LZ4:
            stored = lz4.block.compress(content, store_size=False)
        case Compression.ZSTD:
            stored = bytes(cramjam.zstd.compress(content, level=ZSTD_LEVEL))
        case _:
            assert codec is Compression.NONE, codec
    if len(content) - len(stored) < len(content) // LEAST_GAIN:
        codec, stored = Compression.NONE, content
    return b"".join([HEADER.pack(_MARK | codec, len(content), len(stored)), stored])


def read_header(data: Buffer, at: int = 0) -> BlockHeader:
    """The header of the block that begins at `at`. Raises CorruptData where none does."""
    if len(data) - at < HEADER.size:
        raise CorruptData("a block is cut within its header")
    mark, content_bytes, stored_bytes = HEADER.unpack_from(data, at)
    codec = mark & _CODEC_BITS
    if mark & ~_CODEC_BITS != _MARK or codec not in CODECS.values():
        raise CorruptData(f"a block begins with {mark:#04x}, which is no codec known here")
    return BlockHeader(Compression(codec), content_bytes, stored_bytes)


def unpack_block(block: Buffer, bytes_max: int) -> Buffer:
    """The content of a whole block, of at most `bytes_max` bytes. Raises CorruptData."""
    header = read_header(block)
    if header.size != len(block):
        raise CorruptData(f"a block says {header.size} bytes and has {len(block)}")
    if header.content_bytes > bytes_max:
        raise CorruptData(f"a block says that it unpacks to {header.content_bytes} bytes, where {bytes_max} may be")
    stored = memoryview(block)[HEADER.size :]
    try:
        content = _unpacked(header, stored)
    except (cramjam.DecompressionError, lz4.block.LZ4BlockError, ValueError) as error:
        raise CorruptData(f"a block cannot be unpacked: {error}") from error
    if len(content) != header.content_bytes:
        raise CorruptData(f"a block unpacks to {len(content)} bytes, and says {header.content_bytes}")
    return content


def _unpacked(header: BlockHeader, stored: memoryview) -> Buffer:
    match header.codec:
        case Compression.LZ4:
            unpacked: bytes = lz4.block.decompress(stored, uncompressed_size=header.content_bytes)
            return unpacked
        case Compression.ZSTD:
            room = bytearray(header.content_bytes)
            return memoryview(room)[: cramjam.zstd.decompress_into(stored, room)]
        case _:
            return stored
