"""A client's batches are judged as Apache Kafka's own LogValidator judges them.

Promise: no batch is acknowledged that Java's consumer cannot read. Both judge every field of a header, every kind of
damage within the five codecs, and thousands of batches with changed bytes.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import cramjam
import lz4.frame
import pytest
from crc32c import crc32c

from headrace.wire.batches import CRC_START, HEADER, HEADER_BYTES, LENGTH_END, encode_batch, parse_header
from headrace.wire.compression import Compression, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, pack_records
from tests.broker.data_path import create, fetch, produce
from tests.broker.group_broker import RawClient, running
from tools import kafka_jars

ORACLE = Path(__file__).parent / "validator" / "Validator.java"
NOW = int(time.time() * 1000)
LONG = 2**63 - 1
HOUR_MS = 3_600_000
CHANGED = int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "1")) * 500
CODECS = tuple(Compression)
TOLD = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason="Kafka's own classes need Java and Maven")


class Verdict(NamedTuple):
    error: int
    blamed: tuple[int, ...]
    newest: int | None
    is_readable: bool
    message: str = ""


class Sent(NamedTuple):
    name: str
    batch: bytes
    compact: bool = False
    before_ms: int = LONG
    after_ms: int = HOUR_MS


def judged_by_kafka(sent: list[Sent]) -> list[Verdict]:
    lines = [f"{int(one.compact)} {one.before_ms} {one.after_ms} {one.batch.hex()}" for one in sent]
    command = kafka_jars.compiled(ORACLE, kafka_jars.class_path())
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True, timeout=150)
    verdicts = []
    for line in done.stdout.splitlines():
        error, blamed, newest, readable = line.split()
        verdicts.append(
            Verdict(
                int(error),
                () if blamed == "-" else tuple(map(int, blamed.split(","))),
                None if newest == "-" else int(newest),
                readable == "read",
            )
        )
    assert len(verdicts) == len(sent), done.stderr[-2_000:]
    return verdicts


async def judged_here(sent: list[Sent], client: RawClient) -> list[Verdict]:
    """`is_readable` is Java's to say: true of all."""
    topics: dict[tuple[bool, int, int], str] = {}
    verdicts = []
    for one in sent:
        wanted = one[2:]
        if wanted not in topics:
            topics[wanted] = name = f"t{len(topics)}"
            compact, before, after = wanted
            await create(
                client,
                name,
                cleanup_policy="compact" if compact else "delete",
                message_timestamp_before_max_ms=str(before),
                message_timestamp_after_max_ms=str(after),
            )
        topic = topics[wanted]
        answer = await produce(client, topic, one.batch)
        newest = None
        if not answer.error_code:
            newest = parse_header(bytes((await fetch(client, topic, answer.base_offset)).records)).max_timestamp
        blamed = tuple(each.batch_index for each in answer.record_errors)
        verdicts.append(Verdict(answer.error_code, blamed, newest, True, answer.error_message or ""))
    return verdicts


def records(count: int, *, key: bytes | None = b"k", first: int = NOW) -> list[Record]:
    return [Record(at, first + at, key, b"value %d" % at) for at in range(count)]


def sealed(template: bytes, payload: bytes | None = None, /, **changes: int) -> bytes:
    """A batch with other fields, or other bytes for records, whose CRC holds."""
    payload = template[HEADER_BYTES:] if payload is None else payload
    header = parse_header(template)._replace(batch_length=HEADER_BYTES - LENGTH_END + len(payload), crc=0)
    header = header._replace(**changes)
    crc = crc32c(payload, crc32c(HEADER.pack(*header)[CRC_START:]))
    return HEADER.pack(*header._replace(crc=crc)) + payload


