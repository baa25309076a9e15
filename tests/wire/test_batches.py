"""Record batches: what is packed is unpacked, and nothing that is damaged passes for a batch."""

from __future__ import annotations

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.limits import UNPACKED_RECORDS_MAX
from headrace.wire.batches import (
    HEADER,
    HEADER_BYTES,
    SEQUENCE_MAX,
    CorruptBatch,
    Record,
    check_batch,
    check_batches,
    decode_pairs,
    decode_records,
    emptied,
    encode_batch,
    encode_pairs,
    iterate_headers,
    mend_emptied,
    parse_header,
    small_records,
    walk_batch,
    whole_batches,
)
from headrace.wire.compression import Compression
from tests.tiers import examples
from tests.wire.emptied import unreadable

times = st.integers(-1, 2**62)
payloads = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), payloads), max_size=3).map(tuple)
codecs = st.sampled_from(Compression)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    count = draw(st.integers(1, 8))
    first = draw(st.integers(0, 2**62))
    return [Record(first + at, draw(times), draw(payloads), draw(payloads), draw(headers)) for at in range(count)]


@given(record_lists(), codecs, st.integers(-1, 2**31 - 1))
def test_what_is_packed_is_unpacked(records: list[Record], codec: Compression, epoch: int) -> None:
    packed = encode_batch(records, compression=codec, leader_epoch=epoch)
    header = check_batch(packed)
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert (header.next_offset, header.size) == (records[-1].offset + 1, len(packed))
    assert (header.count, header.compression, header.leader_epoch) == (len(records), codec, epoch)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert decode_records(packed) == records
    assert decode_pairs(packed) == [(record.key, record.value) for record in records]


@given(
    st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary()), min_size=1, max_size=70),
    st.integers(-1, 2**63 - 1),
)
@example([(b"k", None)] * 70, 5)
@example([(bytes(2_047), bytes(2_048)), (bytes(63), bytes(64)), (bytes(20_000), b"")], 0)
def test_keys_and_values_of_one_time_are_packed_as_records_are(
    pairs: list[tuple[bytes | None, bytes | None]], timestamp: int
) -> None:
    records = [Record(at, timestamp, key, value) for at, (key, value) in enumerate(pairs)]
    assert encode_pairs(pairs, timestamp) == encode_batch(records)


@given(record_lists(), codecs)
def test_any_flipped_bit_is_found(records: list[Record], codec: Compression) -> None:
    """But in the base offset and the leader epoch, which a broker sets and no CRC covers."""
    packed = encode_batch(records, compression=codec)
    for at in (*range(8, 12), *range(16, len(packed))):
        damaged = bytearray(packed)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(CorruptBatch):
            check_batch(damaged)


@given(record_lists(), codecs)
def test_any_cut_is_found(records: list[Record], codec: Compression) -> None:
    packed = encode_batch(records, compression=codec)
    for end in range(len(packed)):
        with pytest.raises(CorruptBatch):
            check_batch(packed[:end])
        with pytest.raises(CorruptBatch):
            check_batch(packed, 0, end)
        assert whole_batches(packed[:end]) == 0


@given(st.lists(record_lists(), max_size=4), st.integers(0, 60))
def test_several_batches_in_a_row(lists: list[list[Record]], cut: int) -> None:
    packed = [encode_batch(records) for records in lists]
    joined = b"".join(packed)
    starts = [sum(map(len, packed[:at])) for at in range(len(packed))]
    assert [at for at, _ in check_batches(joined)] == starts
    assert list(iterate_headers(joined)) == check_batches(joined)
    assert whole_batches(joined) == len(joined)
    if packed and cut > 0:
        assert whole_batches(joined[:-cut]) == starts[-1]
        with pytest.raises(CorruptBatch):
            check_batches(joined[:-cut])
        with pytest.raises(CorruptBatch):
            list(iterate_headers(joined[:-cut]))


