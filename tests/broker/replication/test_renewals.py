"""Damaged copies are copied again from their leaders: when, in which order, and when not (decision 0023)."""

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import FullDisk, StorageFailure
from headrace.base.ids import NO_LEADER, BrokerId, LeaderEpoch, Offset, PartitionEpoch, TopicPartition
from headrace.base.limits import RENEWAL_ROOM_FACTOR
from headrace.base.ports import Disk, Space
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.replica import Replica
from headrace.broker.replication import renewals as renewals_module
from headrace.controller.decision import Decision
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import LeaderChanged
from headrace.metadata.image import MetadataImage
from headrace.storage.engine.reading import EpochEnd
from headrace.storage.log import cutting as log_module
from headrace.storage.log.recovery.replaced import REPLACED
from headrace.wire.errors import ErrorCode
from tests import loops
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import until
from tests.broker.local_logs import local
from tests.broker.patience import findings
from tests.broker.replicas import elect, known, set_isr
from tests.broker.replication_world import World, replicating

COUNT = 12
SEGMENT = {"segment_bytes": "1024"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "RENEWAL_LOOK_MS", 1)


def run(directory: Path, work: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with replicating(directory) as world:
            await work(world)

    loops.run(whole())


async def filled(world: World, *, replicas: int = 3, count: int = COUNT, **configs: str) -> None:
    """A topic of several closed segments, with all replicas in sync and all flushed."""
    await world.make("t", 1, replicas, **SEGMENT | configs)
    client = await world.client(world.leader("t"))
    for number in range(count):
        assert (await produce(client, "t", record(number))).error_code == 0
    await world.until_end("t", count, *world.image("t").replicas)


def record(number: int) -> bytes:
    return batch(b"%d" % number + b"v" * 250, timestamp=1_700_000_000_000)


def segments(world: World, broker: int) -> list[Path]:
    return sorted(local(world.role(broker, "t").log).directory.glob("*.log"))


def flip(path: Path, at: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def suspected(role: Replica, offset: Offset) -> bool:
    return role.events.suspect(role, offset)


def damage(world: World, broker: int, number: int = 0) -> Path:
    """A changed value in one of its closed segments, which is looked at as if a reader had stumbled there."""
    path = segments(world, broker)[number]
    flip(path)
    assert suspected(world.role(broker, "t"), Offset(int(path.stem)))
    return path


def is_sound(world: World, broker: int) -> bool:
    role = world.role(broker, "t")
    return not role.is_damaged and not role.has_replaced and not list(local(role.log).directory.glob("replaced*"))


async def mended(world: World, broker: int, count: int = 3) -> None:
    """Until its copy is sound, and in sync."""
    await until(lambda: is_sound(world, broker))
    await world.in_sync("t", count)


def contents(world: World, broker: int) -> bytes:
    return b"".join(path.read_bytes() for path in segments(world, broker))


def test_a_damaged_follower_is_copied_anew_and_rejoins(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, _) = world.leader("t"), world.followers("t")
        sound, epoch = contents(world, leader), world.image("t").leader_epoch
        path = damage(world, follower)
        damaged = path.read_bytes()
        await until(lambda: world.image("t").leader_epoch > epoch)
        await mended(world, follower)
        assert contents(world, follower) == sound
        assert world.leader("t") == leader
        assert path.with_name(path.name + ".damaged").read_bytes() == damaged
        assert len(await world.read("t")) == COUNT

    run(tmp_path, work)


def test_a_damaged_leader_hands_over_and_then_does_as_a_follower(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, followers = world.leader("t"), world.followers("t")
        sound = contents(world, followers[0])
        damage(world, leader)
        await until(lambda: world.leading("t") is not None and world.leader("t") in followers)
        await mended(world, leader)
        assert contents(world, leader) == sound

    run(tmp_path, work)


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_isr_is_not_left_that_would_be_too_small(tmp_path: Path, replicas: int) -> None:
    """Producers wait for nothing that is done in the background."""

    async def work(world: World) -> None:
        await filled(world, replicas=replicas, min_insync_replicas=str(replicas))
        leader = world.leader("t")
        follower = next(each for each in world.image("t").replicas if each != leader)
        epoch = world.image("t").leader_epoch
        damage(world, follower)
        told = world.cluster.brokers[follower].parts.replication.renewals
        await until(lambda: told.obstacle(world.key("t")) is not None)
        for _ in range(5):
            await world.turns()
        assert (world.image("t").leader_epoch, len(world.image("t").isr)) == (epoch, replicas)
        assert told.obstacle(world.key("t")) == renewals_module.TOO_FEW
        (found,) = [each for each in await findings(world.cluster) if each.kind == "damaged"]
        assert (found.subject, found.todo) == (f"t-0 on broker {follower}", renewals_module.TOO_FEW)
        assert world.role(follower, "t").is_damaged
        assert (await produce(await world.client(leader), "t", record(99))).error_code == 0

    run(tmp_path, work)


def test_damage_that_a_leader_does_not_know_of_is_met_by_the_copy_and_another_leads(tmp_path: Path) -> None:
    """The part copied so far is good, and nobody has lost its former data meanwhile."""

    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, third) = world.leader("t"), world.followers("t")
        sound = contents(world, third)
        flip(segments(world, leader)[1])
        world.role(leader, "t").log.contents.newest.drop()  # type: ignore[attr-defined]  # it has it in memory, too
        damage(world, follower)
        await until(lambda: world.leading("t") is not None and world.leader("t") == third)
        for each in (leader, follower):
            await mended(world, each)
            assert contents(world, each) == sound
        assert len(await world.read("t")) == COUNT

    run(tmp_path, work)


def test_where_the_leader_has_damaged_the_same_nobody_leaves_and_it_is_told_once(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world, replicas=2, min_insync_replicas="2")
        follower = world.leader("t")  # it hands over, and may not leave
        (leader,) = [each for each in world.image("t").replicas if each != follower]
        damage(world, follower)
        await until(lambda: (leading := world.leading("t")) is not None and leading.isr.leader.node == leader)
        epoch = world.image("t").leader_epoch
        with capture_logs() as told:
            damage(world, leader)
            waits = {each: world.cluster.brokers[each].parts.replication.renewals for each in (leader, follower)}
            await until(lambda: waits[follower].obstacle(world.key("t")) == renewals_module.LEADER_DAMAGED)
            await until(lambda: waits[leader].obstacle(world.key("t")) == renewals_module.NONE_SOUND)
            for _ in range(5):
                await world.turns()
        assert (world.image("t").leader_epoch, len(world.image("t").isr)) == (epoch, 2)
        obstacles = [line["obstacle"] for line in told if line["event"] == "a damaged log is not copied anew now"]
        assert set(obstacles) >= {renewals_module.LEADER_DAMAGED, renewals_module.NONE_SOUND}
        assert len(obstacles) == len(set(obstacles)) <= 3
        found = [each for each in await findings(world.cluster) if each.kind == "damaged"]
        assert {each.subject for each in found} == {f"t-0 on broker {each}" for each in (leader, follower)}

    run(tmp_path, work)


def test_a_copy_whose_end_is_gone_is_taken_anew_when_its_broker_comes_back(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, _) = world.leader("t"), world.followers("t")
        sound = contents(world, leader)
        path = segments(world, follower)[-1]
        await world.stop(follower)
        path.write_bytes(path.read_bytes()[:-1])
        await world.cluster.start(follower)
        await mended(world, follower)
        assert contents(world, follower) == sound

    run(tmp_path, work)


def test_a_copy_that_cannot_be_cut_for_its_damage_is_taken_anew(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, _) = world.leader("t"), world.followers("t")
        path, copy = segments(world, follower)[1], world.copy(follower, "t")
        flip(path, 16)  # the magic of its first batch, which nobody has met yet
        source = world.cluster.brokers[follower].parts.replication.copying._sources[BrokerId(leader)]
        middle = Offset(int(path.stem) + 1)
        source._work(copy, source._cut(copy, EpochEnd(LeaderEpoch(0), middle)))
        await until(lambda: copy.in_doubt is not None)
        await until(lambda: world.copy(follower, "t").in_doubt is None)
        await mended(world, follower)
        assert contents(world, follower) == contents(world, leader)

    run(tmp_path, work)


@pytest.mark.parametrize("ends", [lambda copy: copy.fail(StorageFailure("a test's")), FollowerPartition.step_down])
def test_a_copy_that_fails_or_ends_while_its_log_becomes_quiet_is_not_begun_anew(
    tmp_path: Path, ends: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may lose what is kept beside the log; or it is about to lead with what it has."""

    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, _) = world.leader("t"), world.followers("t")
        copy, before = world.copy(follower, "t"), contents(world, follower)
        source = world.cluster.brokers[follower].parts.replication.copying._sources[BrokerId(leader)]
        quiet = copy.quiet

        async def ended() -> None:
            await quiet()
            ends(copy, *([ErrorCode.NOT_LEADER_OR_FOLLOWER] if ends is FollowerPartition.step_down else []))

        monkeypatch.setattr(copy, "quiet", ended)
        monkeypatch.setattr(copy.events, "is_to_begin_again", lambda _: True)
        await source._begin_anew(copy)
        assert contents(world, follower) == before
        assert not copy.has_replaced
        assert copy.log.log_end_offset == COUNT

    run(tmp_path, work)


@pytest.mark.parametrize("place", ["mark_begun_anew", "finish_begun_anew"])
def test_a_copy_that_was_begun_anew_on_a_full_disk_goes_on_once_there_is_room(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened again then, as after a crash; what was told of it in this epoch is remembered."""

    async def work(world: World) -> None:
        await filled(world)
        follower, _ = world.followers("t")
        room = world.cluster.brokers[follower].parts.logs.room
        room.stop()
        full = threading.Event()
        sound = getattr(log_module, place)

        def begun(disk: Disk, directory: Path, *rest: Any) -> None:
            if not full.is_set():
                full.set()
                raise FullDisk(errno.ENOSPC, "planted")
            sound(disk, directory, *rest)

        monkeypatch.setattr(log_module, place, begun)
        damage(world, follower)
        await until(full.is_set)
        key = world.key("t", 0)
        await until(lambda: key in world.partitions(follower).offline)
        assert world.partitions(follower).role(key) is None
        await room.look()
        await until(lambda: key not in world.partitions(follower).offline)
        await until(lambda: not world.role(follower, "t").is_damaged)
        await world.in_sync("t", 3)
        assert world.copy(follower, "t").log.log_end_offset == COUNT

    run(tmp_path, work)


def test_a_copy_without_a_leader_keeps_no_other_from_being_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals_module, "RENEWALS_AT_ONCE_MAX", 1)

    async def work(world: World) -> None:
        await filled(world, replicas=2)
        leader = world.leader("t")
        (follower,) = [each for each in world.image("t").replicas if each != leader]
        dropped, goes_on = threading.Event(), threading.Event()
        begin_anew = FollowerPartition.begin_anew

        def held(copy: FollowerPartition) -> None:
            dropped.set()
            assert goes_on.wait(60)
            begin_anew(copy)

        monkeypatch.setattr(FollowerPartition, "begin_anew", held)
        damage(world, follower)
        try:
            await until(dropped.is_set)
            await world.stop(leader)
            await until(lambda: world.image("t", broker=follower).leader == NO_LEADER)
        finally:
            goes_on.set()
        await until(lambda: world.copy(follower, "t").has_replaced)
        await world.make("u", 1, 2, **SEGMENT)
        other = world.leader("u")
        if other == follower:
            (other,) = [each for each in world.cluster.brokers if each != follower]
        client = await world.client(world.leader("u"))
        for number in range(COUNT):
            assert (await produce(client, "u", record(number))).error_code == 0
        await world.until_end("u", COUNT, follower, other)
        role, epoch = world.role(follower, "u"), world.image("u").leader_epoch
        flip(sorted(local(role.log).directory.glob("*.log"))[0])
        assert suspected(role, Offset(0))
        await until(lambda: world.image("u").leader_epoch > epoch)
        await until(lambda: not world.role(follower, "u").is_damaged)
        await world.in_sync("u", 2)

    run(tmp_path, work)


def test_a_few_at_a_time_leave_their_isrs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "RENEWALS_AT_ONCE_MAX", 1)

    async def work(world: World) -> None:
        await world.make("t", 4, 3, **SEGMENT)
        for index in range(4):
            client = await world.client(world.leader("t", index))
            for number in range(COUNT):
                assert (await produce(client, "t", record(number), partition=index)).error_code == 0
        victim, most = 1, [0]
        await until(lambda: all(role.log.flushed_end == COUNT for role in world.partitions(victim).replicas))

        def count(delta: ImageDelta) -> None:
            (topic,) = [topic for topic in delta.after.topics.values() if topic.name == "t"]
            most.append(sum(victim not in part.isr for part in topic.partitions))

        world.cluster.brokers[BrokerId(victim)].observe(count)
        for role in world.partitions(victim).replicas:
            flip(sorted(local(role.log).directory.glob("*.log"))[0])
            assert suspected(role, Offset(0))

        def are_mended() -> bool:
            roles = world.partitions(victim).replicas
            were_damaged = all(list(local(role.log).directory.glob("*.damaged")) for role in roles)
            return were_damaged and not any(role.is_damaged or role.has_replaced for role in roles)

        await until(are_mended)
        for index in range(4):
            await world.in_sync("t", 3, index)
        assert max(most) == 1, "before brokers stop"

    run(tmp_path, work)


def test_where_there_is_no_room_for_two_copies_the_damaged_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: World) -> None:
        await filled(world)
        (follower, _), epoch = world.followers("t"), world.image("t").leader_epoch
        room = [RENEWAL_ROOM_FACTOR * world.role(follower, "t").log.size_bytes - 1]

        async def space() -> Space:
            return Space(1 << 40, room[0])

        monkeypatch.setattr(world.partitions(follower), "space", space)
        told = world.cluster.brokers[BrokerId(follower)].parts.replication.renewals
        damage(world, follower)
        await until(lambda: told.obstacle(world.key("t")) == renewals_module.NO_ROOM)
        await world.turns()
        assert world.image("t").leader_epoch == epoch
        room[0] += 1
        await mended(world, follower)

    run(tmp_path, work)