def headers() -> list[Sent]:
    """Every field that a client fills in and Kafka checks, or fills in itself."""
    good = encode_batch(records(3))
    times = {"base_timestamp": (NOW, -1, 0), "max_timestamp": (NOW + 2, -1, 0, NOW + 9, NOW + 9 * HOUR_MS, -7)}
    fields = {
        **times,
        "base_offset": (0, 1, -1, 2**40),
        "leader_epoch": (-1, 0, 99),
        "last_offset_delta": (2, 0, 1, 3, -1, 2**31 - 1),
        "count": (3, 0, 1, 2, 4, -1, 2**31 - 1),
        "producer_id": (-1, 5),
        "base_sequence": (-1, 0),
        "magic": (2, 0, 1, 3),
        "attributes": (0, 0x20, 0x40, 0x80, 5, 6, 7),
    }
    each = [(field, value) for field, values in fields.items() for value in values]
    sent = [Sent(f"{field}={value}", sealed(good, **{field: value})) for field, value in each]
    sent.append(Sent("all counts at most", sealed(good, count=2**31 - 1, last_offset_delta=2**31 - 2)))
    sent.append(Sent("fewer by one", sealed(good, count=2, last_offset_delta=1)))
    sent.append(Sent("more by one", sealed(good, count=4, last_offset_delta=3)))
    early = [Record(0, -5, b"k", b"v"), Record(1, -90, b"k", b"v")]
    sent += [Sent(f"{codec.name} before 1970", encode_batch(early, compression=codec)) for codec in CODECS]
    sent.append(Sent("producer without sequence", sealed(good, producer_id=4, producer_epoch=0)))
    for codec in CODECS:
        packed = encode_batch(records(3), compression=codec)
        sent += [Sent(f"{codec.name} max {value}", sealed(packed, max_timestamp=value)) for value in (-1, 0, NOW + 99)]
        sent.append(Sent(f"{codec.name} without times", encode_batch(records(2, first=-1)[:1], compression=codec)))
    return sent


def rules() -> list[Sent]:
    """Records that a topic's configs refuse, in part."""
    mixed = [each._replace(key=None) if each.offset in (4, 7) else each for each in records(10)]
    late = [each._replace(timestamp=NOW - 5 * HOUR_MS) if each.offset in (2, 3) else each for each in records(6)]
    early = [each._replace(timestamp=NOW + 5 * HOUR_MS) if each.offset == 5 else each for each in records(6)]
    both = [each._replace(timestamp=NOW - 5 * HOUR_MS) if each.offset == 1 else each for each in mixed]
    sent = []
    for codec in CODECS:

        def pack(batch: list[Record], codec: Compression = codec) -> bytes:
            return encode_batch(batch, compression=codec)

        sent += [
            Sent(f"{codec.name} keyless", pack(mixed), compact=True),
            Sent(f"{codec.name} all keyless", pack(records(3, key=None)), compact=True),
            Sent(f"{codec.name} late", pack(late), before_ms=HOUR_MS),
            Sent(f"{codec.name} early", pack(early)),
            Sent(f"{codec.name} keyless and late", pack(both), compact=True, before_ms=HOUR_MS),
            Sent(f"{codec.name} no time is in bounds", pack(records(2, first=-1)[:1]), before_ms=HOUR_MS),
            Sent(f"{codec.name} keyed", pack(records(3)), compact=True, before_ms=HOUR_MS),
        ]
    return sent


