"""Room on the logs' disk: who is refused, what is kept free, and who is told when there is some again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import NoRoom
from headrace.base.ids import BrokerId
from headrace.base.limits import DISK_RESERVE_BYTES_MAX
from headrace.base.ports import Space
from headrace.broker.partitions.condition import states_of_disk
from headrace.broker.partitions.disk_room import DiskRoom, Waiting, reserve_of
from headrace.controller.asks.brokers import Heartbeat
from headrace.controller.asks.replicas import LeaveIsr
from headrace.metadata.values import BrokerImage
from tests.broker.clusters import BY_HAND
from tests.broker.replication_world import World, replicating
from tests.storage.log.log_world import open_log, read_all
from tests.storage.log.test_log_failures import written

GIB = 1024**3


@dataclass(eq=False)
class Waiter:
    """`Waiting`: takes what there is, `lucky` times out of those that it is told."""

    room: DiskRoom
    lucky: int = 1
    told: int = 0
    has_stepped_down: bool = False

    def go_on(self) -> bool:
        self.told += 1
        if self.told >= self.lucky:
            return True
        self.room.lack(self, is_full=True)
        return False


@dataclass
class Volume:
    usable: int
    total: int = 100 * GIB
    seen: list[int] = field(default_factory=list)

    def space(self) -> Space:
        self.seen.append(self.usable)
        return Space(self.total, self.usable)


def room_of(
    volume: Volume, min_free: int = 1000, on_waiting: Callable[[Sequence[Waiting]], object] = lambda _: None
) -> DiskRoom:
    return DiskRoom(volume.space, lambda: min_free, lambda _: None, on_waiting)


@pytest.mark.parametrize(
    ("total", "configured", "reserve"),
    [
        (64 * 1024**2, -1, 64 * 1024**2 // 20),
        (10_000 * GIB, -1, DISK_RESERVE_BYTES_MAX),
        (64 * 1024**2, 5, 5),
        (64 * 1024**2, 0, 0),
    ],
)
def test_what_is_kept_free_goes_by_the_volume_unless_it_is_said(total: int, configured: int, reserve: int) -> None:
    assert reserve_of(Space(total, 0), configured) == reserve


async def test_clients_are_refused_first_and_groups_have_half_of_what_is_kept_free() -> None:
    volume = Volume(usable=1000)
    room = room_of(volume)
    clients, groups = room.share(internal=False), room.share(internal=True)
    assert clients.left > GIB, "nobody has asked the disk yet"
    for usable, may_clients, may_groups in ((1000, True, True), (999, False, True), (499, False, False)):
        volume.usable = usable
        await room.look()
        assert (clients.left >= 0, groups.left >= 0, room.is_short) == (may_clients, may_groups, not may_clients)


async def test_what_is_appended_between_two_looks_counts() -> None:
    room = room_of(Volume(usable=1010))
    await room.look()
    share = room.share(internal=False)
    share.left -= 10
    assert share.left >= 0
    share.left -= 1
    assert share.left < 0
    await room.look()
    assert share.left >= 0, "the disk knows better"


async def test_who_waits_is_told_once_there_is_room_and_whoever_finds_none_ends_that_look() -> None:
    volume = Volume(usable=0)
    asked: list[object] = []
    room = room_of(volume, on_waiting=asked.append)
    unlucky, other, gone = Waiter(room, lucky=2), Waiter(room), Waiter(room, has_stepped_down=True)
    for waiter in (unlucky, other, gone):
        room.lack(waiter)
    await room.look()
    assert (unlucky.told, other.told, gone.told) == (0, 0, 0)
    assert asked == [[unlucky, other]]
    volume.usable = GIB
    await room.look()
    assert (unlucky.told, other.told) == (1, 0), "a quota may be used up where the volume has room"
    assert room.share(internal=False).left < 0
    assert room.is_short
    await room.look()
    assert (unlucky.told, other.told, gone.told) == (2, 1, 0)
    assert not room.is_short


async def test_a_disk_that_does_not_say_refuses_nobody() -> None:
    def space() -> Space:
        raise OSError("planted")

    room = DiskRoom(space, lambda: 1000, lambda _: None, lambda _: None)
    with capture_logs() as told:
        await room.look()
        await room.look()
    assert room.share(internal=False).left > GIB
    assert room.usable == -1, "nobody knows"
    assert len(told) == 1


@dataclass(eq=False)
class Choosy(Waiter):
    """Waits for more than others do: what clients write, where what brokers write for groups has room."""

    def go_on(self) -> bool:
        self.told += 1
        return self.room.share(internal=False).left >= 0


async def test_who_needs_more_room_than_others_holds_none_of_them_up() -> None:
    room = room_of(Volume(usable=700))
    client, group = Choosy(room), Waiter(room)
    for waiter in (client, group):
        room.lack(waiter)
    await room.look()
    assert (client.told, group.told) == (1, 1)
    await room.look()
    assert (client.told, group.told) == (2, 1)


async def test_a_quota_that_is_used_up_is_told_for_as_long_as_it_is_met() -> None:
    """The volume says that it has room, and each look lets somebody try."""
    room = room_of(Volume(usable=GIB))
    waiter = Waiter(room)
    await room.look()
    with capture_logs() as told:
        for _ in range(5):
            room.lack(waiter, is_full=True)
            assert room.is_short
            assert [state.kind for state in states_of_disk(room)] == ["disk full"]
            await room.look()
        assert [each["log_level"] for each in told] == ["error"]
        await room.look()
        assert not room.is_short
        assert [each["log_level"] for each in told] == ["error", "info"]
    assert states_of_disk(room) == []


def test_a_log_that_finds_no_room_for_its_recovery_is_opened_once_there_is_some() -> None:
    disk, twin, _ = written()
    expected = twin.bytes_from(0)
    disk.power_cut()
    disk.full = True
    with pytest.raises(NoRoom):
        open_log(disk)
    disk.full = False
    assert expected.startswith(read_all(open_log(disk)))


async def test_others_lead_only_where_they_have_room(tmp_path: Path) -> None:
    """Else leadership would go round, and the ISR shrink to one, for nothing."""
    async with asyncio.timeout(150), replicating(tmp_path, {**BY_HAND}) as world:
        await world.make("t")
        leader = world.leader("t")
        others = [broker for broker in world.cluster.brokers if broker != leader]
        await tell(world, others, is_full=True)
        await leave(world, leader)
        assert (world.leader("t"), len(isr(world))) == (leader, 3)
        await tell(world, others[:1], is_full=False)
        await leave(world, leader)
        assert world.leader("t") != leader
        assert leader not in isr(world)


def isr(world: World) -> tuple[BrokerId, ...]:
    return world.image("t").isr


def registered(world: World, broker: int) -> BrokerImage:
    return world.cluster.controller.metadata.image.brokers[BrokerId(broker)]


async def tell(world: World, brokers: list[int], *, is_full: bool) -> None:
    """The controller, as their heartbeats would."""
    for broker in brokers:
        epoch = registered(world, broker).epoch
        beat = Heartbeat(broker_id=BrokerId(broker), broker_epoch=epoch, ready=True, is_full=is_full)
        assert await world.cluster.controller.cluster.controller.answer(beat) is True


async def leave(world: World, broker: int) -> None:
    known = registered(world, broker)
    ask = LeaveIsr(broker_id=known.id, broker_epoch=known.epoch, partitions=(world.key("t", 0),), for_room=True)
    assert await world.cluster.controller.cluster.controller.answer(ask) is None
    await world.carried_out()
