"""The sweep: what nothing refers to goes once it is old enough, and never what an exporter has under way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.ports import ObjectMeta
from headrace.broker.boot import Broker
from headrace.broker.durable.sweeper import Sweep
from headrace.controller.asks.history import PublishSegment
from headrace.metadata.image import MetadataImage
from headrace.metadata.segment_keys import SegmentKey
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.mirror import NAMES, MirroredTopic, MirrorWriter, read_document, topic_document_key
from headrace.storage.tier.reader import Store
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, create, produce
from tests.broker.durable.test_history_retention import Counted, mirrored
from tests.broker.durable.test_reading_history import deleted, expected, stream
from tests.broker.group_broker import until
from tests.broker.replication_world import World, replicating
from tests.broker.tiered import SETTLED, Tiered, objects_in, tiered

NO_GRACE = {"durable.sweep.grace.ms": "0"}
HOUR_S = 3600


async def sweep(broker: Broker, *, execute: bool = True) -> Sweep:
    assert broker.parts.durable.exports is not None
    found = await broker.parts.durable.exports.sweeper.sweep(execute=execute)
    assert not found.problems
    return found


def age(root: Path, *keys: str) -> None:
    """They were stored two hours ago."""
    for key in keys or [meta.key for meta in objects_in(root).list("")]:
        path = root / "store" / key
        then = path.stat().st_mtime - 2 * HOUR_S
        os.utime(path, (then, then))


def keys_in(root: Path, prefix: str = "clusters/") -> set[str]:
    return {meta.key for meta in objects_in(root).list(prefix)}


def referred(image: MetadataImage, key: TopicPartition) -> set[str]:
    return {entry.descriptor.key for entry in image.durable(key)}


async def exported(here: Tiered, end: int) -> None:
    await until(lambda: here.broker.image.durable(here.partition.topic_partition).next_offset >= end)


def stray(here: Tiered, start: int, **changes: Any) -> str:
    """An object of the partition's leader, as it would be named."""
    partition = here.partition
    key = SegmentKey(
        here.broker.image.cluster_id,
        *partition.topic_partition,
        Offset(start),
        Offset(start + 1),
        partition.leader_epoch,
        "0" * 16,
    )
    return str(key._replace(**changes))


async def test_only_what_can_never_be_published_goes_once_it_is_old(tmp_path: Path) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create()  # and a restart, so that there is a leader epoch before this
        async with tiered(tmp_path) as here:
            await here.produce(0, 40)
            await exported(here, 76)
            older = LeaderEpoch(here.partition.leader_epoch - 1)
            goes = {stray(here, 0), stray(here, 70), stray(here, 500, leader_epoch=older)}
            stays = {
                stray(here, 500),
                stray(here, 0, cluster_id=ClusterId("another")),
                stray(here, 0).replace(".segment", ".other"),
                "clusters/readme",
            }
            for key in goes | stays:
                objects_in(tmp_path).put(key, b"x" * 7)
            before = keys_in(tmp_path)
            young = await sweep(here.broker)
            assert (keys_in(tmp_path), young.count, young.removed) == (before, 3, 0)
            age(tmp_path)
            told = await sweep(here.broker, execute=False)
            assert (keys_in(tmp_path), told.count, told.bytes, told.removed) == (before, 3, 21, 0)
            assert {each.key for each in told.strays if each.due} == goes
            assert (await sweep(here.broker)).removed_bytes == 21
            assert keys_in(tmp_path) == before - goes
            assert (await sweep(here.broker)).count == 0
            assert await stream(here, 0, 80) == expected(40)


class Held:
    """A broker's way to the controller, on which publications wait until they are let go."""

    def __init__(self, broker: Broker) -> None:
        self._submit: Callable[..., Awaitable[Any]] = broker.parts.control.submit
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()
        self.answers: list[Any] = []
        self.keys: list[str] = []
        broker.parts.control.submit = self.submit  # type: ignore[method-assign]

    async def submit(self, ask: Any, **options: Any) -> Any:
        if not isinstance(ask, PublishSegment) or self.let_go.is_set():
            return await self._submit(ask, **options)
        self.keys.append(ask.descriptor.key)
        self.asked.set()
        await self.let_go.wait()
        self.answers.append(await self._submit(ask, **options))
        return self.answers[-1]


