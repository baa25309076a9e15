"""Merging of durable segments on a real broker: readers see one stream, and a crash at any step leaves it whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex
from headrace.base.ports import Buffer
from headrace.controller.asks.history import ReplaceSegments
from headrace.metadata.events import MoveStarted
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.chunks import chunks_prefix
from headrace.storage.tier.merge import merge_segments, mergeable
from headrace.storage.tier.mirror import state_key
from headrace.storage.tier.reader import Store
from headrace.wire.durable import MergeTotals
from tests.broker.durable.test_history_retention import history_of, mirrored
from tests.broker.durable.test_reading_history import expected, stream
from tests.broker.durable.test_sweeper import NO_GRACE, age, exported, keys_in, sweep
from tests.broker.group_broker import until
from tests.broker.tiered import SETTLED, Tiered, objects_in, tiered

ZERO = PartitionIndex(0)


async def merge(here: Tiered, *, execute: bool = True) -> MergeTotals:
    assert here.broker.parts.durable.exports is not None
    return await here.broker.parts.durable.exports.merger.merge(
        here.partition.topic_partition.topic_id, None, execute=execute
    )


async def filled(here: Tiered) -> PartitionCatalog:
    """With many small segments."""
    await here.create()
    await here.produce(0, 40)
    await exported(here, 76)
    await here.local_start(SETTLED)
    return history_of(here)


async def test_small_segments_become_one_and_their_objects_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.durable.history_keeper.HISTORY_DELETE_GRACE_MS", 0)
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            before = await filled(here)
            told = await merge(here, execute=False)
            assert (told.before, told.after, told.problems) == (len(before.entries) - 1, 1, [])
            assert history_of(here) == before
            merged = await merge(here)
            assert (merged.partitions, merged.before, merged.after) == ([0], told.before, 1)
            assert len(history_of(here).entries) == 2
            assert await stream(here, 0, 80) == expected(40)
            await mirrored(here, tmp_path)
            await until(lambda: keys_in(tmp_path) == {entry.descriptor.key for entry in history_of(here)})
            assert (await merge(here)).after == 0
            await here.produce(40, 10)
            await exported(here, 96)
            assert await stream(here, 0, 100) == expected(50)
            await mirrored(here, tmp_path)
        store = Store.open(f"file://{tmp_path / 'store'}")
        assert store.verify(store.topic("t"), ZERO).start_offset == 0
        async with tiered(tmp_path) as here:  # from the commit log, or a snapshot
            assert await stream(here, 0, 100) == expected(50)
            assert (await merge(here)).problems == []
            assert await stream(here, 0, 100) == expected(50)


async def test_who_reads_by_the_older_catalog_still_finds_its_objects(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        before = await filled(here)
        await mirrored(here, tmp_path)
        store = Store.open(f"file://{tmp_path / 'store'}")
        planned = store.slices("t", 0, before, 0, 80, slice_bytes=1 << 30)
        await merge(here)
        await mirrored(here, tmp_path)
        age(tmp_path, *keys_in(tmp_path))
        await sweep(here.broker)  # it has just been seen to have left: whoever reads it has a minute yet
        for part in planned:
            assert list(store.read(part))


class Dying(DirectoryObjects):
    """A store that refuses what is put there, before it is done or after, while it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.fails: Callable[[str], str] = lambda key: ""

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        how = self.fails(key)
        if how == "before":
            raise StorageFailure("It is gone.")
        done = super().put(key, data, if_absent=if_absent)
        if how == "after":
            raise StorageFailure("The answer is lost.")
        return done


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("what", [".segment", "/chunks/", "/state"])
async def test_a_store_that_fails_at_any_step_loses_nothing(tmp_path: Path, how: str, what: str) -> None:
    objects = Dying(tmp_path)
    async with asyncio.timeout(150):
        async with tiered(tmp_path, NO_GRACE, objects=objects) as here:
            before = await filled(here)
            await mirrored(here, tmp_path)
            objects.fails = lambda key: how if what in key else ""
            merged = await merge(here)
            assert bool(merged.problems) == (what == ".segment")
            assert (history_of(here) == before) == (what == ".segment")
            assert await stream(here, 0, 80) == expected(40)
            store = Store.open(f"file://{tmp_path / 'store'}")
            assert store.verify(store.topic("t"), ZERO).start_offset == 0
        objects.fails = lambda key: ""
        async with tiered(tmp_path, NO_GRACE, objects=objects) as here:
            assert (await merge(here)).problems == []
            await mirrored(here, tmp_path)
            assert len(history_of(here).entries) <= 3
            age(tmp_path, *keys_in(tmp_path))
            await sweep(here.broker)
            assert await stream(here, 0, 80) == expected(40)
            assert store.verify(store.topic("t"), ZERO).head == history_of(here).head


