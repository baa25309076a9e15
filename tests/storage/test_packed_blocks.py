"""Blocks: what is packed is unpacked again, within the caller's bound; whatever is changed, nothing else comes out."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.storage.packed_blocks import CODECS, HEADER, pack_block, read_header, unpack_block
from headrace.wire.compression import Compression

codecs = st.sampled_from([*CODECS.values()])
contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(1, 5_000)),
)
PACKING = [Compression.LZ4, Compression.ZSTD]


@given(codec=codecs, content=contents, kind=st.sampled_from([bytes, bytearray, memoryview]))
def test_what_is_packed_is_unpacked_again(codec: Compression, content: bytes, kind: type) -> None:
    block = pack_block(codec, kind(content))
    assert bytes(unpack_block(kind(block), len(content))) == content
    header = read_header(b"?" + block + b"?", 1)
    assert (header.content_bytes, header.size) == (len(content), len(block))
    assert len(block) <= len(content) + HEADER.size
    assert block[0] != 0, "record batches begin with 0"
    assert pack_block(codec, content) == block
    if content:
        with pytest.raises(CorruptData, match="may be"):
            unpack_block(block, len(content) - 1)


@pytest.mark.parametrize("codec", PACKING)
def test_a_block_that_would_hardly_be_smaller_is_kept_as_it_is(codec: Compression) -> None:
    noise = Random(3).randbytes(2_000)
    assert read_header(pack_block(codec, noise)).codec is Compression.NONE
    assert read_header(pack_block(codec, noise + b"a" * 20)).codec is Compression.NONE, "less than a sixteenth"
    assert read_header(pack_block(codec, noise + b"a" * 500)).codec is codec


@given(codec=codecs, content=contents, data=st.data())
def test_a_changed_block_raises_one_error_and_is_never_longer(
    codec: Compression, content: bytes, data: st.DataObject
) -> None:
    block = bytearray(pack_block(codec, content))
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(block)))
    for damaged in (bytes(block), bytes(block[:cut]), bytes(block) + b"?"):
        try:
            found = unpack_block(damaged, len(content) + 10)
        except CorruptData:
            continue
        assert len(found) <= len(content) + 10


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_refused_before_it_takes_memory(codec: Compression) -> None:
    bomb = pack_block(codec, bytes(64 * 1024 * 1024))
    told = HEADER.pack(bomb[0], 1_000, len(bomb) - HEADER.size) + bomb[HEADER.size :]
    tracemalloc.start()
    try:
        for block in (bomb, told):
            with pytest.raises(CorruptData):
                unpack_block(block, 1_000)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("first", [0x00, 0xB1, 0xB2, 0xB5, 0x04, 0xFF])
def test_an_unknown_first_byte_is_no_block(first: int) -> None:
    block = bytes([first]) + pack_block(Compression.ZSTD, b"a" * 100)[1:]
    with pytest.raises(CorruptData, match="no codec known here"):
        unpack_block(block, 100)