async def test_an_object_whose_publication_is_under_way_stays(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE) as here:
        held = Held(here.broker)
        await here.create()
        await here.produce(0, 40)
        await held.asked.wait()
        age(tmp_path)
        assert (await sweep(here.broker)).count == 0
        held.let_go.set()
        await here.local_start(SETTLED)
        assert held.answers == [None]
        assert await stream(here, 0, 80) == expected(40)


def test_what_a_former_leader_has_under_way_goes_and_is_then_refused(tmp_path: Path) -> None:
    async def work() -> None:
        configs = {**BY_HAND, **NO_GRACE, "log.retention.check.interval.ms": "5"}
        async with asyncio.timeout(150), replicating(tmp_path, configs, objects=objects_in(tmp_path)) as world:
            await world.make("t", segment_bytes="1024", retention_ms="-1")
            old = world.leader("t")
            held = Held(world.cluster.brokers[old])
            for _ in range(20):
                await produce_to(world)
            await held.asked.wait()
            await world.fence(old)
            new, key = world.leader("t"), world.key("t")
            (of_old,) = held.keys
            broker = world.cluster.brokers[new]
            await until(lambda: broker.image.durable(key).next_offset >= 18)
            age(tmp_path)
            swept = await sweep(broker)
            assert [each.key for each in swept.strays] == [of_old]
            assert of_old not in keys_in(tmp_path)
            held.let_go.set()
            await until(lambda: bool(held.answers))
            assert held.answers[0] is not None, "it is refused"
            await world.unfence(old)
            assert referred(broker.image, key) <= keys_in(tmp_path)

    loops.run(work())
    store = Store.open(f"file://{tmp_path / 'store'}")
    assert store.verify(store.topic("t"), PartitionIndex(0)).end_offset >= 17


async def produce_to(world: World) -> None:
    answer = await produce(await world.client(world.leader("t")), "t", batch(b"v" * 400))
    assert answer.error_code == 0


async def test_the_catalog_always_refers_to_what_is_there_however_often_it_is_swept(tmp_path: Path) -> None:
    """No grace, a sweep every other moment, retention and restarts."""
    often = {**NO_GRACE, "durable.sweep.interval.ms": "10"}
    limits = {"retention_bytes": "9000", "retention_ms": "-1"}
    async with asyncio.timeout(150):
        for life in range(2):
            async with tiered(tmp_path, often) as here:
                if life == 0:
                    await here.create(**limits)
                await here.produce(40 * life, 40)
                await exported(here, 80 * life + 70)
                await mirrored(here, tmp_path)
                start, end = int(here.partition.start_offset), 80 * (life + 1)
                assert await stream(here, start, end) == expected(40 * (life + 1))[start:]
                assert referred(here.broker.image, here.partition.topic_partition) <= keys_in(tmp_path)
    store = Store.open(f"file://{tmp_path / 'store'}")
    assert store.verify(store.topic("t"), PartitionIndex(0)).start_offset > 0


async def test_what_left_its_catalog_and_was_not_deleted_then_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create()
            await here.produce(0, 40)
            await here.local_start(SETTLED)
            await exported(here, 76)  # all that is closed: nothing is under way
            assert await deleted(here, 33) == (0, 33)
            await mirrored(here, tmp_path)
        async with tiered(tmp_path) as here:  # the broker that had to delete it has forgotten it
            age(tmp_path)
            left = keys_in(tmp_path) - referred(here.broker.image, here.partition.topic_partition)
            assert left
            assert {each.due for each in (await sweep(here.broker)).strays} == {False}, "it may still be read"
            monkeypatch.setattr("headrace.broker.durable.sweeper.HISTORY_DELETE_GRACE_MS", 0)
            assert {each.key for each in (await sweep(here.broker)).strays if each.removed} == left
            assert await stream(here, 33, 80) == expected(40)[33:]
    store = Store.open(f"file://{tmp_path / 'store'}")
    store.verify(store.topic("t"), PartitionIndex(0))


