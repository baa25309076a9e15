"""DeleteRecords over the wire: what goes, what is refused, and that the new start is durable when it is told."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests.broker.data_path import EARLIEST, LATEST, batch, create, delete_records, fetch, offset_at, produce
from tests.broker.group_broker import RawClient, running
from tests.promises.test_a_failed_disk_never_acknowledges import brittle_broker


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t", 2, segment_bytes="1024")
        yield client


async def fill(client: RawClient, topic: str = "t", batches: int = 10) -> None:
    """Batches of three records each, two to a segment."""
    for _ in range(batches):
        assert (await produce(client, topic, batch(b"a" * 100, b"b" * 100, b"c" * 100))).error_code == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_what_lies_below_can_no_longer_be_read(client: RawClient, version: int) -> None:
    await fill(client)
    (result,) = await delete_records(client, "t", [13], version=version)
    assert (result.error_code, result.low_watermark) == (0, 13), "in the middle of a batch"
    assert (await offset_at(client, "t", EARLIEST)).offset == 13
    assert (await fetch(client, "t", 12)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await fetch(client, "t", 13)).error_code == 0


async def test_minus_one_is_the_high_watermark_and_each_partition_has_its_own(client: RawClient) -> None:
    await fill(client)
    first, second = await delete_records(client, "t", [-1, -1])
    assert (first.low_watermark, second.low_watermark) == (30, 0)
    assert (await offset_at(client, "t", EARLIEST)).offset == (await offset_at(client, "t", LATEST)).offset == 30
    assert (await produce(client, "t", batch(b"x"))).base_offset == 30, "the log goes on where it was"


async def test_the_start_never_falls_and_never_passes_the_high_watermark(client: RawClient) -> None:
    await fill(client)
    for offset, error, low in (
        (9, 0, 9),
        (4, 0, 9),
        (31, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (-2, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
    ):
        (result,) = await delete_records(client, "t", [offset])
        assert (result.error_code, result.low_watermark) == (error, low), offset
    assert (await offset_at(client, "t", EARLIEST)).offset == 9


async def test_unknown_and_internal_topics_are_refused(client: RawClient) -> None:
    (result,) = await delete_records(client, "nope", [0])
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    _, _, result = await delete_records(client, "t", [0, 0, 0])
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create(client, "__consumer_offsets", 1)
    (result,) = await delete_records(client, "__consumer_offsets", [-1])
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_topic_whose_policy_does_not_name_delete_keeps_its_records(client: RawClient) -> None:
    await create(client, "compacted", cleanup_policy="compact")
    await create(client, "both", cleanup_policy="compact,delete")
    await create(client, "kept", cleanup_policy="")
    for topic in ("compacted", "both", "kept"):
        keyed = encode_batch([Record(at, 1_000, b"k", b"v") for at in range(3)])
        assert (await produce(client, topic, keyed)).error_code == 0
    for offset in (-1, 0, 2, 99):
        for topic in ("compacted", "kept"):
            (result,) = await delete_records(client, topic, [offset])
            assert (result.error_code, result.low_watermark) == (ErrorCode.POLICY_VIOLATION, -1)
    assert (await offset_at(client, "compacted", EARLIEST)).offset == 0
    assert (await delete_records(client, "both", [2]))[0].low_watermark == 2


async def test_a_producer_is_known_after_its_batches_were_deleted_and_the_broker_was_killed(tmp_path: Path) -> None:
    sent = encode_batch([Record(0, 1_000, None, b"v")], producer_id=5, producer_epoch=0, base_sequence=0)
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t", segment_bytes="1024")
        assert (await produce(client, "t", sent)).base_offset == 0
        await fill(client)
        assert (await delete_records(client, "t", [-1]))[0].low_watermark == 31
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    async with running(tmp_path / "killed") as bootstrap, RawClient(bootstrap) as client:
        assert (await produce(client, "t", sent)).base_offset == 0, "a duplicate"
        assert (await offset_at(client, "t", LATEST)).offset == 31


async def test_the_new_start_outlives_the_broker_once_it_is_told(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t", segment_bytes="1024")
        await fill(client)
        (result,) = await delete_records(client, "t", [17])
        assert result.low_watermark == 17
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    assert not list((tmp_path / "killed").glob("**/t-0/00000000000000000000.log")), "the files are gone"
    async with running(tmp_path / "killed") as bootstrap, RawClient(bootstrap) as client:
        assert (await offset_at(client, "t", EARLIEST)).offset == 17
        assert (await offset_at(client, "t", LATEST)).offset == 30


async def test_a_start_that_the_disk_refuses_is_not_told(tmp_path: Path) -> None:
    async with brittle_broker(tmp_path / "data") as (_, disk, client):
        await create(client, "t")
        await fill(client)
        disk.sync_fails = lambda path: "checkpoint" in path.name and path.parent.name == "t-0"
        (result,) = await delete_records(client, "t", [5])
        assert (result.error_code, result.low_watermark) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def test_nothing_goes_that_the_durable_store_still_lacks(tmp_path: Path) -> None:
    objects = DirectoryObjects(LocalDisk(), tmp_path / "store")
    async with running(tmp_path / "data", objects=objects) as bootstrap, RawClient(bootstrap) as client:
        await create(client, "t")
        await create(client, "local", durable_enable="false")
        for topic in ("t", "local"):
            await fill(client, topic)
        assert (await delete_records(client, "t", [5]))[0].error_code == ErrorCode.POLICY_VIOLATION
        assert (await delete_records(client, "local", [5]))[0].low_watermark == 5
