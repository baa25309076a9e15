"""compression.type over the wire: every codec to every other, order kept, unsound batches and bombs refused."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from headrace.base.limits import REPACKED_BATCH_BYTES_MAX, WALKED_ON_LOOP_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.broker.partitions.intake.repacking import Outcome, Repacker, Unsound, Wanted
from headrace.wire.batches import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    check_batch,
    decode_records,
    encode_batch,
    iterate_headers,
    parse_header,
)
from headrace.wire.compression import Compression, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.records import Record, pack_records
from headrace.wire.validation import NO_RULES
from tests.broker.data_path import batch, create, fetch, produce, produce_request
from tests.broker.group_broker import RawClient, running

NAMES = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
VALUES = [b"a" * 300, b"b" * 300, b""]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        yield client


def with_payload(template: bytes, payload: bytes, **changes: int) -> bytes:
    """The header of a batch before other bytes, with a CRC that holds."""
    header = parse_header(template)._replace(crc=0, batch_length=HEADER_BYTES - LENGTH_END + len(payload), **changes)
    crc = crc32c(payload, crc32c(HEADER.pack(*header)[CRC_START:]))
    return HEADER.pack(*header._replace(crc=crc)) + payload


@pytest.mark.parametrize("name", NAMES)
async def test_every_codec_is_kept_as_the_topic_wants(client: RawClient, name: str) -> None:
    await create(client, "t", compression_type=name)
    for at, codec in enumerate(Compression):
        answer = await produce(client, "t", batch(*VALUES, codec=codec))
        assert (answer.error_code, answer.base_offset) == (0, 3 * at)
    data = bytes((await fetch(client, "t", 0)).records)
    found = list(iterate_headers(data))
    assert len(found) == len(Compression)
    for at, header in found:
        whole = data[at : at + header.size]
        assert check_batch(whole).compression is NAMES[name]
        assert [record.value for record in decode_records(whole)] == VALUES
        assert [record.timestamp - 1_700_000_000_000 for record in decode_records(whole)] == [0, 1, 2]


@pytest.mark.parametrize(("name", "low", "high"), [("gzip", "1", "9"), ("lz4", "9", "12"), ("zstd", "-5", "19")])
async def test_the_topic_s_level_is_what_batches_are_packed_at(
    client: RawClient, name: str, low: str, high: str
) -> None:
    """KIP-390. A level that is set while the broker runs holds from the next batch on."""
    levels: Any = {f"compression_{name}_level": low}
    await create(client, "t", compression_type=name, **levels)
    values = [b"%d %d %d" % (at, at * at, at % 7) for at in range(2_000)]
    sizes = []
    for at, level in enumerate((low, high)):
        change = AlterableConfig(name=f"compression.{name}.level", config_operation=0, value=level)
        resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=(change,))
        asked = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        (answer,) = (await client.ask(1, asked)).responses
        assert answer.error_code == 0
        offset = (await produce(client, "t", batch(*values))).base_offset
        assert offset == 2_000 * at
        kept = bytes((await fetch(client, "t", offset)).records)
        assert [record.value for record in decode_records(kept)] == values
        sizes.append(len(kept))
        expected = compress(NAMES[name], batch(*values)[HEADER_BYTES:], int(level))
        assert kept[HEADER_BYTES:] == expected
    assert sizes[1] < sizes[0]


async def test_batches_keep_the_order_in_which_they_came(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as first:
        await create(first, "t", compression_type="gzip")
        clients = [RawClient(bootstrap) for _ in range(2)]
        for client in clients:
            await client.__aenter__()
        slow = encode_batch([Record(at, 1, None, b"%d" % at * 20, ()) for at in range(20_000)])
        quick = batch(b"quick", codec=Compression.GZIP)
        behind = asyncio.create_task(produce(clients[0], "t", slow[:], acks=1))
        await create(first, "other", compression_type="producer")
        assert (await produce(first, "other", quick)).error_code == 0, "others are not held up"
        answers = await asyncio.gather(behind, produce(clients[1], "t", quick))
        assert [answer.base_offset for answer in answers] == [0, 20_000]
        for client in clients:
            await client.__aexit__(None, None, None)


async def test_idempotence_holds_over_recompression(client: RawClient) -> None:
    await create(client, "t", compression_type="zstd")
    sent = encode_batch([Record(0, 1, None, b"v", ())], producer_id=5, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        assert (await produce(client, "t", sent)).base_offset == 0
    gap = encode_batch([Record(0, 1, None, b"v", ())], producer_id=5, producer_epoch=0, base_sequence=9)
    assert (await produce(client, "t", gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_what_is_unsound_inside_is_refused_and_the_next_is_taken(client: RawClient) -> None:
    await create(client, "t", compression_type="zstd")
    good = batch(b"v", b"w")
    records = [Record(at, 1, None, b"v", ()) for at in (0, 5)]
    gap = bytes(pack_records(records, 0, 1))
    bomb = compress(Compression.GZIP, b"\0" * (REPACKED_BATCH_BYTES_MAX + 1))
    for bad in (
        with_payload(good, gap, base_timestamp=1),
        with_payload(good, good[HEADER_BYTES:-1]),
        with_payload(good, good[HEADER_BYTES:] + b"x"),
        with_payload(good, b"no gzip", attributes=int(Compression.GZIP)),
        with_payload(good, bomb, attributes=int(Compression.GZIP)),
    ):
        assert check_batch(bad).count == 2, "sound from the outside"
        assert (await produce(client, "t", bad)).error_code == ErrorCode.INVALID_RECORD
    flipped = bytearray(good)
    flipped[-1] ^= 1
    assert (await produce(client, "t", bytes(flipped))).error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await produce(client, "t", good)).base_offset == 0


@pytest.mark.parametrize("config", [{"compression_type": "zstd"}, {"cleanup_policy": "compact"}])
async def test_times_that_no_header_can_say_are_refused(client: RawClient, config: dict[str, str]) -> None:
    """A record's time is its batch's and a difference: together they may have more than 64 bits."""
    await create(client, "t", 1, **config)
    good = encode_batch([Record(0, 1_000, b"k", b"v", ())])
    bad = with_payload(good, bytes(pack_records([Record(0, 2**63 + 999, b"k", b"v", ())], 0, 1_000)))
    assert check_batch(bad).max_timestamp == 1_000, "sound from the outside"
    assert (await produce(client, "t", bad)).error_code == ErrorCode.INVALID_RECORD
    assert (await produce(client, "t", good)).base_offset == 0


async def test_keys_are_looked_for_in_a_thread_where_that_may_take_long_and_batches_stay_as_they_came(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, "t", cleanup_policy="compact")
    seen: list[Compression] = []
    repack = Repacker.repack

    async def noted(self: Repacker, records: Buffer, wanted: Wanted) -> Outcome:
        seen.append(wanted.codec)
        return await repack(self, records, wanted)

    monkeypatch.setattr(Repacker, "repack", noted)
    small = encode_batch([Record(0, 1_000, b"k", b"v", ())])
    large = encode_batch([Record(0, 1_000, b"k", b"v" * WALKED_ON_LOOP_BYTES_MAX, ())])
    packed = encode_batch([Record(0, 1_000, b"k", random.randbytes(100_000), ())], compression=Compression.LZ4)
    short = encode_batch([Record(0, 1_000, b"k", b"v" * 500, ())], compression=Compression.LZ4)
    for at, sent in enumerate((small, large, packed, short)):
        assert (await produce(client, "t", sent)).base_offset == at
        assert bytes((await fetch(client, "t", at)).records)[CRC_START:] == sent[CRC_START:]
    assert seen == [Compression.NONE, Compression.LZ4]


@pytest.mark.parametrize("name", ["producer", "zstd", "gzip"])
async def test_a_compacted_topic_looks_for_keys_before_it_recompresses_and_after(client: RawClient, name: str) -> None:
    await create(client, "t", cleanup_policy="compact", compression_type=name)
    keyed = [Record(at, 1_000, b"k%d" % at, b"v" * 50, ()) for at in range(3)]
    unkeyed = [*keyed[:2], Record(2, 1_000, None, b"v", ())]
    bomb = compress(Compression.GZIP, b"\0" * (REPACKED_BATCH_BYTES_MAX + 1))
    for codec in Compression:
        assert (await produce(client, "t", encode_batch(unkeyed, compression=codec))).error_code == 87
    bad = with_payload(encode_batch(keyed), bomb, attributes=int(Compression.GZIP))
    assert (await produce(client, "t", bad)).error_code == ErrorCode.INVALID_RECORD
    for at, codec in enumerate(Compression):
        assert (await produce(client, "t", encode_batch(keyed, compression=codec))).base_offset == 3 * at


async def test_what_is_unsound_outside_is_never_unpacked(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is validated before it is recompressed."""
    await create(client, "t", compression_type="zstd", message_timestamp_before_max_ms="1000")
    codecs: list[Compression] = []

    async def repack(_: Repacker, records: Buffer, wanted: Wanted) -> Unsound:
        codecs.append(wanted.codec)
        return Unsound("It was unpacked.")

    monkeypatch.setattr(Repacker, "repack", repack)
    now = encode_batch([Record(0, -1, None, b"v", ())])
    flipped = bytearray(now)
    flipped[-1] ^= 1
    payload = now[HEADER_BYTES:]
    for bad, error in (
        (bytes(flipped), ErrorCode.CORRUPT_MESSAGE),
        (with_payload(now, payload, magic=1), ErrorCode.INVALID_RECORD),
        (with_payload(now, payload, count=2), ErrorCode.INVALID_RECORD),
        (with_payload(now, payload, attributes=7), ErrorCode.CORRUPT_MESSAGE),
        (with_payload(now, payload, attributes=0x20), ErrorCode.INVALID_RECORD),
        (with_payload(now, payload, attributes=0x10), ErrorCode.INVALID_RECORD),
        (with_payload(now, payload, attributes=0x08), ErrorCode.INVALID_TIMESTAMP),
        (with_payload(now, payload, base_offset=3), ErrorCode.INVALID_RECORD),
        (with_payload(now, payload, producer_id=3), ErrorCode.INVALID_RECORD),
        (now + now, ErrorCode.INVALID_RECORD),
    ):
        assert (await produce(client, "t", bad)).error_code == error
    assert not codecs
    assert (await produce(client, "t", now)).error_code == ErrorCode.INVALID_RECORD
    assert codecs == [Compression.ZSTD]