async def test_what_the_mirror_still_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.durable.sweeper.HISTORY_DELETE_GRACE_MS", 0)
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        await mirrored(here, tmp_path)
        assert here.broker.parts.durable.exports is not None
        await here.broker.parts.durable.exports.exporter.stop()  # the mirror stays behind
        assert await deleted(here, 33) == (0, 33)
        age(tmp_path)
        before = keys_in(tmp_path)
        swept = await sweep(here.broker)
        assert swept.count > 0
        assert (swept.removed, keys_in(tmp_path)) == (0, before)
        store = Store.open(f"file://{tmp_path / 'store'}")
        store.verify(store.topic("t"), PartitionIndex(0))


def is_marked_deleted(root: Path, topic: TopicId) -> bool:
    document = read_document(objects_in(root), topic_document_key(topic))
    return document is not None and bool(document["deleted"])


async def delete_topic(here: Tiered) -> None:
    await here.client.ask(5, DeleteTopicsRequest(topic_names=("t",), timeout_ms=120_000))


async def test_what_retention_was_to_delete_of_a_topic_that_is_gone_is_the_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be asked for again and again."""
    monkeypatch.setattr("headrace.broker.durable.history_keeper.HISTORY_DELETE_GRACE_MS", 0)
    store = Counted(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE, objects=store) as here:
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        await mirrored(here, tmp_path)
        store.keeps_mirror = True  # the mirror goes on to name them
        assert await deleted(here, 33) == (0, 33)
        exports = here.broker.parts.durable.exports
        assert exports is not None
        await until(lambda: len(exports.keeper._doomed) > 0)
        await delete_topic(here)
        await until(lambda: len(exports.keeper._doomed) == 0)


@pytest.mark.parametrize("is_marked", [True, False])
async def test_of_a_deleted_topic_all_goes_after_the_grace_and_readers_are_told_first(
    tmp_path: Path, is_marked: bool
) -> None:
    async with asyncio.timeout(150):
        async with tiered(tmp_path) as here:
            await here.create()
            await create(here.client, "other", segment_bytes="1024", retention_ms="-1")
            for _ in range(20):
                await produce(here.client, "other", batch(b"v" * 400))
            await here.produce(0, 40)
            await exported(here, 76)
            await mirrored(here, tmp_path)
            assert here.broker.parts.durable.exports is not None
            if not is_marked:
                await here.broker.parts.durable.exports.exporter.stop()
            topic = here.partition.topic_partition.topic_id
            await delete_topic(here)
            if is_marked:
                await until(lambda: is_marked_deleted(tmp_path, topic))
        async with tiered(tmp_path) as here:
            store = Store.open(f"file://{tmp_path / 'store'}")
            of_topic = {key for key in keys_in(tmp_path, "") if str(topic) in key}
            age(tmp_path)
            if not is_marked:
                assert "t" in [each.name for each in store.topics()]
                assert (await sweep(here.broker)).removed == 0
                assert "t" not in [each.name for each in store.topics()]
                assert {key for key in keys_in(tmp_path, "") if str(topic) in key} == of_topic
                assert (await sweep(here.broker)).removed == 0, "the grace begins when its readers are told"
                age(tmp_path)
            assert {each.key for each in (await sweep(here.broker, execute=False)).strays} == of_topic
            others = keys_in(tmp_path, "") - of_topic
            assert {each.key for each in (await sweep(here.broker)).strays if each.removed} == of_topic
            assert others <= keys_in(tmp_path, "")
            assert not [key for key in keys_in(tmp_path, "") if str(topic) in key]
            assert [each.name for each in store.topics()] == ["other"]
            store.verify(store.topic("other"), PartitionIndex(0))


async def test_the_grace_of_a_topic_that_is_marked_while_the_store_is_looked_at_begins_then(tmp_path: Path) -> None:
    class MarkedLate(DirectoryObjects):
        """An exporter says that a topic is gone, between the listing of names and the reading of its own."""

        topic: TopicId | None = None

        def list(self, prefix: str) -> Any:
            listed = list(super().list(prefix))
            if prefix == NAMES and self.topic is not None:
                key, self.topic = topic_document_key(self.topic), None
                document = read_document(self, key)
                assert document is not None
                marked = replace(MirroredTopic.from_json(document), deleted=True)
                MirrorWriter(self, cluster_id=marked.cluster_id).write_topic(marked)
            return listed

    store = MarkedLate(LocalDisk(), tmp_path / "store")
    async with asyncio.timeout(150):
        async with tiered(tmp_path, objects=store) as here:
            await here.create()
            await here.produce(0, 40)
            await exported(here, 76)
            await mirrored(here, tmp_path)
            assert here.broker.parts.durable.exports is not None
            await here.broker.parts.durable.exports.exporter.stop()
            topic = here.partition.topic_partition.topic_id
            await delete_topic(here)
        async with tiered(tmp_path, objects=store) as here:
            age(tmp_path)
            store.topic = topic
            assert (await sweep(here.broker)).removed == 0
            assert is_marked_deleted(tmp_path, topic)
            age(tmp_path)
            assert (await sweep(here.broker)).removed > 0


class Gate(DirectoryObjects):
    """A listing of topics that waits for a new one."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(), root / "store")
        self.asked, self.gate = threading.Event(), threading.Event()

    def directories(self, prefix: str) -> Sequence[str]:
        self.asked.set()
        assert self.gate.wait(60)
        return super().directories(prefix)


