"""New replicas begin behind durable history, and leaders give way to it: what they copy, know and serve."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import DirectoryId, Offset, PartitionIndex
from headrace.base.ports import Objects
from headrace.broker.partitions import bounds
from headrace.metadata.config_table import RACK_AWARE
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.engine.epochs import LeaderEpochs
from headrace.storage.log.checkpoints import decode_stamp, encode_stamp
from headrace.storage.log.names import STAMP, STRAY
from headrace.storage.log.recovery.replaced import GAVE_WAY
from headrace.storage.tier import export
from headrace.storage.tier.reader import Store
from headrace.wire.batches import Record, check_batches, decode_records, encode_batch, iterate_headers
from headrace.wire.errors import ErrorCode
from tests import loops
from tests.broker import replicas
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, fetch, produce
from tests.broker.group_broker import until
from tests.broker.handlers.test_partition_reassignments import alter
from tests.broker.local_logs import local
from tests.broker.replication.test_reading_from_followers import RACKS
from tests.broker.replication.test_reading_from_followers import fetch as fetch_in_rack
from tests.broker.replication.test_replicas_with_history import BIG, CHECK, read, write
from tests.broker.replication_world import World, decoded, replicating
from tests.broker.tiered import objects_in

PRODUCER = 77
T = TypeVar("T")


class Failing:
    """A store whose reads can be made to fail."""

    def __init__(self, inner: Objects) -> None:
        self._inner = inner
        self.is_down = False
        self.missed = 0
        """How often what was asked for was not there."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if self.is_down:
            raise StorageFailure("scripted: the store cannot be reached")
        return self._counting(lambda: self._inner.get_range(key, start, length))

    def size(self, key: str) -> int:
        return self._counting(lambda: self._inner.size(key))

    def _counting(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError:
            self.missed += 1
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def run(
    directory: Path,
    work: Callable[[World], Awaitable[None]],
    objects: Any = None,
    configs: dict[str, str] | None = None,
) -> None:
    async def whole() -> None:
        store = objects or objects_in(directory)
        known = {**BY_HAND, CHECK: "5", **(configs or {})}
        async with replicating(directory, known, RACKS, objects=store) as world:
            await work(world)

    loops.run(whole())


def sent(number: int, count: int = 1, *, producer: int = PRODUCER) -> bytes:
    """The producer's batch of this number; each is a segment of its own."""
    records = [Record(at, 1_700_000_000_000, None, BIG, ()) for at in range(count)]
    return encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=number)


async def send(world: World, number: int, *, producer: int = PRODUCER) -> tuple[int, int]:
    """Error and base offset."""
    answer = await produce(await world.client(world.leader("t")), "t", sent(number, producer=producer))
    return answer.error_code, answer.base_offset


async def make(world: World, brokers: tuple[int, ...], local_bytes: str = "0") -> None:
    await world.make(
        "t",
        replicas=3,
        segment_bytes="1024",
        local_retention_bytes=local_bytes,
        retention_ms="-1",
        min_insync_replicas="1",
    )
    await reassign(world, brokers)


async def reassign(world: World, brokers: tuple[int, ...]) -> None:
    client = await world.client(world.leader("t"))
    assert await alter(client, {"t": [(0, brokers)]}) == [("t", 0, 0)]
    for broker in world.cluster.brokers:
        await world.cluster.until(broker, lambda image: set(image.partition(world.key("t")).isr) == set(brokers))  # type: ignore[union-attr]
        await world.cluster.settled(broker)


def catalog(world: World) -> PartitionCatalog:
    leading = world.leading("t")
    assert leading is not None
    assert leading.history is not None
    return leading.history


def last_object(world: World, directory: Path) -> Path:
    last = catalog(world).last
    assert last is not None
    (path,) = (directory / "store").rglob(last.descriptor.key.rpartition("/")[2])
    return path


async def exported(world: World, end: int) -> None:
    await until(lambda: (led := world.leading("t")) is not None and led.history is not None)
    await until(lambda: catalog(world).next_offset >= end)