def test_what_is_kept_beside_a_log_stays_while_that_leads(tmp_path: Path) -> None:
    """It may have been elected uncleanly, with less than is kept."""

    async def work(world: World) -> None:
        await filled(world)
        leader, (follower, _) = world.leader("t"), world.followers("t")
        logs = {each: local(world.role(each, "t").log) for each in (leader, follower)}
        for each, kept in logs.items():
            (kept.directory / REPLACED).mkdir()
            kept.has_replaced = True
            world.role(each, "t").events.on_damaged(world.key("t"))
        await until(lambda: not logs[follower].has_replaced)
        for _ in range(3):
            await world.turns()
        assert [(logs[each].directory / REPLACED).exists() for each in (leader, follower)] == [True, False]

    run(tmp_path, work)


def test_the_examiner_writes_nothing_of_a_log_that_a_worker_thread_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write what the log holds back."""

    async def work(world: World) -> None:
        await filled(world)
        follower = world.followers("t")[0]
        copy, examiner = world.copy(follower, "t"), world.cluster.brokers[follower].parts.upkeep.examiner
        assert examiner is not None
        written: list[None] = []
        monkeypatch.setattr(copy, "write_out", lambda: written.append(None))
        copy.is_changing = True
        try:
            await examiner._examine(copy, Offset(0), is_suspected=False)
            assert written == []
        finally:
            copy.is_changing = False
        await examiner._examine(copy, Offset(0), is_suspected=False)
        assert written == [None]

    run(tmp_path, work)


def nobody_lets_in(world: World, broker: int) -> list[TopicPartition]:
    """That broker's log of 't' has replaced data beside it, which is never removed from now on. Returns the keys that
    are reported instead."""
    told: list[TopicPartition] = []
    local(world.role(broker, "t").log).has_replaced = True
    renewals = world.cluster.brokers[BrokerId(broker)].parts.replication.renewals
    vars(renewals).update(note_let_in=told.append)
    return told


@pytest.mark.parametrize("unclean", [False, True])
def test_a_copy_that_comes_to_be_in_sync_and_to_lead_in_one_entry_is_told_of_as_let_in(
    tmp_path: Path, unclean: bool
) -> None:
    """As where that finishes a reassignment. Else what it replaced would stay for as long as it leads."""

    async def work(world: World) -> None:
        await filled(world)
        follower, key = world.followers("t")[0], world.key("t")
        for broker in world.cluster.brokers.values():
            await broker.parts.replication.isr.stop()
        told, isr = nobody_lets_in(world, follower), world.image("t").isr
        await set_isr(world.cluster, key, [each for each in isr if each != follower])
        await world.cluster.until(follower, lambda image: follower not in known(image, key).isr)

        def decide(image: MetadataImage) -> Decision[None]:
            before = known(image, key)
            event = LeaderChanged(
                topic_id=key.topic_id,
                partition=key.partition,
                leader=BrokerId(follower),
                leader_epoch=LeaderEpoch(before.leader_epoch + 1),
                partition_epoch=PartitionEpoch(before.partition_epoch + 1),
                isr=(BrokerId(follower),) if unclean else isr,
                unclean=unclean,
            )
            return Decision((event,), None)

        await world.cluster.controller.metadata.submit(decide)
        await until(lambda: world.leading("t") is not None and world.leader("t") == follower)
        assert told == ([] if unclean else [key])

    run(tmp_path, work)


def test_a_copy_that_is_in_sync_when_it_begins_to_follow_is_told_of_as_let_in(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await filled(world)
        leader, follower, key = world.leader("t"), world.followers("t")[0], world.key("t")
        for broker in world.cluster.brokers.values():
            await broker.parts.replication.isr.stop()
        told = nobody_lets_in(world, leader)
        await elect(world.cluster, key, follower)
        await world.cluster.until(leader, lambda image: known(image, key).leader == follower)
        await world.cluster.settled(leader)
        assert world.copy(leader, "t").is_in_sync
        assert told == [key]

    run(tmp_path, work)