async def test_a_former_leaders_object_is_refused_and_swept(tmp_path: Path) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path, NO_GRACE) as here:
            catalog = await filled(here)
            (group,) = mergeable(catalog)
            key, epoch = here.partition.topic_partition, here.partition.leader_epoch
            made = merge_segments(objects_in(tmp_path), group, made_in=epoch)
            age(tmp_path, *keys_in(tmp_path))
            assert (await sweep(here.broker)).count == 0  # its event may be on its way
        async with tiered(tmp_path, NO_GRACE) as here:
            for says in (epoch, here.partition.leader_epoch):
                removed = tuple(each.sha256 for each in group)
                ask = ReplaceSegments(
                    topic_id=key.topic_id,
                    partition=ZERO,
                    leader_epoch=LeaderEpoch(says),
                    descriptor=made,
                    removed=removed,
                )
                assert await here.broker.parts.control.submit(ask) is not None
            age(tmp_path, *keys_in(tmp_path))
            assert [each.key for each in (await sweep(here.broker)).strays] == [made.key]
            assert made.key not in keys_in(tmp_path)
            assert await stream(here, 0, 80) == expected(40)


async def test_what_was_published_meanwhile_does_not_hinder_and_what_was_deleted_does(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE) as here:
        catalog = await filled(here)
        (group,) = mergeable(catalog)
        made = merge_segments(objects_in(tmp_path), group, made_in=here.partition.leader_epoch)
        await here.produce(40, 10)
        await exported(here, 90)

        def ask(**changes: Any) -> ReplaceSegments:
            given = {
                "topic_id": here.partition.topic_partition.topic_id,
                "partition": ZERO,
                "leader_epoch": here.partition.leader_epoch,
                "descriptor": made,
                "removed": tuple(each.sha256 for each in group),
            }
            return ReplaceSegments(**{**given, **changes})

        assert await here.broker.parts.control.submit(ask(removed=ask().removed[:-1])) is not None
        for _ in range(2):  # and once more, by who has not heard the answer
            assert await here.broker.parts.control.submit(ask()) is None
        assert history_of(here).entries.holding(0).descriptor == made  # type: ignore[union-attr]
        assert await stream(here, 0, 100) == expected(50)