async def with_history(world: World, *, local_bytes: str = "-1") -> None:
    """On brokers 1 and 2: 20 batches of a producer, all but the last exported."""
    await make(world, (1, 2), local_bytes)
    for number in range(20):
        assert await send(world, number) == (0, number)
    await exported(world, 19)


async def lead(world: World, broker: int, isr: tuple[int, ...]) -> None:
    await replicas.elect(world.cluster, world.key("t"), broker, isr)
    await world.cluster.agree()
    for each in world.cluster.brokers:
        await world.cluster.settled(each)
    await until(lambda: (led := world.leading("t")) is not None and led.isr.leader.node == broker)


def test_a_new_replica_copies_the_tail_alone_and_may_lead(tmp_path: Path) -> None:
    """Its leader has everything in its log; the producer sees neither a duplicate nor a gap."""

    async def work(world: World) -> None:
        await with_history(world)
        await reassign(world, (1, 2, 3))
        leading, new = world.leading("t"), world.role(3, "t").log
        assert leading is not None
        assert leading.log.log_start_offset == 0
        assert new.log_start_offset >= 19
        assert new.size_bytes <= leading.log.size_bytes // 10
        await lead(world, 3, (1, 2, 3))
        assert await send(world, 19) == (0, 19), "sent again: from the tail"
        assert await send(world, 16) == (0, 16), "sent again: from history"
        assert (await send(world, 21))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(world, 20) == (0, 20)
        await world.committed("t", 21)
        assert await read(world, 21) == [(number, BIG) for number in range(21)]
        await world.stop(3)
        await world.cluster.start(3)
        await world.unfence(3)
        assert world.role(3, "t").log.log_start_offset >= 19

    run(tmp_path, work)


@pytest.mark.parametrize("damage", ["is down", "damaged", "gone", "of an earlier version"])
def test_where_history_cannot_be_read_to_its_end_everything_is_copied(tmp_path: Path, damage: str) -> None:
    store = Failing(objects_in(tmp_path))

    async def work(world: World) -> None:
        await with_history(world)
        path = last_object(world, tmp_path)
        if damage == "is down":
            store.is_down = True
        elif damage == "damaged":
            data = bytearray(path.read_bytes())
            data[80] ^= 1
            path.write_bytes(data)
        elif damage == "gone":
            path.unlink()
        await reassign(world, (1, 2, 3))
        new = world.role(3, "t").log
        assert (new.log_start_offset, new.log_end_offset) == (0, 20)

    if damage == "of an earlier version":
        known = export.ExportSource.__init__

        def without(self: Any, **fields: Any) -> None:
            known(self, **{**fields, "producers": None})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export.ExportSource, "__init__", without)
            run(tmp_path, work, store)
    else:
        run(tmp_path, work, store)


def test_whoever_begins_at_the_leaders_start_is_told_the_producers_by_it(tmp_path: Path) -> None:
    """The store cannot be read, and the leader's log begins above what the producers wrote."""
    store = Failing(objects_in(tmp_path))

    async def work(world: World) -> None:
        await make(world, (1, 2))
        assert await send(world, 0, producer=5) == (0, 0)
        for number in range(19):
            assert await send(world, number) == (0, number + 1)
        await until(lambda: world.role(world.leader("t"), "t").log.log_start_offset >= 18)
        store.is_down = True
        await reassign(world, (1, 2, 3))
        start = world.role(3, "t").log.log_start_offset
        assert 0 < start <= 19
        await lead(world, 3, (1, 2, 3))
        assert await send(world, 0, producer=5) == (0, 0)
        assert await send(world, 17) == (0, 18)
        assert await send(world, 19) == (0, 20)

    run(tmp_path, work, store)


