"""`retention.*` over durable history: first the event, then the object; the chain goes on, in the store too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset, PartitionIndex
from headrace.broker.durable import exporter
from headrace.broker.durable.history_keeper import HistoryKeeper, bytes_above, retained_from
from headrace.broker.system import SystemClock
from headrace.controller.asks.history import DeleteHistory, PublishSegment
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.cutting import Range
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.names import COMPACTION
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.mirror import read_document, state_key
from headrace.storage.tier.reader import Store
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.durable.test_reading_history import deleted, expected, stream
from tests.broker.group_broker import until
from tests.broker.tiered import SETTLED, Tiered, objects_in, tiered
from tests.metadata.histories import TOPIC_IDS, descriptor


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.durable.history_keeper.HISTORY_DELETE_GRACE_MS", 0)


def keys_in(root: Path) -> list[str]:
    return [meta.key for meta in objects_in(root).list("clusters/")]


async def mirrored(here: Tiered, root: Path) -> None:
    """Wait until the mirror has what the image has."""
    topic = here.broker.image.topic("t")
    assert topic is not None

    def is_there() -> bool:
        state = read_document(objects_in(root), state_key(topic.id, PartitionIndex(0)))
        history = history_of(here)
        marks = (history.head, history.log_start_offset)
        return state is not None and (state["head"], state["log_start_offset"]) == marks

    await until(is_there)


async def retained(here: Tiered) -> None:
    """Wait until retention has taken what it takes, where all is written: from then on the start stays."""

    def is_over() -> bool:
        log, history = here.partition.log, history_of(here)
        start = retained_from(history, log.config, bytes_above(log, history), SystemClock().now_ms())
        return start <= here.partition.start_offset

    await until(is_over)


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("by", ["retention_bytes", "retention_ms"])
async def test_history_past_its_retention_goes_and_the_rest_is_proven(tmp_path: Path, by: str) -> None:
    limits = {"retention_bytes": "-1", "retention_ms": "-1", by: "9000" if by == "retention_bytes" else str(DAY_MS)}
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create(**limits)
            await here.produce(0, 20)
            await here.produce(20, 20, time=SystemClock().now_ms())
            await until(lambda: here.partition.start_offset >= 40)
            await retained(here)
            await here.local_start(SETTLED)
            assert (
                await stream(here, int(here.partition.start_offset), 80) == expected(40)[here.partition.start_offset :]
            )
            assert (await here.read(0))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
            await until(lambda: len(keys_in(tmp_path)) == len(history_of(here).entries))
            await mirrored(here, tmp_path)
        store = Store.open(f"file://{tmp_path / 'store'}")
        assert store.verify(store.topic("t"), PartitionIndex(0)).start_offset >= 40
        async with tiered(tmp_path) as here:
            start = int(here.partition.start_offset)
            assert start >= 40
            await here.produce(40, 2, time=SystemClock().now_ms())
            end = history_of(here).end_offset
            await until(lambda: history_of(here).end_offset > end)
            await retained(here)
            await mirrored(here, tmp_path)
            start = int(here.partition.start_offset)
            assert await stream(here, start, 84) == expected(42)[start:]
        assert store.verify(store.topic("t"), PartitionIndex(0)).end_offset > end


async def test_a_damaged_note_of_gaps_takes_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the log may have been compacted, or not: what history has below it may be all that there is."""
    rounds, apply_all = 0, HistoryKeeper._apply_all

    async def counted(self: HistoryKeeper) -> None:
        nonlocal rounds
        await apply_all(self)
        rounds += 1

    monkeypatch.setattr(HistoryKeeper, "_apply_all", counted)
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create(retention_bytes="-1", retention_ms="-1")
            await here.produce(0, 40)
            await here.local_start(SETTLED)
            await until(lambda: history_of(here).next_offset >= here.partition.log.ranges()[-1].base_offset)
        (directory,) = (tmp_path / "data" / "logs").glob("t-0")
        (directory / COMPACTION).write_text("damaged")
        async with tiered(tmp_path) as here:
            partition = here.partition
            assert (partition.log.gaps_below > 0, partition.log.knows_gaps) == (True, False)
            assert partition.is_exported, "else nothing is deleted anyhow"
            assert partition.start_offset == 0, "nor is any hidden"
            partition.settings = replace(partition.settings, compact=True)
            assert partition.is_read_alone
            rounds = 0
            await until(lambda: rounds > 3)
            assert history_of(here).log_start_offset == 0


