"""The codecs: what is packed is unpacked, within the limit, and damage is one kind of error."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.wire.compression import XERIAL_HEADER, Compression, check_frame, compress, decompress
from tests.tiers import examples

codecs = st.sampled_from(Compression)
packing = st.sampled_from([codec for codec in Compression if codec is not Compression.NONE])
data = st.builds(lambda piece, times: piece * times, st.binary(max_size=300), st.integers(0, 500))


@given(codecs, data)
def test_what_is_packed_is_unpacked(codec: Compression, plain: bytes) -> None:
    packed = compress(codec, plain)
    assert bytes(decompress(codec, packed, len(plain))) == plain
    assert bytes(decompress(codec, memoryview(packed), len(plain) + 1)) == plain


@given(codecs, data)
def test_no_byte_more_than_the_limit_is_given(codec: Compression, plain: bytes) -> None:
    if plain:
        with pytest.raises(CorruptData):
            decompress(codec, compress(codec, plain), len(plain) - 1)


@given(packing, data, st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
@settings(max_examples=examples(300))
def test_damage_is_corrupt_data_or_other_data_within_the_limit(
    codec: Compression, plain: bytes, where: int, noise: bytes
) -> None:
    packed = bytearray(compress(codec, plain))
    at = where % max(1, len(packed))
    packed[at : at + len(noise)] = noise
    try:
        assert len(decompress(codec, packed, 200_000)) <= 200_000
    except CorruptData:
        return


@given(packing, st.binary(min_size=1, max_size=2000), st.integers(1, 50))
def test_a_cut_is_corrupt_data(codec: Compression, plain: bytes, cut: int) -> None:
    packed = compress(codec, plain)
    if codec is Compression.SNAPPY and len(packed) - cut <= len(XERIAL_HEADER):
        return  # an empty stream
    with pytest.raises(CorruptData):
        decompress(codec, packed[:-cut], 10_000)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_bomb_is_refused_without_unpacking_it(codec: Compression) -> None:
    bomb = compress(codec, bytes(50_000_000))
    tracemalloc.start()
    with pytest.raises(CorruptData, match="more than 1000 bytes"):
        decompress(codec, bomb, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_raw_snappy_of_librdkafka_is_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"raw" * 1000))
    assert bytes(decompress(Compression.SNAPPY, raw, 3000)) == b"raw" * 1000
    with pytest.raises(CorruptData):
        decompress(Compression.SNAPPY, b"", 100)
    with pytest.raises(CorruptData):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\xff\xff", 2**40)


def test_a_snappy_block_that_says_too_much_is_refused() -> None:
    with pytest.raises(CorruptData):
        decompress(Compression.SNAPPY, XERIAL_HEADER + struct.pack(">I", 2**31) + b"abc", 100)


def test_lz4_blocks_are_independent_and_of_64_kilobytes() -> None:
    """Bits of the frame descriptor that Java's reader insists on."""
    packed = compress(Compression.LZ4, bytes(200_000))
    assert packed[4] & 0b0010_0000, "blocks are independent"
    assert packed[5] >> 4 == 4, "64 KB"


@pytest.mark.parametrize("size", [65_536 * 8 + 1, 5_000_000])
def test_an_lz4_frame_that_unpacks_to_far_more_than_its_size_comes_whole_or_is_refused(size: int) -> None:
    data = bytes(size)
    packed = compress(Compression.LZ4, data)
    assert 16 * len(packed) < size, "it takes several pieces"
    assert decompress(Compression.LZ4, packed, size) == data
    for limit in (size - 1, size // 2, 1):
        with pytest.raises(CorruptData, match="more than"):
            decompress(Compression.LZ4, packed, limit)
    for damaged in (packed[:-1], packed[: len(packed) // 2], packed + b"x"):
        with pytest.raises(CorruptData):
            decompress(Compression.LZ4, damaged, 2 * size)


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Compression.GZIP, (None, *range(1, 10))),
        (Compression.LZ4, (None, *range(1, 18))),
        (Compression.ZSTD, (None, -131072, -1, 0, 1, 19, 22)),
    ],
)
def test_every_level_that_kafka_has_packs_what_every_reader_unpacks(codec: Compression, levels: tuple[int]) -> None:
    plain = b"".join(b"%d %d|" % (at, at * at) for at in range(500))
    packed = [compress(codec, plain, level) for level in levels]
    assert all(bytes(decompress(codec, each, len(plain))) == plain for each in packed)
    assert packed[0] == compress(codec, plain), "the codec's own"


@pytest.mark.parametrize("options", [{}, {"block_checksum": True}, {"store_size": True, "content_checksum": True}])
@pytest.mark.parametrize("empty", [b"\0\0\0\x80", b"\x01\0\0\0\0"])
def test_an_lz4_frame_with_an_empty_block_is_refused_where_java_stops(options: dict[str, bool], empty: bytes) -> None:
    """It is found behind a header of any size, and behind checksums. A frame without one is taken."""
    given = {"block_linked": False, "block_size": lz4.frame.BLOCKSIZE_MAX64KB, "store_size": False} | options
    frame = lz4.frame.compress(b"v" * 200_000, **given)
    check_frame(Compression.LZ4, frame)
    first = 15 if options.get("store_size") else 7
    between = 4 if options.get("block_checksum") else 0
    second = first + 4 + int.from_bytes(frame[first : first + 4], "little") + between
    for at in (first, second):
        with pytest.raises(CorruptData, match="empty block"):
            check_frame(Compression.LZ4, frame[:at] + empty + bytes(between) + frame[at:])


@given(st.binary(max_size=40))
def test_whatever_a_frame_says_it_is_looked_at_to_its_end(rest: bytes) -> None:
    for data in (rest, b"\x04\x22\x4d\x18\x60" + rest):
        with contextlib.suppress(CorruptData):
            check_frame(Compression.LZ4, memoryview(data))