def test_who_fell_behind_the_leaders_log_goes_on_behind_history(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await make(world, (1, 2))
        assert await send(world, 0) == (0, 0)
        leader = world.leader("t")
        (other,) = {1, 2} - {leader}
        await world.until_end("t", 1, leader, other)
        await world.fence(other)
        await world.stop(other)
        for number in range(1, 20):
            assert await send(world, number) == (0, number)
        await until(lambda: world.role(leader, "t").log.log_start_offset >= 18)
        await world.cluster.start(other)
        await world.unfence(other)
        await world.in_sync("t", 2)
        assert world.role(other, "t").log.log_start_offset >= 18
        await lead(world, other, (1, 2))
        assert await send(world, 17) == (0, 17)
        assert await send(world, 20) == (0, 20)
        assert await read(world, 20) == [(number, BIG) for number in range(20)]

    run(tmp_path, work)


def test_a_reader_of_history_is_sent_to_its_rack_and_served_there(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await with_history(world)
        await reassign(world, (1, 2, 3))
        leader = world.leader("t")
        await until(lambda: world.copy(3, "t").visible_end == 20)
        for offset in (0, 7, 18, 19):
            sent_to = await fetch_in_rack(world, leader, offset, RACKS[3])
            assert (sent_to.error_code, sent_to.preferred_read_replica) == (0, 3)
            got = await fetch_in_rack(world, 3, offset, RACKS[3], wait_ms=10_000)
            assert (got.error_code, decoded(got.records)[0]) == (0, (offset, BIG))
        beyond = await fetch_in_rack(world, 3, 21, RACKS[3])
        assert beyond.error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    run(tmp_path, work, configs={"replica.selector.class": RACK_AWARE})


async def without_the_newest(world: World, *, in_a_later_epoch: bool = False) -> tuple[int, int]:
    """A leader alone in its ISR whose records are exported, and a replica that has the first record alone."""
    await make(world, (1, 2))
    assert await send(world, 0) == (0, 0)
    leader = world.leader("t")
    (behind,) = {1, 2} - {leader}
    await world.until_end("t", 1, leader, behind)
    if in_a_later_epoch:
        await lead(world, leader, (1, 2))
    world.cluster.brokers[behind].parts.replication.copying.drop(world.key("t"))  # until the next epoch
    await replicas.set_isr(world.cluster, world.key("t"), (leader,))
    for number in range(1, 20):
        assert await send(world, number) == (0, number)
    await exported(world, 19)
    return leader, behind


def test_who_is_elected_below_the_frontier_begins_there(tmp_path: Path) -> None:
    """Uncleanly: what was not exported is lost, and nothing else; the old leader comes to agree."""

    async def work(world: World) -> None:
        old, behind = await without_the_newest(world)
        first = bytes(world.role(behind, "t").log.read(Offset(0), 1 << 20, Offset(1), at_least_one=True))
        assert first
        await lead(world, behind, (behind,))
        leading = world.leading("t")
        assert leading is not None
        frontier = int(catalog(world).next_offset)
        assert leading.log.log_start_offset == leading.high_watermark == frontier
        assert [path.name for path in kept_beside(world, behind)] == [f"{GAVE_WAY}-1"]
        assert await send(world, frontier - 1) == (0, frontier - 1), "sent again: it is in history"
        assert await send(world, frontier) == (0, frontier)
        await world.in_sync("t", 2)
        end = frontier + 1
        assert await read(world, end) == [(number, BIG) for number in range(end)]
        await exported(world, frontier)
        (kept,) = kept_beside(world, behind)
        assert b"".join(path.read_bytes() for path in kept.iterdir()) == first
        await world.stop(*world.cluster.brokers)
        tails = [b"".join(world.files(each, "t").values()) for each in (old, behind)]
        assert tails[0].endswith(tails[1])
        assert tails[1]
        store = Store.open(f"file://{tmp_path / 'store'}")
        assert store.verify(store.topic("t"), PartitionIndex(0)).end_offset >= frontier - 1

    run(tmp_path, work)


def kept_beside(world: World, broker: int) -> list[Path]:
    """Its former log, which it kept when it was discarded."""
    return list(local(world.role(broker, "t").log).directory.glob(f"{GAVE_WAY}-*"))


@pytest.mark.parametrize("why", ["is down", "is not mounted", "lacks the last object"])
def test_who_cannot_read_history_does_not_lead_below_it(tmp_path: Path, why: str) -> None:
    """Otherwise producers would get used offsets again, or be accepted twice."""
    store = Failing(objects_in(tmp_path))
    away = tmp_path / "away"

    async def work(world: World) -> None:
        _, behind = await without_the_newest(world)
        where = tmp_path / "store"
        if why == "is down":
            store.is_down = True
        else:
            where = where if why == "is not mounted" else last_object(world, tmp_path)
            where.rename(away)
        await replicas.elect(world.cluster, world.key("t"), behind, (behind,))
        await world.cluster.agree()
        await world.cluster.settled(behind)
        refused = await produce(await world.client(behind), "t", batch(b"too early"))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        held = world.role(behind, "t").log
        assert (held.log_start_offset, held.log_end_offset) == (0, 1)
        assert not kept_beside(world, behind)
        store.is_down = False
        if away.exists():
            shutil.rmtree(where, ignore_errors=True)  # the beginning of the exporter's work there
            away.rename(where)
        await until(lambda: (led := world.leading("t")) is not None and led.isr.leader.node == behind)
        frontier = int(catalog(world).next_offset)
        assert await send(world, frontier - 1) == (0, frontier - 1), "sent again: it is in history"
        assert await write(world, b"now") == frontier

    run(tmp_path, work, store)


def test_where_history_is_damaged_a_leader_goes_on_with_the_producers_that_it_knows(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        _, behind = await without_the_newest(world)
        path = last_object(world, tmp_path)
        data = bytearray(path.read_bytes())
        data[80] ^= 1
        path.write_bytes(data)
        await lead(world, behind, (behind,))
        leading = world.leading("t")
        assert leading is not None
        assert leading.log.log_start_offset == catalog(world).next_offset
        assert await send(world, 0) == (0, 0), "sent again: its log had it"

    run(tmp_path, work)


def test_who_has_no_store_does_not_lead_below_the_frontier(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        _, behind = await without_the_newest(world)
        world.cluster.brokers[behind].parts.logs.assignments._durable_wins._frontiers = None
        await replicas.elect(world.cluster, world.key("t"), behind, (behind,))
        await world.cluster.agree()
        await world.cluster.settled(behind)
        refused = await produce(await world.client(behind), "t", batch(b"below"))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        held = world.role(behind, "t").log
        assert (held.log_start_offset, held.log_end_offset) == (0, 1)

    run(tmp_path, work)


def written_elsewhere(world: World, behind: int, epoch: int = 0) -> None:
    """Its log becomes 40 other records of that epoch."""
    others = b"".join(
        number.to_bytes(8, "big") + raw[8:12] + epoch.to_bytes(4, "big") + raw[16:]
        for number in range(40)
        if (raw := sent(0, producer=number + 200))
    )
    copy = world.copy(behind, "t")
    local(copy.log).copying.truncate_to(Offset(0))
    local(copy.log).copying.append_verbatim(others, check_batches(others), now_ms=0)


def next_epoch(world: World) -> int:
    leading = world.leading("t")
    assert leading is not None
    return leading.leader_epoch + 1


def check_same(world: World, *brokers: int) -> None:
    """They have the 40 records, all of them, byte by byte."""
    logs = [world.role(each, "t").log for each in brokers]
    assert [(log.log_start_offset, log.log_end_offset) for log in logs] == len(brokers) * [(0, 40)]
    assert len({bytes(log.read(Offset(0), 1 << 20, Offset(40), at_least_one=True)) for log in logs}) == 1


def test_a_log_that_differs_from_history_is_kept_and_not_exported(tmp_path: Path) -> None:
    """The log of a deposed leader, in an epoch no later than that of the exports. Its differing records do not count as
    committed merely because history has as many."""

    async def work(world: World) -> None:
        old, behind = await without_the_newest(world, in_a_later_epoch=True)
        written_elsewhere(world, behind)
        replicas.silence(world.cluster, old)  # it is silent in the next epoch
        frontier = catalog(world).next_offset
        await lead(world, behind, (1, 2))
        leading = world.leading("t")
        assert leading is not None
        assert (leading.log.log_start_offset, leading.log.log_end_offset) == (0, 40)
        assert leading.high_watermark < frontier
        assert leading.differs_from == 0
        assert bounds.deletable_end(leading) == 0
        assert not kept_beside(world, behind)

    run(tmp_path, work)


@pytest.mark.parametrize("is_deposed", [True, False])
def test_a_new_replica_of_a_leader_that_differs_from_history_copies_what_that_one_has(
    tmp_path: Path, is_deposed: bool
) -> None:
    """Records acknowledged since the unclean election are in the leader's log alone, so every member of the ISR has
    them too."""

    async def work(world: World) -> None:
        old, behind = await without_the_newest(world, in_a_later_epoch=True)
        written_elsewhere(world, behind, 0 if is_deposed else next_epoch(world))
        replicas.silence(world.cluster, old)
        await lead(world, behind, (behind,))
        await reassign(world, (behind, 3))
        check_same(world, behind, 3)

    run(tmp_path, work)


def test_a_copy_that_is_taken_whole_knows_no_other_copys_producers(tmp_path: Path) -> None:
    """A batch that only another log has would be acknowledged as sent before, and is nowhere."""

    async def work(world: World) -> None:
        old, behind = await without_the_newest(world, in_a_later_epoch=True)
        written_elsewhere(world, behind)
        replicas.silence(world.cluster, old)
        await lead(world, behind, (behind,))
        known = []
        for _ in range(2):
            await reassign(world, (behind, 3))
            check_same(world, behind, 3)
            known.append(world.role(3, "t").producers)
            await reassign(world, (behind,))
        assert known[0] is not known[1]

    run(tmp_path, work)


@pytest.mark.parametrize(("is_deposed", "knows_before"), [(True, True), (False, True), (True, False)])
def test_a_replica_that_began_behind_history_follows_a_leader_that_differs_from_it(
    tmp_path: Path, is_deposed: bool, knows_before: bool
) -> None:
    """It was in sync; what it was cut to is not the leader's. It would not look at history of itself."""

    async def work(world: World) -> None:
        old, behind = await without_the_newest(world, in_a_later_epoch=True)
        await replicas.set_isr(world.cluster, world.key("t"), (old,))
        client = await world.client(old)
        assert await alter(client, {"t": [(0, (old, behind, 3))]}) == [("t", 0, 0)]
        await until(lambda: 3 in world.image("t", broker=old).isr)
        assert await send(world, 20) == (0, 20)
        await world.until_end("t", 21, old, 3)
        assert world.role(3, "t").log.log_start_offset >= 19
        world.copy(3, "t").shun_history()
        if not knows_before:  # as where its leader could not tell of which epoch the record before is
            log: Any = world.role(3, "t").log
            log.leader_epochs = LeaderEpochs([(log.epochs[-1][0], log.log_start_offset)])
        written_elsewhere(world, behind, 0 if is_deposed else next_epoch(world))
        replicas.silence(world.cluster, old)
        await lead(world, behind, (behind,))
        await until(lambda: 3 in world.image("t", broker=behind).isr)
        check_same(world, behind, 3)

    run(tmp_path, work)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_nothing_is_exported_to_a_store_that_lacks_what_was_put_there_last(tmp_path: Path, is_remembered: bool) -> None:
    """It is not mounted, or is another one: what was put there would be missing in the right one."""
    store = Failing(objects_in(tmp_path))

    async def work(world: World) -> None:
        await with_history(world)
        if not is_remembered:
            (other,) = {1, 2} - {world.leader("t")}
            await lead(world, other, (1, 2))
        path, missed, end = last_object(world, tmp_path), store.missed, int(catalog(world).next_offset)
        path.rename(tmp_path / "away")
        assert await send(world, 20) == (0, 20)
        await until(lambda: store.missed > missed + 1)
        assert catalog(world).next_offset == end
        (tmp_path / "away").rename(path)
        await exported(world, 20)

    run(tmp_path, work, store)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_nor_is_what_comes_first_of_another_partition(tmp_path: Path, is_damaged: bool) -> None:
    """Retention would take it from the log, and in the right store it would be missing. One object that is lost is no
    other store."""
    objects = objects_in(tmp_path)
    store = Failing(objects)

    async def work(world: World) -> None:
        await with_history(world)
        await world.make("other", replicas=1, segment_bytes="1024", retention_ms="-1")
        first, place = last_object(world, tmp_path), tmp_path / "store"
        if is_damaged:
            await send_to(world, "other", 4)
            await until(lambda: history_of(world, "other").next_offset > 0)
            first.rename(tmp_path / "lost")
            await world.make("third", replicas=1, segment_bytes="1024", retention_ms="-1")
            await send_to(world, "third", 4)
            await until(lambda: history_of(world, "third").next_offset > 0)
            return
        place.rename(tmp_path / "away")
        missed = store.missed
        await send_to(world, "other", 4)
        await until(lambda: store.missed > missed + 2)
        assert history_of(world, "other").next_offset == 0
        assert not [*place.rglob("*.segment")], "nothing was put there"
        shutil.rmtree(place, ignore_errors=True)
        (tmp_path / "away").rename(place)
        await until(lambda: history_of(world, "other").next_offset > 0)

    run(tmp_path, work, store)


async def send_to(world: World, topic: str, count: int) -> None:
    for number in range(count):
        answer = await produce(await world.client(world.leader(topic)), topic, sent(number))
        assert answer.error_code == 0


def history_of(world: World, topic: str) -> PartitionCatalog:
    return world.cluster.image(1).durable(world.key(topic))


def test_a_restarted_leader_without_its_log_begins_at_the_frontier(tmp_path: Path) -> None:
    """Its directory was emptied by hand. Offsets of history are not given out again."""

    async def work(world: World) -> None:
        await make(world, (1,))
        for number in range(20):
            assert await send(world, number) == (0, number)
        await exported(world, 19)
        await world.stop(1)
        (directory,) = world.cluster.data(1).rglob("t-0")
        directory.rename(tmp_path / "away")
        await world.cluster.start(1)
        await world.unfence(1)
        await until(lambda: world.leading("t") is not None)
        assert await send(world, 18) == (0, 18)
        assert await send(world, 19) == (0, 19)
        assert await read(world, 20) == [(number, BIG) for number in range(20)]

    run(tmp_path, work)


def test_a_log_of_another_disk_is_kept_beside_and_taken_anew_where_somebody_else_leads(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await with_history(world)
        await reassign(world, (1, 2, 3))
        leader = world.leader("t")
        await world.fence(3)
        await world.stop(3)
        (directory,) = world.cluster.data(3).rglob("t-0")
        stamp = decode_stamp((directory / STAMP).read_bytes())
        foreign = replace(stamp, identity=replace(stamp.identity, directory_id=DirectoryId(uuid.UUID(int=5))))
        (directory / STAMP).write_bytes(encode_stamp(foreign))
        await world.cluster.start(3)
        await world.unfence(3)
        await world.in_sync("t", 3)
        assert world.leader("t") == leader
        assert world.role(3, "t").log.flushed_end == 20
        (kept,) = [path for path in directory.parent.iterdir() if path.name.endswith(STRAY)]
        assert (kept / STAMP).read_bytes() == encode_stamp(foreign)

    run(tmp_path, work)


def test_a_leader_shows_all_of_history_before_its_followers_have_reported(tmp_path: Path) -> None:
    """Exported records were committed, so its high watermark begins there, though no follower has reported."""

    async def work(world: World) -> None:
        await with_history(world)
        leader = world.leader("t")
        (follower,) = {1, 2} - {leader}
        replicas.silence(world.cluster, leader)  # it is silent in the next epoch
        copy = world.copy(follower, "t")
        copy._high_watermark = copy.log.log_start_offset  # as when it was just started
        await lead(world, follower, (1, 2))
        leading = world.leading("t")
        assert leading is not None
        assert leading.high_watermark == catalog(world).next_offset < leading.log.log_end_offset

    run(tmp_path, work)


def test_a_copy_that_ends_below_where_history_begins_says_nothing_impossible(tmp_path: Path) -> None:
    """Its leader would end the connection, and so the copying of everything else."""

    async def work(world: World) -> None:
        await with_history(world)
        (follower,) = {1, 2} - {world.leader("t")}
        copy = world.copy(follower, "t")
        world.cluster.brokers[follower].parts.replication.copying.drop(world.key("t"))
        local(copy.log).copying.truncate_to(Offset(5))
        assert copy.history is not None
        copy.history = copy.history.deleted(Offset(15), ())
        assert copy.position.readable_from <= copy.position.log_end == 5

    run(tmp_path, work)


def test_a_new_replica_of_a_compacted_topic_is_copied_whole(tmp_path: Path) -> None:
    """History may have been compacted differently from the copied log. A log that began behind it could lack a
    tombstone for a value in history."""

    async def work(world: World) -> None:
        await world.make(
            "t",
            replicas=3,
            segment_bytes="1024",
            min_insync_replicas="1",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            durable_compacted_enable="true",
        )
        await reassign(world, (1, 2))
        table: dict[bytes, bytes | None] = {}
        for number in range(20):
            key, value = b"key %d" % (number % 3), None if number % 7 == 6 else b"%d" % number + BIG
            batch = encode_batch([Record(0, 1_700_000_000_000, key, value, ())])
            answer = await produce(await world.client(world.leader("t")), "t", batch)
            assert (answer.error_code, answer.base_offset) == (0, number)
            table[key] = value
        await exported(world, 19)
        leading = world.leading("t")
        assert leading is not None
        await until(lambda: leading.log.gaps_below > 0)
        await reassign(world, (1, 2, 3))
        await lead(world, 3, (1, 2, 3))
        new = world.role(3, "t")
        assert new.log.log_start_offset < 19, "its history goes on to there"
        found: dict[bytes | None, bytes | None] = {}
        client, offset = await world.client(3), int(new.start_offset)
        while offset < 20:
            answer = await fetch(client, "t", offset, wait_ms=10_000)
            assert answer.error_code == 0
            for at, header in iterate_headers(answer.records):
                for record in decode_records(answer.records[at : at + header.size]) if header.count else ():
                    found[record.key] = record.value
                offset = header.next_offset
        assert found == table

    run(tmp_path, work, configs={"log.cleaner.backoff.ms": "5"})


def test_a_copy_that_cannot_tell_where_an_epoch_began_goes_on_with_its_export(tmp_path: Path) -> None:
    """Compaction has left nothing around its beginning: for the copy it began where the gap does, in a segment that was
    exported before."""

    async def work(world: World) -> None:
        await world.make(
            "t",
            replicas=3,
            segment_bytes="1024",
            min_insync_replicas="1",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            durable_compacted_enable="true",
        )
        await reassign(world, (1, 2))

        async def put(first: int, end: int) -> None:
            for number in range(first, end):
                key = b"first" if number == 0 else b"other"
                batch = encode_batch([Record(0, 1_700_000_000_000, key, BIG, ())])
                answer = await produce(await world.client(world.leader("t")), "t", batch)
                assert (answer.error_code, answer.base_offset) == (0, number)

        await lead(world, 1, (1, 2))
        await put(0, 10)
        await exported(world, 8)
        before = catalog(world).next_offset
        await lead(world, 2, (1, 2))
        await put(10, 20)
        await exported(world, 19)
        leading = world.leading("t")
        assert leading is not None
        await until(lambda: leading.log.gaps_below >= catalog(world).mirrored_end)
        await reassign(world, (1, 2, 3))
        await lead(world, 3, (1, 2, 3))
        new = world.leading("t")
        assert new is not None
        epoch = leading.log.epoch_at(Offset(10))
        assert [start < before for each, start in new.log.epochs if each == epoch] == [True]
        assert new.differs_from is None
        end = catalog(world).next_offset
        await put(20, 24)
        await exported(world, end + 1)

    run(tmp_path, work, configs={"log.cleaner.backoff.ms": "5"})