async def test_every_record_s_time_is_bounded_once_it_is_seen(client: RawClient) -> None:
    await create(client, "t", compression_type="zstd", message_timestamp_before_max_ms="3600000")
    now_ms = 4_000_000_000_000
    records = [Record(0, now_ms, None, b"v", ()), Record(1, 5, None, b"old", ()), Record(2, now_ms, None, b"w", ())]
    await create(client, "late", compression_type="zstd", message_timestamp_after_max_ms=str(now_ms))
    assert (await produce(client, "late", encode_batch(records))).error_code == 0
    assert (await produce(client, "t", encode_batch(records))).error_code == ErrorCode.INVALID_TIMESTAMP


async def test_the_limit_is_on_what_is_kept(client: RawClient) -> None:
    await create(client, "t", compression_type="gzip", max_message_bytes="1000")
    assert (await produce(client, "t", batch(b"a" * 5000))).error_code == 0
    await create(client, "u", compression_type="uncompressed", max_message_bytes="1000")
    packed = batch(b"a" * 5000, codec=Compression.GZIP)
    assert len(packed) < 1000
    assert (await produce(client, "u", packed)).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_unacknowledged_batches_are_recompressed_too_and_an_unsound_one_closes_the_connection(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as other:
        await create(other, "t", compression_type="zstd")
        async with RawClient(bootstrap) as client:
            client.send(9, produce_request("t", batch(b"v"), acks=0))
            assert (await produce(client, "t", batch(b"w"))).base_offset == 1, "in order"
            client.send(9, produce_request("t", with_payload(batch(b"v"), b"junk"), acks=0))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await produce(client, "t", batch(b"x"))


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
async def test_a_refused_bomb_leaves_nothing_behind_though_no_cycles_are_looked_for(codec: Compression) -> None:
    """A broker's collector comes rarely: an exception that was kept would hold what was unpacked until then."""
    bomb = with_payload(batch(b"v"), compress(codec, bytes(REPACKED_BATCH_BYTES_MAX + 1)), attributes=int(codec))
    repacker = Repacker(lambda error: pytest.fail(str(error)))
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            assert isinstance(await repacker.repack(bomb, Wanted(Compression.NONE, NO_RULES)), Unsound)
        kept, peak = tracemalloc.get_traced_memory()
        assert peak > REPACKED_BATCH_BYTES_MAX / 2, "it was unpacked"
        assert kept < 1_000_000
    finally:
        tracemalloc.stop()
        gc.enable()