class Losing(DirectoryObjects):
    """A store that says that it has what it has not, or not whole, of objects that were made of others."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.keeps = -1
        """Bytes of it; -1: all."""

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        named = SegmentKey.parse(key)
        if self.keeps < 0 or named is None or named.made_in is None:
            return super().put(key, data, if_absent=if_absent)
        if self.keeps:
            super().put(key, bytes(data)[: self.keeps], if_absent=if_absent)
        return True


@pytest.mark.parametrize("keeps", [0, 100])
async def test_what_the_store_does_not_give_back_replaces_nothing(tmp_path: Path, keeps: int) -> None:
    objects = Losing(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, objects=objects) as here:
        before = await filled(here)
        objects.keeps = keeps
        assert len((await merge(here)).problems) == 1
        assert history_of(here) == before
        assert await stream(here, 0, 80) == expected(40)


async def test_what_was_replaced_stays_while_what_stands_there_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE) as here:
        before = await filled(here)
        await merge(here)
        await mirrored(here, tmp_path)
        made = history_of(here).entries.holding(0)
        assert made is not None
        path = tmp_path / "store" / made.descriptor.key
        body = path.read_bytes()
        path.unlink()
        originals = {entry.descriptor.key for entry in before}
        age(tmp_path, *keys_in(tmp_path))
        exports = here.broker.parts.durable.exports
        assert exports is not None
        monkeypatch.setattr("headrace.broker.durable.history_keeper.HISTORY_DELETE_GRACE_MS", 0)
        keeper = exports.keeper
        keeper._doomed = deque(one._replace(due=0.0, is_seen=True) for one in keeper._doomed)
        await until(lambda: all(one.due > 0 for one in keeper._doomed))
        await exports.sweeper.sweep(execute=True)
        assert originals <= keys_in(tmp_path)
        path.write_bytes(body)
        await until(lambda: not keeper._doomed)
        assert not originals & keys_in(tmp_path) - {entry.descriptor.key for entry in history_of(here)}


async def test_a_group_that_cannot_be_merged_keeps_none_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.tier.merge.SEGMENTS_REPLACED_AT_ONCE_MAX", 3)
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE) as here:
        await filled(here)
        first, *rest = list(mergeable(history_of(here)))
        assert rest
        (tmp_path / "store" / first[1].key).write_bytes(b"damaged")
        merged = await merge(here)
        assert (merged.after, len(merged.problems)) == (len(rest), 1)
        assert first[1].key in merged.problems[0]


def made_in(root: Path) -> list[str]:
    """Objects that were made of others."""
    parsed = ((key, SegmentKey.parse(key)) for key in keys_in(root))
    return [key for key, named in parsed if named is not None and named.made_in is not None]


async def test_nothing_is_made_for_what_would_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.tier.merge.SEGMENTS_REPLACED_AT_ONCE_MAX", 3)
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE) as here:
        await filled(here)
        assert len(list(mergeable(history_of(here)))) > 2
        image, key = here.broker.image, here.partition.topic_partition
        known = image.partition(key)
        assert known is not None
        move = MoveStarted(
            topic_id=key.topic_id,
            partition=ZERO,
            partition_epoch=PartitionEpoch(known.partition_epoch + 1),
            source=BrokerId(1),
            target=BrokerId(2),
        )
        assert here.broker.parts.durable.exports is not None
        merger = here.broker.parts.durable.exports.merger
        with monkeypatch.context() as patch:
            patch.setattr(merger, "_metadata", SimpleNamespace(image=image.replay([move])))
            merged = await merge(here)
            assert (merged.after, len(merged.problems)) == (0, 1)
            assert not made_in(tmp_path)
        monkeypatch.setattr("headrace.controller.durable.CATALOG_LINKS_MAX", 1)
        merged = await merge(here)
        assert (merged.after, len(merged.problems)) == (1, 1)
        assert "after the next one" in merged.problems[0]
        assert len(made_in(tmp_path)) == 1


@pytest.mark.parametrize("by", ["the sweep", "retention"])
async def test_a_late_state_of_a_leader_that_was_deposed_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        before = await filled(here)
        await mirrored(here, tmp_path)
        path = tmp_path / "store" / state_key(here.partition.topic_partition.topic_id, ZERO)
        late = path.read_bytes()
        await merge(here)
        await mirrored(here, tmp_path)
        exports = here.broker.parts.durable.exports
        assert exports is not None
        path.write_bytes(late)
        assert history_of(here).head != before.head
        if by == "the sweep":
            await sweep(here.broker)
        else:
            monkeypatch.setattr("headrace.broker.durable.history_keeper.HISTORY_DELETE_GRACE_MS", 0)
            keeper = exports.keeper
            keeper._doomed = deque(one._replace(due=0.0) for one in keeper._doomed)
            await until(lambda: all(one.due > 0 for one in keeper._doomed))
        if by == "the sweep":
            assert {entry.descriptor.key for entry in before} <= keys_in(tmp_path)
        await mirrored(here, tmp_path)
        store = Store.open(f"file://{tmp_path / 'store'}")
        assert store.catalog(store.topic("t"), ZERO) == history_of(here)


async def test_a_damaged_state_is_written_again_after_a_sweep(tmp_path: Path) -> None:
    """Where nothing is exported any more, nobody else would look at it."""
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE) as here:
        await filled(here)
        await merge(here)
        await mirrored(here, tmp_path)
        path = tmp_path / "store" / state_key(here.partition.topic_partition.topic_id, ZERO)
        assert keys_in(tmp_path, chunks_prefix(here.partition.topic_partition.topic_id, ZERO))
        path.write_bytes(b"{")
        exports = here.broker.parts.durable.exports
        assert exports is not None
        assert len((await exports.sweeper.sweep(execute=True)).problems) == 1
        await until(lambda: path.read_bytes() != b"{")
        await mirrored(here, tmp_path)
        store = Store.open(f"file://{tmp_path / 'store'}")
        assert store.catalog(store.topic("t"), ZERO) == history_of(here)


async def test_a_chunk_stays_for_those_who_have_read_an_older_state(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await filled(here)
        await merge(here)
        await mirrored(here, tmp_path)
        prefix = chunks_prefix(here.partition.topic_partition.topic_id, ZERO)
        old = keys_in(tmp_path, prefix)
        assert old
        await here.produce(40, 10)
        await exported(here, 90)
        await merge(here)
        await mirrored(here, tmp_path)
        assert keys_in(tmp_path, prefix) > old
        age(tmp_path, *old)
        swept = await sweep(here.broker)
        assert {stray.key for stray in swept.strays if "/chunks/" in stray.key} == old
        assert keys_in(tmp_path, prefix) > old, "it was named until just now"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.broker.durable.sweeper.HISTORY_DELETE_GRACE_MS", 0)
            await sweep(here.broker)
        assert not keys_in(tmp_path, prefix) & old