def odd_frames(raw: bytes) -> list[tuple[str, Compression, bytes]]:
    """Frames as no known client packs them, and libraries unpack."""
    snappy, frame = compress(Compression.SNAPPY, raw), compress(Compression.LZ4, raw)
    first = 7 + 4 + int.from_bytes(frame[7:11], "little")
    chunk = 16 + 4 + int.from_bytes(snappy[16:20], "big")
    zstd = [compress(Compression.ZSTD, part) for part in (raw[:900], b"", raw[900:])]
    gzips = [gzip.compress(part) for part in (b"", raw[:900], raw[900:])]
    named = gzips[0][:3] + b"\x08" + gzips[0][4:10] + b"n" * (8_192 - 15 - len(gzips[0])) + b"\0" + gzips[0][10:]
    block = (1 | 900 << 3).to_bytes(3, "little") + raw[:900]
    large_window = zstd[0][:4] + b"\0" + bytes([18 << 3]) + block
    return [
        ("of version 0", Compression.SNAPPY, snappy[:8] + b"\0\0\0\0" + snappy[12:]),
        ("of version 2", Compression.SNAPPY, snappy[:8] + b"\0\0\0\x02" + snappy[12:]),
        ("with an empty block", Compression.SNAPPY, snappy[:chunk] + b"\0\0\0\x01\0" + snappy[chunk:]),
        ("with an empty block", Compression.LZ4, frame[:first] + b"\0\0\0\x80" + frame[first:]),
        ("with a block of nothing", Compression.LZ4, frame[:first] + b"\x01\0\0\0\0" + frame[first:]),
        ("of two frames", Compression.LZ4, compress(Compression.LZ4, raw[:900]) + compress(Compression.LZ4, raw[900:])),
        ("of two frames", Compression.ZSTD, zstd[0] + zstd[2]),
        ("with an empty frame", Compression.ZSTD, b"".join(zstd)),
        ("with a frame to skip", Compression.ZSTD, zstd[0] + b"\x50\x2a\x4d\x18\x02\0\0\0ab" + zstd[2]),
        ("with a window of 256 MiB", Compression.ZSTD, large_window + zstd[2]),
        ("behind an empty member", Compression.GZIP, b"".join(gzips)),
        ("behind a member that ends with the buffer", Compression.GZIP, named + gzip.compress(raw)),
    ]


def payloads() -> list[Sent]:
    """Bytes that are no records, and frames that only some readers unpack."""
    many = [each._replace(value=b"v" * 900) for each in records(300)]
    raw = bytes(pack_records(many, 0, NOW))
    good = encode_batch(many)
    odd_name = b"\x16\0\0\0\x01\x01\x02\x04\xff\xfe\x01"
    cases: dict[str, tuple[Compression, bytes]] = {
        "gzip that is none": (Compression.GZIP, b"this is no gzip"),
        "gzip within gzip": (Compression.GZIP, gzip.compress(gzip.compress(raw))),
        "gzip, cut": (Compression.GZIP, gzip.compress(raw)[:-9]),
        "gzip of two members": (Compression.GZIP, gzip.compress(raw[:900]) + gzip.compress(raw[900:])),
        "zstd that is none": (Compression.ZSTD, b"nonsense"),
        "zstd, cut": (Compression.ZSTD, compress(Compression.ZSTD, raw)[:-9]),
        "snappy raw": (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(raw))),
        "snappy that is none": (Compression.SNAPPY, b"\xff" * 30),
        "snappy, cut": (Compression.SNAPPY, compress(Compression.SNAPPY, raw)[:-9]),
        "lz4 that is none": (Compression.LZ4, b"nonsense"),
        "lz4, cut": (Compression.LZ4, compress(Compression.LZ4, raw)[:-9]),
        "nothing": (Compression.NONE, b""),
        "nothing, gzip": (Compression.GZIP, b""),
        "nothing, lz4": (Compression.LZ4, b""),
        "nothing, snappy": (Compression.SNAPPY, b""),
        "nothing, zstd": (Compression.ZSTD, b""),
        "garbage": (Compression.NONE, b"\x02garbage"),
        "half the records": (Compression.NONE, raw[: len(raw) // 2]),
        "more than records": (Compression.NONE, raw + b"\0"),
        "uncompressed under zstd": (Compression.ZSTD, raw),
    }
    cases |= {f"{codec.name.lower()} {name}": (codec, frame) for name, codec, frame in odd_frames(raw)}
    for linked in (True, False):
        for size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB):
            options = {"block_linked": linked, "block_size": size, "content_checksum": True, "block_checksum": True}
            frame = lz4.frame.compress(raw, store_size=linked, **options)
            cases[f"lz4, linked {linked}, block {size}"] = (Compression.LZ4, frame)
    sent = [Sent(name, sealed(good, payload, attributes=codec)) for name, (codec, payload) in cases.items()]
    one = encode_batch(records(1))
    sent += [
        Sent("a header's name that is no UTF-8", sealed(one, odd_name)),
        Sent("the same, compacted", sealed(one, b"\x18\0\0\0\x02k\x01\x02\x04\xff\xfe\x01"), compact=True),
        Sent("a length of six bytes", sealed(one, b"\x8c\x80\x80\x80\x80\0\0\0\0\x01\x01\0")),
        Sent("a header without a name", sealed(one, b"\x10\0\0\0\x01\x01\x02\x01\x01")),
        Sent("headers below none", sealed(one, b"\x0c\0\0\0\x01\x01\x01")),
        Sent("headers that are not there", sealed(one, b"\x0c\0\0\0\x01\x01\x7e")),
    ]
    return sent


