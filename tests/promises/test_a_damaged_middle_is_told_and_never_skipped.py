"""Promises 1, 3 and 4, where a disk damages flushed data.

The damage is reported, kept and refused. No reader is led past it silently, nothing else is lost by it, and no offset
is given to another record.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import PartitionIndex
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.reader import Store
from headrace.wire.batches import iterate_headers
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.data_path import EARLIEST, LATEST, batch, create, delete_records, fetch, offset_at, produce
from tests.broker.group_broker import RawClient, running
from tools.servers.broker_process import BrokerProcess

BATCHES = 12
SEGMENT_BYTES = 1024
ONLY_ON_SUSPICION = {"log.scrub.interval.ms": "-1"}
DEADLINE_S = 150.0


async def fill(root: Path, configs: Mapping[str, str] = ONLY_ON_SUSPICION, **topic: str) -> None:
    """Batches of one record each, two partitions, several closed segments; then a clean stop."""
    async with running(root, configs) as bootstrap, RawClient(bootstrap) as client:
        await create(client, "orders", 2, segment_bytes=str(SEGMENT_BYTES), **topic)
        for number in range(BATCHES):
            for partition in (0, 1):
                answer = await produce(client, "orders", value(number), partition=partition)
                assert error_of(answer.error_code) is ErrorCode.NONE


def value(number: int) -> bytes:
    return batch(b"%d" % number + b"v" * 250, timestamp=1_700_000_000_000 + number)


def segments(root: Path, suffix: str = ".log") -> list[Path]:
    return sorted((root / "logs" / "orders-0").glob(f"*{suffix}"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


async def settled(client: RawClient, offset: int) -> Any:
    """The result of a fetch once no broker asks for a retry."""
    async with asyncio.timeout(DEADLINE_S):
        while (answer := await fetch(client, "orders", offset)).error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            pass
    return answer


async def found(client: RawClient, offset: int) -> None:
    """Until the slow reading has come to this offset, which is damaged."""
    async with asyncio.timeout(DEADLINE_S):
        while (await fetch(client, "orders", offset)).error_code != ErrorCode.CORRUPT_MESSAGE:
            pass


async def told_of(client: RawClient, told: Sequence[Mapping[str, Any]], words: str) -> None:
    """Until a line with these words was logged."""
    async with asyncio.timeout(DEADLINE_S):
        while not any(words in line["event"] for line in told):
            await fetch(client, "orders", 0, partition=1)


async def errors(client: RawClient) -> list[ErrorCode]:
    """Of a fetch at each offset; where it succeeds, the first record is the one that was asked for."""
    answers = []
    for offset in range(BATCHES):
        answer = await settled(client, offset)
        if answer.error_code == 0:
            _, header = next(iter(iterate_headers(answer.records)))
            assert header.base_offset == offset
            for _, each in iterate_headers(answer.records):
                assert each.base_offset == offset
                offset = each.next_offset
        answers.append(error_of(answer.error_code))
    return answers


def all_but(*damaged: int) -> list[ErrorCode]:
    return [ErrorCode.CORRUPT_MESSAGE if offset in damaged else ErrorCode.NONE for offset in range(BATCHES)]


async def test_a_damaged_header_is_found_by_its_reader_told_once_and_costs_one_batch(tmp_path: Path) -> None:
    await fill(tmp_path)
    first = segments(tmp_path)[0]
    flip(first, 16)  # the magic of its first batch
    damaged = first.read_bytes()
    with capture_logs() as told:
        for _ in range(2):
            async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
                assert await errors(client) == all_but(0)
                assert (await produce(client, "orders", value(1), partition=1)).error_code == 0
                assert (await fetch(client, "orders", 0, partition=1)).error_code == 0
    lines = [line for line in told if "is damaged" in line["event"]]
    assert [(line["first_offset"], line["next_offset"]) for line in lines] == [(0, 1)] * 2, "once in each life"
    assert first.read_bytes() == first.with_name(first.name + ".damaged").read_bytes() == damaged


async def test_damage_that_cannot_be_noted_is_refused_and_not_looked_for_at_each_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged disk is often one that cannot be written to any more."""

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "the file system is read-only")

    await fill(tmp_path)
    monkeypatch.setattr(LocalDisk, "link", refused)
    with capture_logs() as told:
        async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
            flip(segments(tmp_path)[0], 16)
            for _ in range(3):
                assert (await settled(client, 0)).error_code == ErrorCode.CORRUPT_MESSAGE
            behind = int(segments(tmp_path)[1].stem)
            assert (await settled(client, behind)).error_code == 0
    assert len([line for line in told if "could not be examined" in line["event"]]) == 1


async def test_appends_go_on_behind_damage(tmp_path: Path) -> None:
    await fill(tmp_path)
    flip(segments(tmp_path)[1], 80)
    async with running(tmp_path, {"log.scrub.interval.ms": "50"}) as bootstrap, RawClient(bootstrap) as client:
        answer = await produce(client, "orders", value(99))
        assert (answer.error_code, answer.base_offset) == (0, BATCHES)
        assert (await fetch(client, "orders", BATCHES)).error_code == 0