def test_old_and_surplus_segments_are_due_from_the_beginning() -> None:
    """100 bytes each, the largest times 3, 2, 4."""
    catalog = PartitionCatalog.empty(TOPIC_IDS[0], PartitionIndex(0))
    for start, records in ((0, 3), (3, 2), (5, 4)):
        catalog = catalog.published(descriptor(start, records, 0))

    def due(ms: int, size: int, *, now_ms: int = 1000, above: int = 50) -> int:
        return retained_from(catalog, LogConfig(retention_ms=ms, retention_bytes=size), above, now_ms)

    assert [due(ms, -1) for ms in (-1, 997, 996, 995, 0)] == [0, 0, 5, 9, 9]
    assert [due(-1, size) for size in (-1, 350, 251, 250, 150, 51, 50, 0)] == [0, 0, 0, 3, 5, 5, 9, 9]


class Log:
    """A log for these tests. It has a closed segment of 200 bytes, exported whole, and an open one of 450 from offset
    20 on, of which 400 are exported."""

    size_bytes = 650

    def ranges(self) -> list[Range]:
        return [Range(Offset(0), Offset(20), 200, True), Range(Offset(20), Offset(65), 450, False)]


def test_retention_by_bytes_takes_no_more_once_segments_are_merged_across_the_logs_own() -> None:
    partition_log: Any = Log()
    config = LogConfig(retention_ms=-1, retention_bytes=450)
    small, merged = (PartitionCatalog.empty(TOPIC_IDS[0], PartitionIndex(0)) for _ in range(2))
    for start in range(0, 60, 10):  # 100 bytes each
        small = small.published(descriptor(start, 10, 0))
    for start, records, size in ((0, 10, 100), (10, 30, 300), (40, 10, 100), (50, 10, 100)):
        merged = merged.published(replace(descriptor(start, records, 0), batch_bytes=size, object_bytes=2 * size))
    kept = {}
    for history in (small, merged):
        start = retained_from(history, config, bytes_above(partition_log, history), 0)
        kept[start] = 50 + sum(each.descriptor.batch_bytes for each in history.reaching(start))
    assert kept == {20: 450, 10: 550}


def history_of(here: Tiered) -> PartitionCatalog:
    assert here.partition.history is not None
    return here.partition.history


class Counted(DirectoryObjects):
    """A store that refuses to write the mirror while it is told to, and counts who looks at that."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.keeps_mirror = False
        self.looks = 0

    def put(self, key, data, *, if_absent=True):  # type: ignore[no-untyped-def]  # as the real one
        if self.keeps_mirror and key.startswith("storage/"):
            raise StorageFailure("scripted")
        return super().put(key, data, if_absent=if_absent)

    def get(self, key: str) -> bytes:
        self.looks += key.endswith("/state")
        return super().get(key)


async def test_an_object_goes_once_the_mirror_does_not_name_it_any_more(tmp_path: Path) -> None:
    store = Counted(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, objects=store) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        await mirrored(here, tmp_path)
        store.keeps_mirror = True
        before = len(keys_in(tmp_path))
        assert await deleted(here, 33) == (0, 33)
        looks = store.looks
        await until(lambda: store.looks >= looks + 3)
        assert len(keys_in(tmp_path)) >= before
        store.keeps_mirror = False
        await until(lambda: len(keys_in(tmp_path)) == len(history_of(here).entries))


class Interrupted(DirectoryObjects):
    """A store: something happens before the next segment is put there."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.meanwhile: list[Callable[[], object]] = []

    def put(self, key, data, *, if_absent=True):  # type: ignore[no-untyped-def]  # as the real one
        if key.startswith("clusters/") and self.meanwhile:
            self.meanwhile.pop()()
        return super().put(key, data, if_absent=if_absent)