def changed(number: int) -> list[Sent]:
    """Sound batches of all codecs, in which a few bytes behind the header are others."""
    random = Random(7)
    sent = []
    for at in range(number):
        codec = CODECS[at % len(CODECS)]
        count = random.choice((1, 2, 5, 90))
        made = [
            Record(
                index,
                NOW + index // 7,
                random.choice((None, b"key")),
                random.choice((None, b"", b"v" * random.choice((9, 200)), random.randbytes(20))),
                ((("name", b"x"),) * random.choice((0, 0, 2))),
            )
            for index in range(count)
        ]
        batch = encode_batch(made, compression=codec)
        payload = bytearray(batch[HEADER_BYTES:])
        if at % 2 and codec is not Compression.NONE:  # the packed bytes are changed, and the frame is sound
            raw = pack_records(made, 0, NOW)
            raw[random.randrange(len(raw))] = random.randrange(256)
            payload = bytearray(compress(codec, bytes(raw)))
        else:
            for _ in range(random.choice((1, 1, 3))):
                payload[random.randrange(len(payload))] = random.randrange(256)
        sent.append(Sent(f"changed {at}: {codec.name} {payload[:40].hex()}", sealed(batch, bytes(payload))))
    return sent


STRICTER = re.compile(r"says offset delta \d|has length -|says offset delta -")
"""Faults that Kafka accepts and we refuse. It merely skips such fields, no known client sends them so, and readers
would interpret them differently."""


async def test_every_batch_is_judged_as_kafka_judges_it(tmp_path: Path) -> None:
    sent = [*headers(), *rules(), *payloads(), *changed(CHANGED)]
    theirs = judged_by_kafka(sent)
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        ours = await judged_here(sent, client)
    wrong = []
    for one, kafka, here in zip(sent, theirs, ours, strict=True):
        if not here.error and not kafka.is_readable:
            wrong.append(f"{one.name}: taken, and Java cannot read it")
        if not here.error and kafka.error:
            wrong.append(f"{one.name}: taken, and Kafka says {kafka.error}")
        if here.error and not kafka.error and kafka.is_readable and not STRICTER.search(here.message):
            wrong.append(f"{one.name}: refused with {here.error} ({here.message}), and Kafka takes it")
        if not here.error and not kafka.error and here.newest != kafka.newest:
            wrong.append(f"{one.name}: the highest time is {here.newest}, and Kafka's {kafka.newest}")
        if kafka.error in TOLD and here.error and (here.error, here.blamed) != (kafka.error, kafka.blamed):
            wrong.append(f"{one.name}: {here.error} for {here.blamed}, and Kafka says {kafka.error} for {kafka.blamed}")
    assert not wrong, f"{len(wrong)} of {len(sent)}:\n" + "\n".join(wrong[:60])
