"""Kafka's own classes read what we make of record batches, and its cleaner leaves the same of the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from headrace.storage.engine.placing import place_in_time
from headrace.storage.keeping import with_records
from headrace.wire.batches import (
    DELETE_HORIZON,
    BatchHeader,
    check_batch,
    check_batches,
    decode_records,
    emptied,
    encode_batch,
    encode_pairs,
    iterate_headers,
    repack,
    seal_records,
)
from headrace.wire.compression import Compression
from headrace.wire.records import Record, pack_records
from tests.interop.support.kafka_batches import CannotReadError, JavaRecord, KafkaBatches
from tests.interop.support.shapes import COMMIT, TIME, Shape, large_records, random_part, random_records, random_shape
from tests.wire.emptied import PACKED, as_left_by_older
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

ROUNDS = int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "2"))
SEED = int(os.environ.get("HEADRACE_SEED", "30"))
BATCHES = 250
KEYS: list[bytes | None] = [None, b"", b"a", b"b", b"a key that is longer than others" * 3]
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def java() -> Iterator[KafkaBatches]:
    with KafkaBatches() as asked:
        yield asked


def told(record: Record) -> JavaRecord:
    return JavaRecord(*record)


def at_offset(batch: bytes, offset: int, epoch: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:12] + epoch.to_bytes(4, "big") + batch[16:]


def random_log(random: Random) -> bytes:
    """Batches as a leader has them: of transactions, producers, markers, with the log's time, and without all that."""
    made, offset = [], random.choice([0, 7, 2**40])
    for number in range(BATCHES):
        match random.randrange(6):
            case 0:
                shape = Shape(
                    encode_batch([COMMIT], producer_id=8, producer_epoch=0, control=True, transactional=True), [COMMIT]
                )
            case 1:
                shape = random_shape(random, KEYS, producer_id=8, producer_epoch=1, base_sequence=5, transactional=True)
            case 2:
                shape = random_shape(random, KEYS, producer_id=2**40, producer_epoch=3, base_sequence=2**31 - 3)
            case 3:
                shape = random_shape(random, KEYS, log_append_time=True)
            case _:
                shape = random_shape(random, KEYS)
        made.append(at_offset(shape.batch, offset, number // 50))
        offset += len(shape.records) + random.choice([0, 0, 5])
    return b"".join(made)


def cleaned(random: Random, log: bytes, now_ms: int) -> tuple[bytes, set[int]]:
    """Our own cleaning of these batches, and the offsets that stay; horizons are those of Kafka's cleaner."""
    made: list[bytes] = []
    offsets: set[int] = set()
    for at, header in iterate_headers(log):
        raw = log[at : at + header.size]
        records = decode_records(raw)
        kept = random_part(random, records)
        offsets.update(record.offset for record in kept)
        made.append(left(header, raw, records, kept, now_ms + DAY_MS))
    return b"".join(made), offsets


def left(header: BatchHeader, raw: bytes, records: list[Record], kept: list[Record], horizon_ms: int) -> bytes:
    if not kept:
        return emptied(header)
    is_due = any(record.value is None for record in kept) and not header.attributes & DELETE_HORIZON
    if len(kept) == len(records) and not is_due:
        return raw
    return with_records(header, kept, horizon_ms if is_due else None)


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_kafkas_cleaner_leaves_the_same_of_the_same(java: KafkaBatches, tmp_path: Path, seed: int) -> None:
    """Twice, for the second time begins with what the first one left."""
    random, log = Random(seed), random_log(Random(seed))
    before, after, kafkas = tmp_path / "before.log", tmp_path / "after.log", tmp_path / "kafka.log"
    for now_ms in (TIME, TIME + 1_000):
        ours, kept = cleaned(random, log, now_ms)
        before.write_bytes(log)
        after.write_bytes(ours)
        theirs = java.clean(before, kafkas, now_ms=now_ms, retention_ms=DAY_MS, kept=kept)
        found = java.walk(after)
        assert found == java.walk(kafkas)
        assert {record.offset for _, records in found for record in records} == kept
        assert any(not batch.records for batch, _ in found)
        same = [ours[at : at + header.size] for at, header in iterate_headers(ours) if not header.compression]
        assert same == [
            theirs[at : at + header.size] for at, header in iterate_headers(theirs) if not header.compression
        ]
        log = ours


@pytest.mark.parametrize("codec", PACKED)
def test_java_cannot_read_what_older_versions_left(java: KafkaBatches, tmp_path: Path, codec: Compression) -> None:
    """So that what the others say is said of something. Its decoder of zstd alone takes nothing for nothing."""
    file = tmp_path / "older.log"
    file.write_bytes(as_left_by_older(emptied(check_batch(encode_batch([Record(0, TIME, b"k", b"v")]))), codec))
    if codec is Compression.ZSTD:
        assert [records for _, records in java.walk(file)] == [[]]
        return
    with pytest.raises(CannotReadError):
        java.walk(file)


def written(random: Random) -> Iterator[tuple[bytes, Sequence[Record]]]:
    """A batch by each hand that makes one, in each codec, and what is in it."""
    for codec in Compression:
        records = random_records(random, KEYS)
        raw = encode_batch(records, compression=codec)
        yield raw, records
        for other in Compression:
            yield repack(raw, other, limit=1 << 24).batch, records
        stamped = place_in_time(raw, check_batches(raw), 0, 4, TIME + 5)
        yield b"".join(stamped.buffers), [record._replace(timestamp=TIME + 5) for record in records]
        yield sealed(records, codec), records
        large = large_records(random, KEYS, 3 << 20)
        yield encode_batch(large, compression=codec), large
        yield sealed(large, codec), large
    pairs = [(record.key, record.value) for record in random_records(random, KEYS)]
    yield encode_pairs(pairs, TIME), [Record(at, TIME, *pair) for at, pair in enumerate(pairs)]


def sealed(records: list[Record], codec: Compression) -> bytes:
    """As Spark's writer ends a batch."""
    room = bytearray(61) + pack_records(records, 0, records[0].timestamp)
    latest = max(record.timestamp for record in records)
    batch = seal_records(
        memoryview(room),
        count=len(records),
        base_timestamp=records[0].timestamp,
        max_timestamp=latest,
        compression=codec,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
    )
    return bytes(batch)


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_java_reads_a_batch_by_every_hand_that_makes_one(java: KafkaBatches, tmp_path: Path, seed: int) -> None:
    batches = list(written(Random(seed)))
    file = tmp_path / "written.log"
    file.write_bytes(b"".join(raw for raw, _ in batches))
    found = java.walk(file)
    assert [records for _, records in found] == [[told(record) for record in records] for _, records in batches]
    for (batch, records), (_, meant) in zip(found, batches, strict=True):
        assert (batch.records, batch.last_offset) == (len(meant), len(meant) - 1)
        assert batch.max_timestamp == max(record.timestamp for record in records)
