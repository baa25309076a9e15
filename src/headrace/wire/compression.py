"""The five codecs of a record batch (KIP-98, KIP-110), byte-compatible with the Java client.

Promises: the caller's limit bounds unpacking, whatever the input. Bad input raises `CorruptData` and nothing else.
Never logs, never guesses a codec.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import cramjam
import lz4.frame

from headrace.base.errors import CorruptData
from headrace.base.ports import Buffer


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
"""Start of a snappy-java stream: magic, version, lowest compatible version."""
XERIAL_MAGIC: Final = XERIAL_HEADER[:8]
LZ4_MAGIC: Final = bytes.fromhex("04224d18")
LZ4_FLAGS_AT: Final = 4
LZ4_RESERVED: Final = 0x03
LZ4_INDEPENDENT: Final = 0x20
LZ4_BLOCK_CHECKSUMS: Final = 0x10
LZ4_SIZE_IS_TOLD: Final = 0x08
"""Bits of an lz4 frame's flags."""
LZ4_UNCOMPRESSED: Final = 0x80000000
"""Bit of a block's size."""
XERIAL_BLOCK_BYTES: Final = 32 * 1024
FIRST_GUESS_BYTES: Final = 64 * 1024
LZ4_FAST_LEVEL: Final = 9
"""The value of `compression.lz4.level` that selects Kafka's fast compressor. All others are levels of the high
compressor, which begin at LZ4_HIGH_LEVEL_MIN."""
LZ4_HIGH_LEVEL_MIN: Final = 3
LZ4_HIGH_LEVEL_MAX: Final = 12
ZSTD_LEVEL: Final = 3
"""The default of Kafka and of zstd."""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Pack `data` so that Java's Kafka client can read it. Levels are those of Kafka's `compression.*.level` (KIP-390);
    None: the codec's own. The codecs none and snappy have no levels."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            # Java's reader refuses linked blocks and wants blocks of 64 KB.
            packed: bytes = lz4.frame.compress(
                data,
                compression_level=_lz4_level(level),
                block_linked=False,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                store_size=False,
            )
            return packed
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL if level is None else level))


def decompress(codec: Compression, data: Buffer, limit: int) -> Buffer:
    """Unpack to at most `limit` bytes. Raises CorruptData on bad input, or where the result would be longer."""
    match codec:
        case Compression.NONE:
            if len(data) > limit:
                raise _too_much(limit)
            return data
        case Compression.GZIP:
            return _into_growing_buffer(cramjam.gzip, data, limit)
        case Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        case Compression.LZ4:
            return _decompress_lz4(data, limit)
        case Compression.ZSTD:
            return _into_growing_buffer(cramjam.zstd, data, limit)


def _lz4_level(level: int | None) -> int:
    """The level in lz4's own numbers, in which 0 is the fast compressor."""
    if level in (None, LZ4_FAST_LEVEL):
        return 0
    return max(LZ4_HIGH_LEVEL_MIN, min(level, LZ4_HIGH_LEVEL_MAX))


def check_frame(codec: Compression, data: Buffer) -> None:
    """Refuse input that `decompress` reads but Java's reader does not: lz4 that is not a frame of independent blocks,
    or that has empty ones. Raises CorruptData."""
    if codec is Compression.LZ4:
        _check_lz4_frame(bytes(data))