@given(st.binary(max_size=300))
def test_noise_is_never_a_batch_and_never_another_error(noise: bytes) -> None:
    assert whole_batches(noise) <= len(noise)
    with pytest.raises(CorruptBatch):
        check_batch(noise)


@given(record_lists(), st.binary(min_size=1, max_size=30), st.integers(0, 500))
@settings(max_examples=examples(200))
def test_noise_in_the_records_is_corrupt_data_or_other_records(records: list[Record], noise: bytes, where: int) -> None:
    packed = bytearray(encode_batch(records))
    at = HEADER_BYTES + where % max(1, len(packed) - HEADER_BYTES)
    packed[at : at + len(noise)] = noise[: len(packed) - at]
    pairs = None
    with contextlib.suppress(CorruptBatch):
        pairs = decode_pairs(packed)
    try:
        found = decode_records(packed)
    except CorruptBatch:
        return
    assert len(found) == len(records)
    assert pairs == [(record.key, record.value) for record in found]


def test_a_batch_may_not_unpack_to_more_than_the_limit() -> None:
    for codec in Compression:
        packed = encode_batch([Record(0, 0, None, bytes(100_000))], compression=codec)
        assert decode_records(packed, limit=100_100)[0].value == bytes(100_000)
        with pytest.raises(CorruptBatch):
            decode_records(packed, limit=99_000)


@pytest.mark.parametrize("length", [*range(9, HEADER_BYTES - 12), -100])
def test_a_length_shorter_than_a_header_is_no_batch_though_its_crc_be_right(length: int) -> None:
    packed = bytearray(encode_batch([Record(0, 0, None, b"a")]))
    packed[8:12] = length.to_bytes(4, "big", signed=True)
    packed[17:21] = crc32c(bytes(packed[21 : max(21, 12 + length)])).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="bytes"):
        check_batch(packed)


def test_the_count_must_fit_the_offsets() -> None:
    packed = encode_batch([Record(0, 0, None, b"a"), Record(2, 0, None, b"b")])
    with pytest.raises(CorruptBatch, match="2 records"):
        check_batch(packed)


def test_sequences_wrap_as_kafkas_do() -> None:
    records = [Record(at, 0, None, b"") for at in range(3)]
    packed = encode_batch(records, producer_id=5, producer_epoch=1, base_sequence=SEQUENCE_MAX - 1)
    assert parse_header(packed).last_sequence == 0
    assert parse_header(encode_batch(records)).last_sequence == -1


@given(record_lists(), codecs, st.booleans())
def test_an_emptied_batch_has_no_records_and_any_reader_can_read_it(
    records: list[Record], codec: Compression, log_append_time: bool
) -> None:
    raw = encode_batch(records, compression=codec, log_append_time=log_append_time, producer_id=5, producer_epoch=1)
    before = parse_header(raw)
    for batch in (emptied(before), unreadable(before, codec)):
        assert decode_records(batch) == small_records(batch) == []
        assert decode_pairs(batch) == []
        header = check_batch(mend_emptied(batch), compacted=True)
        assert (header.size, header.count, header.compression) == (HEADER_BYTES, 0, Compression.NONE)
        assert header[:4] == (*before[:1], 49, *before[2:4])
        assert header[8:12] == before[8:12], "its highest time and its producer"
        assert (header.is_log_append_time, header.last_offset) == (log_append_time, before.last_offset)


@given(
    st.lists(st.tuples(record_lists(), codecs, st.sampled_from(["kept", "emptied", "older", "damaged"])), max_size=5)
)
def test_only_what_cannot_be_read_is_mended(made: list[tuple[list[Record], Compression, str]]) -> None:
    given_, wanted = [], []
    for records, codec, kind in made:
        raw = encode_batch(records, compression=codec)
        header = parse_header(raw)
        after = {"kept": raw, "emptied": emptied(header)}.get(kind, unreadable(header, codec))
        if kind == "damaged":  # and no batch to be mended: what it says of its producer would be made sound
            after = after[:50] + bytes([after[50] ^ 1]) + after[51:]
        given_.append(after)
        is_older = kind == "older" and codec is not Compression.NONE
        wanted.append(emptied(header) if is_older else after)
    joined = b"".join(given_)
    found = mend_emptied(joined)
    assert bytes(found) == b"".join(wanted)
    assert found is joined or joined != bytes(found), "nothing is copied where nothing is mended"


