"""A broker's validation of records in clients' batches, over the wire: the refused ones, and those it names.

tests/interop/test_validation.py compares it with Apache Kafka; this needs no Java.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
from crc32c import crc32c

from headrace.base.limits import RECORD_FAULTS_MAX, WALKED_ON_LOOP_HEADERS_MAX, WALKED_ON_LOOP_RECORDS_MAX
from headrace.broker.partitions.intake.repacking import Repacker
from headrace.wire.batches import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    check_batch,
    decode_records,
    encode_batch,
    parse_header,
)
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record, pack_records
from tests.broker.data_path import create, fetch, offset_at, produce
from tests.broker.group_broker import RawClient, running

NOW = 1_700_000_000_000


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        yield client


def some(count: int, *, keyless: tuple[int, ...] = ()) -> list[Record]:
    return [Record(at, NOW + at, None if at in keyless else b"k%d" % at, b"value") for at in range(count)]


def sealed(template: bytes, payload: bytes | None = None, /, **changes: int) -> bytes:
    """A batch with other fields, or other bytes for records, whose CRC holds."""
    payload = template[HEADER_BYTES:] if payload is None else payload
    header = parse_header(template)._replace(batch_length=HEADER_BYTES - LENGTH_END + len(payload), crc=0, **changes)
    crc = crc32c(payload, crc32c(HEADER.pack(*header)[CRC_START:]))
    return HEADER.pack(*header._replace(crc=crc)) + payload


UNREADABLE = {
    "lz4 in linked blocks": sealed(
        encode_batch([Record(at, NOW, b"k", b"v" * 900) for at in range(100)]),
        lz4.frame.compress(
            bytes(pack_records([Record(at, NOW, b"k", b"v" * 900) for at in range(100)], 0, NOW)),
            block_linked=True,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        ),
        attributes=int(Compression.LZ4),
    ),
    "gzip that is none": sealed(encode_batch(some(2)), b"this is no gzip", attributes=int(Compression.GZIP)),
    "fewer records than it says": sealed(encode_batch(some(9)), bytes(pack_records(some(4), 0, NOW))),
    "one record that says it is all": sealed(encode_batch(some(1)), count=2**31 - 1, last_offset_delta=2**31 - 2),
    "more bytes than records": sealed(encode_batch(some(2)), bytes(pack_records(some(2), 0, NOW)) + b"\0"),
    "long, and cut": sealed(
        encode_batch(some(WALKED_ON_LOOP_RECORDS_MAX + 1)),
        bytes(pack_records(some(WALKED_ON_LOOP_RECORDS_MAX + 1), 0, NOW))[:-1],
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_batch_that_no_reader_could_read_is_refused_and_takes_no_offset(client: RawClient, name: str) -> None:
    await create(client, "t", 2)
    answer = await produce(client, "t", UNREADABLE[name])
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    together = await produce_all(client, encode_batch(some(1)), UNREADABLE[name])
    assert [part.error_code for part in together] == [0, ErrorCode.INVALID_RECORD]
    assert (await produce(client, "t", encode_batch(some(1)), partition=1)).base_offset == 0


async def produce_all(client: RawClient, *batches: bytes, version: int = 9) -> Any:
    """One for each partition, in one request."""
    data = tuple(PartitionProduceData(index=at, records=memoryview(batch)) for at, batch in enumerate(batches))
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name="t", partition_data=data),))
    return (await client.ask(version, request)).responses[0].partition_responses


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("count", [10, WALKED_ON_LOOP_RECORDS_MAX + 1])
async def test_records_that_break_a_rule_are_named(client: RawClient, codec: Compression, count: int) -> None:
    await create(client, "t", 2, cleanup_policy="compact")
    good, bad = encode_batch(some(2)), encode_batch(some(count, keyless=(4, 7)), compression=codec)
    for version in (8, 9):
        taken, refused = await produce_all(client, good, bad, version=version)
        assert (taken.error_code, taken.record_errors) == (0, ())
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [
            (each.batch_index, "without a key" in each.batch_index_error_message) for each in refused.record_errors
        ] == [
            (4, True),
            (7, True),
        ]
    await create(client, "times", message_timestamp_after_max_ms="3600000", message_timestamp_before_max_ms="3600000")
    refused = await produce(client, "times", encode_batch(some(3)))
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in refused.record_errors] == [0, 1, 2]


async def test_an_answer_names_a_bounded_number_of_records_over_all_its_batches(client: RawClient) -> None:
    """A small request would ask for a large answer."""
    await create(client, "t", 3, cleanup_policy="compact")
    count = RECORD_FAULTS_MAX // 2 - 1
    batch = encode_batch(some(count, keyless=tuple(range(count))), compression=Compression.ZSTD)
    told = await produce_all(client, batch, batch, batch)
    assert sorted(len(each.record_errors) for each in told) == [2, count, count]
    assert {each.error_code for each in told} == {ErrorCode.INVALID_RECORD}


async def test_many_headers_are_looked_at_in_a_worker(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the event loop as much as a record."""
    await create(client, "t")
    repacked: list[int] = []
    repack = Repacker.repack

    async def counted(self: Repacker, records: Any, wanted: Any) -> Any:
        repacked.append(len(records))
        return await repack(self, records, wanted)

    monkeypatch.setattr(Repacker, "repack", counted)
    for count, workers in ((WALKED_ON_LOOP_HEADERS_MAX // 2, 0), (WALKED_ON_LOOP_HEADERS_MAX // 2 + 1, 1)):
        headers = (("n", None),) * count
        for codec in (Compression.NONE, Compression.ZSTD):
            repacked.clear()
            batch = encode_batch([each._replace(headers=headers) for each in some(2)], compression=codec)
            assert (await produce(client, "t", batch)).error_code == 0
            assert len(repacked) == workers


@pytest.mark.parametrize("codec", list(Compression))
async def test_the_highest_time_is_that_of_the_records_whatever_the_header_says(
    client: RawClient, codec: Compression
) -> None:
    await create(client, "t")
    for at, says in enumerate((-1, 0, NOW + 99_999)):
        sent = sealed(encode_batch(some(3), compression=codec), max_timestamp=says)
        assert (await produce(client, "t", sent)).base_offset == 3 * at
        kept = bytes((await fetch(client, "t", 3 * at)).records)[: len(sent)]
        assert check_batch(kept).max_timestamp == NOW + 2
        assert [record.timestamp for record in decode_records(kept)] == [NOW, NOW + 1, NOW + 2]
    assert (await offset_at(client, "t", NOW - 3_600_000)).offset == 0
    assert (await offset_at(client, "t", NOW + 2)).offset == 2
    assert (await offset_at(client, "t", NOW + 3)).offset == -1


async def test_idempotent_producers_go_on_over_batches_whose_time_was_put_right(client: RawClient) -> None:
    await create(client, "t")
    for sequence in (0, 3, 0):
        sent = encode_batch(some(3), producer_id=5, producer_epoch=0, base_sequence=sequence)
        assert (await produce(client, "t", sealed(sent, max_timestamp=-1))).base_offset == sequence


async def test_long_batches_are_checked_in_a_thread_and_short_ones_are_not(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, "t")
    counts: list[int] = []
    repack = Repacker.repack

    async def noted(self: Repacker, records: Any, wanted: Any) -> Any:
        counts.append(parse_header(records).count)
        return await repack(self, records, wanted)

    monkeypatch.setattr(Repacker, "repack", noted)
    large = [Record(0, NOW, None, random.randbytes(900_000))]
    bloated = [Record(0, NOW, None, bytes(900_000))]
    for made, codec in (
        (some(9), Compression.NONE),
        (some(9), Compression.ZSTD),
        (some(WALKED_ON_LOOP_RECORDS_MAX + 1), Compression.NONE),
        (large, Compression.NONE),
        (bloated, Compression.GZIP),  # it is short until it is unpacked
    ):
        assert (await produce(client, "t", encode_batch(made, compression=codec))).error_code == 0
    assert counts == [WALKED_ON_LOOP_RECORDS_MAX + 1, 1, 1]


async def test_who_asks_for_no_validation_is_checked_only_where_batches_are_compressed(client: RawClient) -> None:
    await create(client, "t", headrace_validate_records="false")
    garbage = sealed(encode_batch(some(2)), b"\x02garbage")
    assert (await produce(client, "t", garbage)).error_code == ErrorCode.NONE
    assert (await produce(client, "t", UNREADABLE["gzip that is none"])).error_code == ErrorCode.INVALID_RECORD
    await create(client, "keyed", headrace_validate_records="false", cleanup_policy="compact")
    assert (await produce(client, "keyed", garbage)).error_code == ErrorCode.INVALID_RECORD


async def test_names_of_headers_are_any_bytes_and_come_back_as_they_were(client: RawClient) -> None:
    """As Kafka has it, which looks at none."""
    await create(client, "t", cleanup_policy="compact")
    body = b"\0\0\0\x02k\x01\x02\x04\xff\xfe\x01"
    sent = sealed(encode_batch(some(1)), bytes([2 * len(body)]) + body)
    assert (await produce(client, "t", sent)).error_code == 0
    (record,) = decode_records(bytes((await fetch(client, "t", 0)).records))
    assert pack_records([record], 0, NOW) == sent[HEADER_BYTES:]