async def test_a_damaged_value_that_no_header_tells_of_is_found_by_the_slow_reading(tmp_path: Path) -> None:
    await fill(tmp_path)
    flip(segments(tmp_path)[0], 100)
    async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
        assert await errors(client) == all_but(), "a fetch looks at headers only: said so in docs/SKIPPED.md"
    async with running(tmp_path, {"log.scrub.interval.ms": "50"}) as bootstrap, RawClient(bootstrap) as client:
        await found(client, 0)
        assert await errors(client) == all_but(0)
        earliest = await offset_at(client, "orders", EARLIEST)
        assert (earliest.error_code, earliest.offset) == (0, 0), "where it starts, the damage counts"
        assert (await offset_at(client, "orders", 1_700_000_000_000)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert (await offset_at(client, "orders", 1_700_000_000_000 + BATCHES - 1)).offset == BATCHES - 1


async def test_a_damaged_index_costs_nothing(tmp_path: Path) -> None:
    await fill(tmp_path, index_interval_bytes="100")
    index = next(path for path in segments(tmp_path, ".index") if path.stat().st_size)
    sound = index.read_bytes()
    for at in range(len(sound)):
        flip(index, at)
        async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
            assert await errors(client) == all_but()
        index.write_bytes(sound)


async def test_a_missing_segment_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    await fill(tmp_path)
    names = segments(tmp_path)
    lost = range(int(names[1].stem), int(names[2].stem))
    names[1].unlink()
    async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
        assert await errors(client) == all_but(*lost)
        assert (await produce(client, "orders", value(99))).base_offset == BATCHES


async def test_what_is_damaged_outlives_delete_records(tmp_path: Path) -> None:
    await fill(tmp_path)
    first = segments(tmp_path)[0]
    flip(first, 16)
    damaged = first.read_bytes()
    async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
        await settled(client, 0)
        assert [each.error_code for each in await delete_records(client, "orders", [BATCHES])] == [0]
    assert not first.exists()
    assert first.with_name(first.name + ".damaged").read_bytes() == damaged


async def test_where_the_flushed_end_is_gone_nothing_is_appended_and_the_rest_is_read(tmp_path: Path) -> None:
    await fill(tmp_path)
    last = segments(tmp_path)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    before = {path.name: path.read_bytes() for path in last.parent.iterdir()}
    with capture_logs() as told:
        async with running(tmp_path, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
            assert (await produce(client, "orders", value(99))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            answers = [error_of((await fetch(client, "orders", offset)).error_code) for offset in range(BATCHES + 1)]
            assert answers == [ErrorCode.NONE] * (BATCHES - 1) + [ErrorCode.KAFKA_STORAGE_ERROR] * 2
            assert (await offset_at(client, "orders", LATEST)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await delete_records(client, "orders", [2]))[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await produce(client, "orders", value(99), partition=1)).base_offset == BATCHES
    assert [line["partition"] for line in told if "for reading only" in line["event"]] == [0]
    assert {path.name: path.read_bytes() for path in last.parent.iterdir()} == before


async def test_durable_history_ends_before_damage_and_what_is_behind_it_is_kept(tmp_path: Path) -> None:
    await fill(tmp_path / "broker", retention_ms="1")
    names = segments(tmp_path / "broker")
    flip(names[1], 100)
    damaged_from = int(names[1].stem)
    (tmp_path / "store").mkdir()
    objects = DirectoryObjects(LocalDisk(), tmp_path / "store")
    configs = ONLY_ON_SUSPICION | {"log.retention.check.interval.ms": "100"}
    with capture_logs() as told:
        async with running(tmp_path / "broker", configs, objects=objects) as bootstrap, RawClient(bootstrap) as client:
            await told_of(client, told, "ends before damage")
    assert names[1].exists()
    store = Store.open(f"file://{tmp_path / 'store'}")
    store.verify(store.topic("orders"), PartitionIndex(0))
    assert store.catalog(store.topic("orders"), PartitionIndex(0)).end_offset == damaged_from - 1


async def test_a_damaged_log_is_compacted_up_to_the_damage_only(tmp_path: Path) -> None:
    compact = {"log.cleaner.backoff.ms": "50", **ONLY_ON_SUSPICION}
    root = tmp_path
    async with running(root, ONLY_ON_SUSPICION) as bootstrap, RawClient(bootstrap) as client:
        await create(client, "orders", 1, segment_bytes=str(SEGMENT_BYTES))
        for number in range(BATCHES):
            assert (await produce(client, "orders", value(number))).error_code == 0
    names = segments(root)
    flip(names[1], 100)
    damaged = names[1].read_bytes()
    with capture_logs() as told:
        async with running(root, compact) as bootstrap, RawClient(bootstrap) as client:
            wanted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            configs = tuple(AlterableConfig(name=name, config_operation=0, value=text) for name, text in wanted.items())
            resource = AlterConfigsResource(resource_type=2, resource_name="orders", configs=configs)
            changed = await client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))
            assert changed.responses[0].error_code == 0
            await told_of(client, told, "is damaged")
            assert names[1].read_bytes() == damaged
            assert (await settled(client, int(names[1].stem))).error_code == ErrorCode.CORRUPT_MESSAGE
            assert (await settled(client, int(names[2].stem))).error_code == 0


@pytest.mark.parametrize("at", [16, 100])
async def test_after_a_kill_what_was_known_to_be_damaged_is_not_taken_for_a_torn_tail(tmp_path: Path, at: int) -> None:
    """In the segment that is still written, above what recovery trusts."""
    with BrokerProcess(tmp_path, "--config", "log.scrub.interval.ms=50") as broker:
        async with RawClient(broker.bootstrap) as client:
            await create(client, "orders", 1)
            for number in range(BATCHES):
                assert (await produce(client, "orders", value(number))).error_code == 0
            (path,) = segments(tmp_path / "data")
            with path.open("r+b") as file:
                size = path.stat().st_size // BATCHES
                file.seek(2 * size + at)
                file.write(b"\xee")
            await found(client, 2)
        broker.kill()
        broker.start()
        async with RawClient(broker.bootstrap) as client:
            assert await errors(client) == all_but(2)
            assert (await produce(client, "orders", value(99))).base_offset == BATCHES