def test_attributes_say_what_they_say() -> None:
    packed = encode_batch([Record(0, 5, b"k", b"v")], transactional=True, control=True, log_append_time=True)
    header = check_batch(packed)
    assert (header.is_transactional, header.is_control, header.is_log_append_time) == (True, True, True)
    plain = check_batch(encode_batch([Record(0, 5, b"k", b"v")]))
    assert (plain.is_transactional, plain.is_control, plain.is_log_append_time) == (False, False, False)


JAVA_BATCHES = {
    Compression.NONE: bytes.fromhex(
        "00000000000000000000004fffffffff0276f08a240000000000010000018bcfe568000000018bcfe5687bffffffffff"
        "ffffffffffffffffff000000022a000000066b65790a76616c75650402680278026e010e00f60102010100"
    ),
    Compression.GZIP: bytes.fromhex(
        "000000000000000000000063ffffffff02b7ebc60a0001000000010000018bcfe568000000018bcfe5687bffffffffff"
        "ffffffffffffffffff000000021f8b08000000000000ffd362606060cb4eade42a4bcc294d6561ca60aa60ca63e463f8"
        "c6c8c4c8c80000ad0c135b1e000000"
    ),
    Compression.SNAPPY: bytes.fromhex(
        "000000000000000000000065ffffffff029c13158e0002000000010000018bcfe568000000018bcfe5687bffffffffff"
        "ffffffffffffffffff0000000282534e41505059000000000100000001000000201e742a000000066b65790a76616c75"
        "650402680278026e010e00f60102010100"
    ),
    Compression.LZ4: bytes.fromhex(
        "00000000000000000000005effffffff020f5db1f50003000000010000018bcfe568000000018bcfe5687bffffffffff"
        "ffffffffffffffffff0000000204224d186040821e0000802a000000066b65790a76616c75650402680278026e010e00"
        "f6010201010000000000"
    ),
    Compression.ZSTD: bytes.fromhex(
        "00000000000000000000005bffffffff0229916ce20004000000010000018bcfe568000000018bcfe5687bffffffffff"
        "ffffffffffffffffff0000000228b52ffd0058f000002a000000066b65790a76616c75650402680278026e010e00f601"
        "02010100010000"
    ),
}
"""The batches that kafka-clients 4.1.0 makes of `JAVA_RECORDS` (MemoryRecords.withRecords)."""

JAVA_RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("h", b"x"), ("n", None))),
    Record(1, 1_700_000_000_123, None, None),
]


@pytest.mark.parametrize("codec", Compression)
def test_the_java_clients_batches_are_read(codec: Compression) -> None:
    assert check_batch(JAVA_BATCHES[codec]).compression is codec
    assert decode_records(JAVA_BATCHES[codec]) == JAVA_RECORDS


def test_an_uncompressed_batch_is_the_java_clients_byte_for_byte() -> None:
    assert encode_batch(JAVA_RECORDS) == JAVA_BATCHES[Compression.NONE]


def test_a_batch_of_too_many_records_is_not_unpacked_for_a_broker() -> None:
    few = encode_batch([Record(at, 0, b"k", None) for at in range(3)], compression=Compression.LZ4)
    assert walk_batch(few, limit=10_000).all_keyed
    assert small_records(few) == decode_records(few)
    header = parse_header(few)
    many = HEADER.pack(*header._replace(count=UNPACKED_RECORDS_MAX + 1)) + few[HEADER_BYTES:]
    assert small_records(many) is None
    with pytest.raises(CorruptBatch, match="is not unpacked"):
        walk_batch(many, limit=10_000)