async def test_what_is_deleted_while_a_segment_is_stored_holds_up_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain's head is another one then."""
    store, loop = Interrupted(tmp_path), asyncio.get_running_loop()
    async with asyncio.timeout(150), tiered(tmp_path, objects=store) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        await mirrored(here, tmp_path)
        its, before = here.partition, history_of(here).next_offset
        ask = DeleteHistory(
            topic_id=its.topic_partition.topic_id,
            partition=its.topic_partition.partition,
            leader_epoch=its.leader_epoch,
            log_start_offset=Offset(33),
        )

        def delete() -> None:
            assert asyncio.run_coroutine_threadsafe(here.broker.parts.control.submit(ask), loop).result() is None

        store.meanwhile.append(delete)
        with capture_logs() as told:
            monkeypatch.setattr(exporter, "log", structlog.get_logger())
            await here.produce(40, 10)
            await until(lambda: history_of(here).next_offset > before)
        assert not store.meanwhile
        assert history_of(here).log_start_offset == 33
        assert [each for each in told if each["log_level"] != "info"] == []


async def test_the_mirror_follows_where_nothing_is_exported_any_more(tmp_path: Path) -> None:
    """Else it would name what is deleted."""
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 40)
        await until(
            lambda: here.partition.history is not None and history_of(here).next_offset == 76
        )  # all that is closed
        config = AlterableConfig(name="durable.enable", config_operation=0, value="false")
        resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=(config,))
        answer = await here.client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))
        assert answer.responses[0].error_code == 0
        await until(lambda: not here.partition.is_exported)
        assert await deleted(here, 33) == (0, 33)
        await mirrored(here, tmp_path)
        await until(lambda: len(keys_in(tmp_path)) == len(history_of(here).entries))
    store = Store.open(f"file://{tmp_path / 'store'}")
    assert store.verify(store.topic("t"), PartitionIndex(0)).start_offset <= 33


async def test_nothing_is_exported_behind_where_the_log_is_not_what_was_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader lost exported records, and its log was kept all the same, as where it cannot be compared. Another epoch
    wrote other records at the same offsets."""
    monkeypatch.setattr("headrace.broker.partitions.assigned.wins", lambda *_: False)
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create()
            key, epoch = here.partition.topic_partition, here.partition.leader_epoch
            lost = PublishSegment(
                topic_id=key.topic_id,
                partition=key.partition,
                leader_epoch=epoch,
                descriptor=descriptor(0, 10, epoch),
                previous_hash=PartitionCatalog.empty(*key).head,
            )
            assert await here.broker.parts.control.submit(lost) is None
            await until(lambda: here.partition.history is not None)
        async with tiered(tmp_path) as here:
            with structlog.testing.capture_logs() as logs:
                await here.produce(0, 20)
                await until(lambda: any("export of a partition has stopped" in line["event"] for line in logs))
                for _ in range(3):
                    here.partition.keep_house(2**62, producers_since_ms=0)
                    await here.read(0)
            assert here.partition.log.log_start_offset == 0
            assert history_of(here).next_offset == 10
            assert sum("export of a partition has stopped" in line["event"] for line in logs) == 1


async def test_a_partition_that_cannot_be_looked_at_stops_neither_retention_nor_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fails(*_: object) -> int:
        tries.append(1)
        raise OSError("scripted")

    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 10)
        await until(lambda: here.partition.history is not None)
        monkeypatch.setattr("headrace.broker.durable.history_keeper.bytes_above", fails)
        await until(lambda: len(tries) >= 3)
        assert (await here.read(19))[0] == 0