def _check_lz4_frame(data: bytes) -> None:
    if data[:4] != LZ4_MAGIC or len(data) < LZ4_FLAGS_AT + 1:
        raise CorruptData("A batch's lz4 frame does not begin with lz4's magic number.")
    flags = data[LZ4_FLAGS_AT]
    if flags & LZ4_RESERVED:
        raise CorruptData("A batch's lz4 frame sets flags that Java's reader does not know: use none, no dictionary.")
    if not flags & LZ4_INDEPENDENT:
        raise CorruptData("A batch's lz4 frame links its blocks, which Java's reader cannot: use independent blocks.")
    at = LZ4_FLAGS_AT + (11 if flags & LZ4_SIZE_IS_TOLD else 3)
    behind = 4 if flags & LZ4_BLOCK_CHECKSUMS else 0
    while (size := int.from_bytes(data[at : at + 4], "little")) > 0:
        # For Java's reader a block of no bytes is the frame's end, and so is one that unpacks to none.
        if size in (1, LZ4_UNCOMPRESSED):
            raise CorruptData("A batch's lz4 frame has an empty block, at which Java's reader stops.")
        at += 4 + (size & ~LZ4_UNCOMPRESSED) + behind


def _too_much(limit: int) -> CorruptData:
    return CorruptData(f"A compressed batch unpacks to more than {limit} bytes.")


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for at in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, limit: int) -> Buffer:
    """Unpack either framing in use: snappy-java's blocks, and librdkafka's single raw block."""
    if view[:8] != XERIAL_MAGIC:
        return _snappy_block(view, limit)
    unpacked = bytearray()
    at, end = len(XERIAL_HEADER), len(view)
    while at < end:
        size = int.from_bytes(view[at : at + 4], "big")
        at += 4
        if size > end - at or at > end:
            raise CorruptData("A snappy block is longer than its batch.")
        unpacked += _snappy_block(view[at : at + size], limit - len(unpacked))
        at += size
    return unpacked


def _snappy_block(block: memoryview, limit: int) -> bytearray:
    size = _snappy_unpacked_length(block)
    if size > limit:
        raise _too_much(limit)
    unpacked = bytearray(size)
    try:
        written = cramjam.snappy.decompress_raw_into(block, unpacked)
    except cramjam.DecompressionError as error:
        raise CorruptData(f"A batch's snappy block is damaged: {error}.") from error
    if written != size:
        raise CorruptData("A batch's snappy block is shorter than it says.")
    return unpacked


def _snappy_unpacked_length(block: memoryview) -> int:
    """The varint (base 128, at most 32 bits) at the start of a raw snappy block."""
    value = 0
    for shift, byte in zip(range(0, 35, 7), block, strict=False):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise CorruptData("A batch's snappy block has no length.")


def _decompress_lz4(data: Buffer, limit: int) -> Buffer:
    """Unpack piece by piece, because lz4 reserves room for all that it may unpack to. Usually there is one piece."""
    reader = lz4.frame.LZ4FrameDecompressor()
    size = max(FIRST_GUESS_BYTES, 8 * len(data))
    try:
        unpacked: bytes | bytearray = reader.decompress(data, max_length=min(size, limit + 1))
        while not (reader.eof or reader.needs_input or len(unpacked) > limit):
            size *= 4
            piece = reader.decompress(b"", max_length=min(size, limit + 1 - len(unpacked)))
            if not piece and not reader.eof:
                break
            unpacked = bytearray(unpacked) if isinstance(unpacked, bytes) else unpacked
            unpacked += piece
    except (RuntimeError, ValueError) as error:
        raise CorruptData(f"A batch's lz4 frame is damaged: {error}.") from error
    if len(unpacked) > limit:
        raise _too_much(limit)
    if not reader.eof or reader.unused_data:
        raise CorruptData("A batch's lz4 frame does not end where the batch ends.")
    return unpacked


def _into_growing_buffer(codec: Any, data: Buffer, limit: int) -> Buffer:
    """Double a buffer until it holds everything, because gzip and zstd frames do not give their unpacked size."""
    size = min(limit, max(FIRST_GUESS_BYTES, 8 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            written: int = codec.decompress_into(data, buffer)
        except cramjam.DecompressionError as error:
            if str(error) != "failed to write whole buffer":
                raise CorruptData(f"A compressed batch is damaged: {error}.") from error
        else:
            return memoryview(buffer)[:written]
        if size >= limit:
            raise _too_much(limit)
        size = min(limit, size * 4)