async def test_a_topic_that_comes_while_the_store_is_looked_at_is_not_taken_for_gone(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE, objects=gate) as here:
        sweeping = asyncio.ensure_future(sweep(here.broker))
        await until(gate.asked.is_set)
        await here.create()
        await here.produce(0, 40)
        await here.local_start(SETTLED)
        gate.gate.set()
        assert (await sweeping).count == 0
        assert await stream(here, 0, 80) == expected(40)


async def test_a_store_that_fails_is_swept_the_next_time(tmp_path: Path) -> None:
    class Failing(DirectoryObjects):
        fails = True

        def list(self, prefix: str) -> Any:
            if self.fails and prefix.startswith("clusters/"):
                raise OSError("scripted")
            return super().list(prefix)

    store = Failing(LocalDisk(), tmp_path / "store")
    async with asyncio.timeout(150), tiered(tmp_path, NO_GRACE, objects=store) as here:
        await here.create()
        await here.produce(0, 20)
        await exported(here, 36)
        key = stray(here, 0)
        store.put(key, b"x")
        assert here.broker.parts.durable.exports is not None
        assert (await here.broker.parts.durable.exports.sweeper.sweep(execute=True)).problems == ["scripted"]
        store.fails = False
        assert [each.key for each in (await sweep(here.broker)).strays] == [key]


async def test_what_was_never_stored_whole_goes_in_the_end(tmp_path: Path) -> None:
    async with asyncio.timeout(150), tiered(tmp_path) as here:
        await here.create()
        incoming = tmp_path / "store" / ".incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        for name in ("old", "young"):
            (incoming / name).write_bytes(b"x")
        then = (incoming / "old").stat().st_mtime - 2 * HOUR_S
        os.utime(incoming / "old", (then, then))
        await sweep(here.broker, execute=False)
        assert (incoming / "old").exists()
        await sweep(here.broker)
        assert [path.name for path in incoming.iterdir()] == ["young"]


def test_no_object_is_listed_as_younger_than_it_is(tmp_path: Path) -> None:
    objects = objects_in(tmp_path)
    objects.put("a", b"x")
    (first,) = objects.list("a")
    age(tmp_path, "a")
    (then,) = objects.list("a")
    assert first == ObjectMeta("a", 1, then.modified_ms + 2 * HOUR_S * 1000)
