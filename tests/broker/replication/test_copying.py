"""Each side of copying beside one that is made by hand. They are the leader's view of a follower, and the batches that
a follower takes from a leader."""

from __future__ import annotations

import asyncio
import math
import struct
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from structlog.testing import capture_logs

from headrace.base.addresses import Address
from headrace.base.errors import NoRoom
from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, LeaderEpoch, Offset, TopicId, TopicPartition
from headrace.base.limits import REPLICA_ANSWER_BYTES_MAX, REPLICA_BULK_BYTES_MIN, REPLICA_UNFLUSHED_BYTES_MAX
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication import copying as copying_module
from headrace.broker.replication.copying import Source
from headrace.broker.replication.sources import Me
from headrace.broker.replication.throttles import BrokerThrottle
from headrace.broker.system import SystemClock
from headrace.metadata.throttled import ThrottledReplicas
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.replicas.reassignments import reassign
from headrace.net.peer.copylink import CopyLink, open_link
from headrace.storage.engine.reading import EpochEnd
from headrace.storage.log.segment import SegmentDamage
from headrace.wire.batches import PREFIX
from headrace.wire.errors import ErrorCode
from headrace.wire.replica_fetch import (
    Copied,
    Flushed,
    Placed,
    ReplicaFetch,
    Who,
    decode_answer,
    decode_request,
    decode_who,
    encode_answer,
    encode_request,
    encode_who,
)
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, delete_records, produce
from tests.broker.group_broker import until
from tests.broker.replicas import silence
from tests.broker.replication_world import World, decoded, replicating

NO_ERROR = ErrorCode.NONE
NEVER = LeaderEpoch(-1)


def run(directory: Path, work: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with replicating(directory, BY_HAND) as world:
            await work(world)

    loops.run(whole())


# a follower by hand


class Hand:
    """Speaks for a broker that copies nothing by itself any more."""

    def __init__(self, world: World, broker: int, leading: Partition) -> None:
        self._broker = broker
        self._address = world.cluster.address(leading.isr.leader.node)
        image = world.cluster.image(broker)
        self.key = leading.topic_partition
        self.who = Who(
            ClusterId(image.cluster_id),
            BrokerId(broker),
            image.brokers[BrokerId(broker)].epoch,
            leading.isr.leader.node,
        )
        self.says = ReplicaFetch(True, REPLICA_ANSWER_BYTES_MAX)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def placed(self, generation: int, epoch: int, end: int, *, last_epoch: int = 0, flushed: int = 0) -> Placed:
        place = (LeaderEpoch(epoch), Offset(end), LeaderEpoch(last_epoch), Offset(flushed), Offset(0))
        return Placed(self.key, generation, *place)

    def place(self, generation: int, epoch: int = 0, end: int = 0, *, last_epoch: int = -1, flushed: int = 0) -> None:
        """And want an answer."""
        placed = self.placed(generation, epoch, end, last_epoch=last_epoch, flushed=flushed)
        self.send(self.says._replace(placed=[placed]))

    def flushed(self, generation: int, end: int) -> None:
        """And want none."""
        self.send(self.says._replace(wants_answer=False, flushed=[Flushed(generation, Offset(end), Offset(0))]))

    def send(self, frame: ReplicaFetch, who: Who | None = None) -> None:
        self._writer.write(encode_request(encode_who(who or self.who), frame))

    async def answer(self) -> list[Copied]:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return decode_answer(memoryview(await self._reader.readexactly(size)))

    async def row(self) -> Copied:
        """The next of our partition; asks on where an answer says nothing of it."""
        while not (rows := await self.answer()):
            self.send(self.says)
        (row,) = rows
        return row

    async def heard(self) -> None:
        """All that was sent before has been."""
        self.send(self.says)
        self.send(self.says)  # at the latest this one has the first answered
        await self.answer()

    async def is_closed(self) -> bool:
        try:
            while await self._reader.read(1000):
                pass
        except ConnectionResetError:
            pass
        return True


@asynccontextmanager
async def by_hand(world: World, count: int = 0, *, moved: bool = False) -> AsyncIterator[tuple[Hand, Partition]]:
    """A topic of two replicas with so many records, flushed by both; its follower is the test from then on. `moved`:
    another broker has led it before, without a record."""
    await world.make("t", replicas=2)
    if moved:
        before = world.leader("t")
        await world.fence(before)
        await world.unfence(before)
        await world.in_sync("t", 2)
    leading = world.leading("t")
    assert leading is not None
    (follower,) = [each for each in leading.isr.leader.replicas if each != leading.isr.leader.node]
    for number in range(count):
        client = await world.client(leading.isr.leader.node)
        assert (await produce(client, "t", batch(b"%d" % number))).error_code == 0
    await world.cluster.brokers[follower].parts.replication.copying.stop()
    async with Hand(world, follower, leading) as hand:
        yield hand, leading


async def append(world: World, leading: Partition, *values: bytes) -> None:
    client = await world.client(leading.isr.leader.node)
    assert (await produce(client, "t", batch(*values), acks=1)).error_code == 0
    await until(lambda: leading.log.flushed_end == leading.log.log_end_offset)


def test_a_place_is_given_in_the_leaders_epoch_alone(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world, 2, moved=True) as (hand, leading):
            epoch = leading.leader_epoch
            assert epoch == 1
            await append(world, leading, b"more")
            for generation, (believed, error) in enumerate(
                [(epoch - 1, ErrorCode.FENCED_LEADER_EPOCH), (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
            ):
                hand.place(generation, believed, 3, last_epoch=epoch, flushed=3)
                row = await hand.row()
                assert (row.generation, row.error, len(row.records)) == (generation, error, 0)
                assert leading.high_watermark == 2, "what it says of itself counts for nothing"
            hand.place(9, epoch, 3, last_epoch=epoch, flushed=3)
            row = await hand.row()
            assert (row.generation, row.error, row.high_watermark) == (9, NO_ERROR, 3)

    run(tmp_path, work)


def test_who_is_no_replica_as_the_leader_knows_is_to_ask_again(tmp_path: Path) -> None:
    """It has learned of a reassignment before the leader. Its present reports would count for nothing. If nothing were
    appended, it would never send more."""

    async def work(world: World) -> None:
        await world.make("t", replicas=1)
        leading = world.leading("t")
        assert leading is not None
        follower = world.followers("t")[0]
        silence(world.cluster, follower)
        async with Hand(world, follower, leading) as hand:
            hand.place(1)
            assert (await hand.row()).error == ErrorCode.UNKNOWN_LEADER_EPOCH
            async with Client(world.cluster.bootstrap) as client:
                (asked,) = await reassign(client, "t", {0: (leading.isr.leader.node, follower)})
                assert asked.error is NO_ERROR
            await until(lambda: follower in leading.isr.leader.replicas)
            hand.place(2)
            assert (await hand.row()).error == NO_ERROR
            await world.in_sync("t", 2)

    run(tmp_path, work)


def test_what_is_flushed_counts_and_what_is_asked_for_does_not(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world) as (hand, leading):
            await append(world, leading, b"a")
            await append(world, leading, b"b")
            hand.place(1)
            row = await hand.row()
            assert decoded(row.records) == [(0, b"a"), (1, b"b")]
            hand.place(2, 0, 2, last_epoch=0, flushed=1)
            assert (await hand.row()).high_watermark == 1
            await hand.heard()
            assert leading.high_watermark == 1
            hand.flushed(2, 2)
            await hand.heard()
            assert leading.high_watermark == 2

    run(tmp_path, work)


def test_what_is_said_of_an_earlier_place_counts_for_nothing(tmp_path: Path) -> None:
    """It was cut since: what it had flushed then it may not have now."""

    async def work(world: World) -> None:
        async with by_hand(world) as (hand, leading):
            await append(world, leading, b"a")
            hand.place(1)
            await hand.row()
            hand.place(2)
            assert decoded((await hand.row()).records) == [(0, b"a")]
            hand.flushed(1, 1)
            await hand.heard()
            assert leading.high_watermark == 0
            hand.send(hand.says._replace(forgotten=[2]))
            hand.flushed(2, 1)
            await hand.heard()
            assert leading.high_watermark == 0

    run(tmp_path, work)


def test_what_is_appended_is_sent_once_and_in_order(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world, 1) as (hand, leading):
            hand.place(1)
            found = decoded((await hand.row()).records)
            for number in range(1, 20):
                hand.send(hand.says)
                await append(world, leading, b"%d" % number)
                while found[-1][0] < number:
                    found += decoded((await hand.row()).records)
                    if found[-1][0] < number:
                        hand.send(hand.says)
            assert found == [(number, b"%d" % number) for number in range(20)]

    run(tmp_path, work)


def test_an_answer_has_as_many_whole_batches_as_fit_and_at_least_one(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world) as (hand, leading):
            for _ in range(5):
                await append(world, leading, bytes(1000))
            small = hand.says._replace(bytes_max=2500)
            hand.send(small._replace(placed=[hand.placed(1, 0, 0, last_epoch=-1)]))
            ends: list[int] = []
            while not ends or ends[-1] < 5:
                ends.append(decoded((await hand.row()).records)[-1][0] + 1)
                hand.send(small._replace(bytes_max=10 if len(ends) == 1 else 2500))
            assert ends == [2, 3, 5]

    run(tmp_path, work)


@pytest.mark.parametrize("raised", [False, True])
def test_who_is_in_sync_is_not_held_back_by_the_throttle_of_before(tmp_path: Path, raised: bool) -> None:
    """Nor is anybody once the rate is raised: the debt of one batch may take days at the rate of before."""

    async def work(world: World) -> None:
        async with by_hand(world, 1) as (hand, leading):
            throttle = world.cluster.brokers[leading.isr.leader.node].parts.replication.throttles.leader
            throttle.set_rate(1)
            throttle.take(10**6)
            in_sync = leading.isr.leader
            leading.settings = replace(leading.settings, throttled_leaders=ThrottledReplicas(all=True))
            leading.isr.leader = in_sync._replace(isr=(in_sync.node,))
            hand.place(1)
            assert len((await hand.row()).records) == 0
            if raised:
                throttle.set_rate(10**9)
            else:
                leading.isr.leader = leading.isr.leader._replace(isr=in_sync.isr)
            hand.send(hand.says)
            await append(world, leading, b"a")
            row = await asyncio.wait_for(hand.row(), 60)
            assert decoded(row.records) == [(0, b"0"), (1, b"a")]

    run(tmp_path, work)


def test_who_diverges_is_told_where_and_gets_nothing(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world, 3) as (hand, leading):
            hand.place(1, 0, 5, last_epoch=0, flushed=5)
            row = await hand.row()
            assert (row.diverging_epoch, row.diverging_end, len(row.records)) == (0, 3, 0)
            hand.place(2, 0, 2, last_epoch=7, flushed=2)
            assert (await hand.row()).diverging_epoch == -2, "an epoch that nobody gave out yet is none of ours"
            await hand.heard()
            assert leading.isr.leader.flushed_ends[hand.who.replica] == 3, "as it said before"

    run(tmp_path, work)


def test_who_wants_what_is_deleted_is_told_where_the_log_starts(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world, 4) as (hand, leading):
            (deleted,) = await delete_records(await world.client(leading.isr.leader.node), "t", [3])
            assert deleted.error_code == 0
            hand.place(1, 0, 2, last_epoch=0, flushed=2)
            row = await hand.row()
            assert (row.error, row.log_start, len(row.records)) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3, 0)

    run(tmp_path, work)


def test_who_has_all_that_is_deleted_since_and_nothing_else_goes_on(tmp_path: Path) -> None:
    """In an epoch in which nothing was written yet: it is in sync, and knows producers that a new copy would not."""

    async def work(world: World) -> None:
        await world.make("t", replicas=2)
        before = world.leader("t")
        for number in range(3):
            assert (await produce(await world.client(before), "t", batch(b"%d" % number))).error_code == 0
        await world.until_end("t", 3, *world.image("t").replicas)
        await world.fence(before)
        await world.unfence(before)
        await world.in_sync("t", 2)
        await world.cluster.brokers[before].parts.replication.copying.stop()
        leading = world.leading("t")
        assert leading is not None
        (deleted,) = await delete_records(await world.client(leading.isr.leader.node), "t", [3])
        assert deleted.error_code == 0
        assert leading.log.epoch_at(Offset(3)) == leading.leader_epoch > 0
        async with Hand(world, before, leading) as hand:
            hand.place(1, leading.leader_epoch, 3, last_epoch=0, flushed=3)
            row = await hand.row()
            assert (row.error, row.diverging_epoch, row.log_start) == (NO_ERROR, -1, 3)

    run(tmp_path, work)


def test_the_end_of_an_epoch_is_told(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world) as (hand, leading):
            hand.place(4)
            assert (await hand.row()).error == NO_ERROR
            hand.send(hand.says)
            await world.fence(leading.isr.leader.node)
            row = await hand.row()
            assert (row.generation, row.error) == (4, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    run(tmp_path, work)


@pytest.mark.parametrize("how", ["cluster", "leader", "process", "itself", "stranger", "flushed"])
def test_who_is_not_who_it_should_be_is_closed(tmp_path: Path, how: str) -> None:
    async def work(world: World) -> None:
        async with by_hand(world, 1) as (hand, leading):
            says, who = hand.says, hand.who
            wrong = {
                "cluster": (says, who._replace(cluster_id=ClusterId("x" * 22))),
                "leader": (says, who._replace(leader=who.replica)),
                "process": (says, who._replace(broker_epoch=BrokerEpoch(who.broker_epoch - 1))),
                "itself": (says, who._replace(replica=who.leader)),
                "stranger": (says, who._replace(replica=BrokerId(99))),
                "flushed": (says._replace(flushed=[Flushed(1, Offset(99), Offset(0))]), who),
            }[how]
            hand.place(1, 0, 1, last_epoch=0, flushed=1)
            await hand.row()
            hand.send(*wrong)
            assert await hand.is_closed()
            assert leading.high_watermark == 1

    run(tmp_path, work)


def test_one_number_for_two_places_closes_the_connection(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world) as (hand, leading):
            await world.make("other", partitions=6, replicas=1)
            keys = [world.key("other", index) for index in range(6)]
            image = world.cluster.image(leading.isr.leader.node)
            (other, *_) = (key for key in keys if (at := image.partition(key)) and at.leader == leading.isr.leader.node)
            hand.place(1)
            hand.send(hand.says._replace(placed=[hand.placed(1, 0, 0, last_epoch=-1)._replace(key=other)]))
            assert await hand.is_closed()

    run(tmp_path, work)


def test_who_makes_refusals_and_wants_no_answer_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.replication.followers.REPLICA_TOLD_MAX", 3)

    async def work(world: World) -> None:
        async with by_hand(world) as (hand, _):
            made_up = [TopicPartition(TopicId(uuid.UUID(int=number)), hand.key.partition) for number in range(4)]
            places = [hand.placed(at, 0, 0, last_epoch=-1)._replace(key=key) for at, key in enumerate(made_up)]
            hand.send(hand.says._replace(wants_answer=False, placed=places[:3]))
            hand.send(hand.says)
            assert len(await hand.answer()) == 3
            hand.send(hand.says._replace(wants_answer=False, placed=places))
            assert await hand.is_closed()

    run(tmp_path, work)


def test_a_newer_connection_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with by_hand(world) as (old, leading), Hand(world, old.who.replica, leading) as new:
            await append(world, leading, b"a")
            old.place(1)
            await old.row()
            new.place(1)
            await new.row()
            old.flushed(1, 1)
            assert await old.is_closed()
            assert leading.high_watermark == 0
            new.flushed(1, 1)
            await new.heard()
            assert leading.high_watermark == 1

    run(tmp_path, work)


# a leader by hand


class Led(asyncio.Protocol):
    """A leader that answers when the test does; one connection after the other."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[ReplicaFetch] = asyncio.Queue()
        self.transport: asyncio.Transport
        self.connections = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # uvloop's
        self.connections += 1
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := struct.unpack_from(">i", self._data)[0]):
            frame = memoryview(self._data[4 : 4 + size])
            _, begins = decode_who(frame)
            self.frames.put_nowait(decode_request(frame, len(begins)))
            self._data = self._data[4 + size :]

    def tell(self, *rows: Copied) -> None:
        self.transport.writelines([bytes(buffer) for buffer in encode_answer(rows)])

    async def placed(self) -> Placed:
        """The next place that is asked for."""
        while True:
            frame = await self.frames.get()
            if frame.placed:
                return frame.placed[0]

    async def flushed(self) -> Flushed:
        while True:
            frame = await self.frames.get()
            if frame.flushed:
                return frame.flushed[0]


class Copier(NamedTuple):
    """A broker's own follower, and the leader by hand that it copies from."""

    copy: FollowerPartition
    led: Led
    source: Source
    dead: list[BrokerId]
    server: asyncio.Server

    def copy_again(self) -> None:
        """As `Feeding.copy` does."""
        self.source.drop(self.copy.topic_partition)
        self.source.add(self.copy)

    def row(self, generation: int, records: bytes = b"", *, error: int = 0, high: int = 0, start: int = 0) -> Copied:
        return Copied(
            generation,
            error,
            Offset(high),
            Offset(start),
            NEVER,
            Offset(-1),
            Offset(0),
            Offset(-1),
            None,
            records,
        )


@asynccontextmanager
async def copying(world: World, rate: float = math.inf) -> AsyncIterator[Copier]:
    await world.make("t", replicas=2)
    leading = world.leading("t")
    assert leading is not None
    (follower,) = [each for each in leading.isr.leader.replicas if each != leading.isr.leader.node]
    parts = world.cluster.brokers[follower].parts
    await parts.replication.copying.stop()
    led = Led()
    server = await asyncio.get_running_loop().create_server(lambda: led, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname())
    bugs: list[BaseException] = []
    throttle = BrokerThrottle(SystemClock(), rate)
    dead: list[BrokerId] = []
    me = Me(
        cluster_id=ClusterId(world.cluster.image(follower).cluster_id),
        node=follower,
        broker_epoch=lambda: BrokerEpoch(7),
        address_of=lambda _: address,
        throttle=throttle,
        on_dead=dead.append,
        on_bug=bugs.append,
    )
    source = Source(me, leading.isr.leader.node)
    copy = world.copy(follower, "t")
    source.add(copy)
    try:
        yield Copier(copy, led, source, dead, server)
    finally:
        await source.stop()
        server.close()
        await server.wait_closed()
        assert bugs == []


def as_led(base: int, *values: bytes, epoch: int = 0) -> bytes:
    """As it stands in the leader's log."""
    raw = batch(*values)
    return PREFIX.pack(base, len(raw) - 12, epoch) + raw[PREFIX.size :]


def test_a_leader_whose_connection_broke_and_that_refuses_another_is_told_of_as_dead_once(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            await copier.led.placed()
            copier.led.transport.abort()
            await copier.led.placed()
            assert copier.dead == [], "it was there again at once"
            copier.server.close()
            copier.led.transport.abort()
            await until(lambda: copier.source._failures >= 3)
            assert copier.dead == [copier.copy.leader]

    run(tmp_path, work)


def test_another_connection_takes_the_place_of_one_whose_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one serves until then (KIP-368)."""
    opened: list[CopyLink] = []

    async def short(*about: Any, **named: Any) -> CopyLink:
        link = await open_link(*about, **named)
        link.lasts_s = 0.001 if len(opened) < 2 else 0.0
        opened.append(link)
        return link

    async def work(world: World) -> None:
        async with copying(world) as copier:
            await copier.led.placed()
            monkeypatch.setattr(copying_module, "open_link", short)
            with capture_logs() as logs:
                copier.led.transport.abort()
                for _ in range(3):
                    generation = (await copier.led.placed()).generation
                await until(lambda: len(opened) == 3 and opened[1].is_over)
                copier.led.tell(copier.row(generation, as_led(0, b"a"), high=1))
                assert (await copier.led.flushed()).generation == generation
            assert [each.is_over for each in opened] == [True, True, False]
            assert [line["event"] for line in logs] == ["a leader cannot be copied from; tried again"], "the first"
            assert copier.dead == []

    run(tmp_path, work)


def test_a_connection_serves_on_where_none_can_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []

    async def refused(*_: Any, **__: Any) -> CopyLink:
        failed.append("refused")
        raise ConnectionRefusedError

    async def lost_at_once(*about: Any, **named: Any) -> CopyLink:
        failed.append("lost")
        link = await open_link(*about, **named)
        link.connection_lost(None)
        return link

    def has(wanted: list[str]) -> bool:
        return failed[-2:] == wanted

    async def work(world: World) -> None:
        async with copying(world) as copier:
            generation = (await copier.led.placed()).generation
            for twice, opens in ((["refused"] * 2, refused), (["lost"] * 2, lost_at_once)):
                monkeypatch.setattr(copying_module, "open_link", opens)
                first = copier.led.transport
                copier.source._open_soon()
                await until(partial(has, twice))
                assert copier.dead == []
                assert copier.source._link is not None
                assert not copier.source._link.is_over
                first.writelines([bytes(each) for each in encode_answer([copier.row(generation, high=0)])])
                frame = await copier.led.frames.get()
                assert frame.wants_answer

    run(tmp_path, work)


def test_a_copy_that_is_cut_while_another_comes_to_lead_follows_that_one_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    cut = FollowerPartition.cut

    def held(self: FollowerPartition, offset: Offset) -> None:
        begun.set()
        assert go_on.wait(60)
        cut(self, offset)

    async def work(world: World) -> None:
        await world.make("t")
        leader, (next_one, slow) = world.leader("t"), world.followers("t")
        assert (await produce(await world.client(leader), "t", batch(b"a"))).error_code == 0
        copy = world.copy(slow, "t")
        source = world.cluster.brokers[slow].parts.replication.copying._sources[BrokerId(leader)]
        monkeypatch.setattr(FollowerPartition, "cut", held)
        source._work(copy, source._cut(copy, EpochEnd(LeaderEpoch(0), Offset(1))))
        assert await asyncio.to_thread(begun.wait, 60)
        await world.fence(leader)
        assert (world.leader("t"), copy.leader) == (next_one, next_one)
        go_on.set()
        assert (await produce(await world.client(next_one), "t", batch(b"b"), acks=1)).error_code == 0
        await until(lambda: copy.log.flushed_end == 2)

    run(tmp_path, work)


def test_who_comes_to_follow_while_its_broker_stops_copies_nothing(tmp_path: Path) -> None:
    """Its log is about to be closed, and what a leader wants cut would be cut meanwhile (found by the simulator)."""

    async def work(world: World) -> None:
        await world.make("t")
        follower = world.followers("t")[0]
        copying = world.cluster.brokers[follower].parts.replication.copying
        await copying.stop()
        copying.copy(world.copy(follower, "t"))
        assert not any(source._copies for source in copying._sources.values())

    run(tmp_path, work)


def test_a_copy_that_comes_to_be_in_sync_does_not_wait_for_its_throttle_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: World) -> None:
        async with copying(world, rate=1) as copier:
            copy, led, source = copier.copy, copier.led, copier.source
            parts = world.cluster.brokers[source._me.node].parts
            image = world.image("t")
            copy.settings = replace(copy.settings, throttled_followers=ThrottledReplicas(all=True))
            copy.is_in_sync = False
            monkeypatch.setattr(parts.replication.copying, "copy", lambda _: copier.copy_again())
            led.tell(copier.row((await led.placed()).generation, as_led(0, b"a")))
            await until(lambda: copy.topic_partition in source._timers)
            parts.logs.assignments._roles._follow_on(copy, image)
            assert (await asyncio.wait_for(led.placed(), 60)).log_end == 1

    run(tmp_path, work)


def test_what_a_leader_wants_cut_is_not_once_the_copy_is_placed_in_a_later_epoch(tmp_path: Path) -> None:
    """Its next leader may have that, and is told that it is flushed here."""

    async def work(world: World) -> None:
        async with copying(world) as copier:
            copy, led, source = copier.copy, copier.led, copier.source
            generation = (await led.placed()).generation
            led.tell(copier.row(generation, as_led(0, b"a")))
            await led.flushed()
            (placed_as,) = source._placed_as
            diverging = copier.row(placed_as)._replace(diverging_epoch=LeaderEpoch(0), diverging_end=Offset(0))
            source._on_row(copy, diverging)  # and in the same turn of the loop
            copy.follow(copy.leader, LeaderEpoch(1))
            copier.copy_again()
            placed = await led.placed()
            await until(lambda: not source._cutting)
            assert (placed.leader_epoch, placed.flushed_end) == (1, 1)
            assert copy.log.flushed_end == 1

    run(tmp_path, work)


def test_a_copy_that_is_not_to_be_changed_any_more_when_its_turn_comes_is_copied_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would feed it before another epoch begins."""

    async def work(world: World) -> None:
        async with copying(world) as copier:
            copy, led = copier.copy, copier.led
            led.tell(copier.row((await led.placed()).generation, as_led(0, b"a")))
            await led.flushed()
            answers = [True, False]
            monkeypatch.setattr(copy.events, "is_to_begin_again", lambda _: bool(answers) and answers.pop(0))
            copier.copy_again()
            placed = await asyncio.wait_for(led.placed(), 60)
            assert (answers, placed.log_end, placed.flushed_end) == ([], 1, 1)
            led.tell(copier.row(placed.generation, as_led(1, b"b")))
            assert (await led.flushed()).flushed_end == 2
            assert copy.log.log_start_offset == 0

    run(tmp_path, work)


def test_of_two_changes_that_wait_for_a_copy_the_last_says_when_it_is_copied_again(tmp_path: Path) -> None:
    """Batches sent between them would be appended while the second has the log."""

    async def work(world: World) -> None:
        async with copying(world) as copier:
            copy, led, source = copier.copy, copier.led, copier.source
            led.tell(copier.row((await led.placed()).generation, as_led(0, b"a")))
            await led.flushed()
            seen = list[bool]()

            def is_wanted() -> bool:
                seen.append(bool(source._generations))
                return True

            source._work(copy, source._change(copy, lambda: False, lambda: None))
            source._work(copy, source._change(copy, is_wanted, lambda: None))
            placed = await asyncio.wait_for(led.placed(), 60)
            assert seen == [False, False]
            assert placed.log_end == 1

    run(tmp_path, work)


def test_damage_that_is_cut_off_keeps_nobody_from_copying(tmp_path: Path) -> None:
    """A place that says that it can be read from above its end is no place: the leader closes the connection."""

    async def work(world: World) -> None:
        async with copying(world) as copier:
            copy, led = copier.copy, copier.led
            generation = (await led.placed()).generation
            led.tell(copier.row(generation, as_led(0, b"a") + as_led(1, b"b")))
            assert (await led.flushed()).flushed_end == 2
            damage = SegmentDamage(segment=0, start=1, end=2, position=len(as_led(0, b"a")), resume=0, reason="planted")
            (segment,) = copy.log.contents.segments  # type: ignore[attr-defined]
            segment.damages = (damage,)
            copy.on_damage()
            assert (await led.flushed()).readable_from == 2
            led.tell(copier.row(generation)._replace(diverging_epoch=LeaderEpoch(-2)))
            await until(lambda: copy.log.log_end_offset == 0)
            assert copy.readable_from == 0
            placed = await led.placed()
            assert (placed.log_end, placed.readable_from) == (0, 0)
            led.tell(copier.row(placed.generation, as_led(0, b"c") + as_led(1, b"d")))
            assert (await led.flushed()).readable_from == 0

    run(tmp_path, work)


def test_what_comes_for_an_earlier_place_is_not_taken(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            copy, led = copier.copy, copier.led
            first = (await led.placed()).generation
            led.tell(copier.row(first, as_led(0, b"a")))
            assert (await led.flushed()).flushed_end == 1
            led.tell(copier.row(first)._replace(diverging_epoch=LeaderEpoch(0), diverging_end=Offset(0)))
            second = await led.placed()
            assert second.generation != first
            assert second.log_end == 0, "what the leader does not have is cut"
            led.tell(copier.row(first, as_led(0, b"old")), copier.row(second.generation, as_led(0, b"new")))
            told = await led.flushed()
            assert (told.generation, told.flushed_end) == (second.generation, 1)
            assert decoded(copy.log.read(Offset(0), 1000, Offset(1), at_least_one=True)) == [(0, b"new")]

    run(tmp_path, work)


def test_what_is_told_as_flushed_is(tmp_path: Path) -> None:
    """Answers are large here, so that the next is asked for while the disk is at work."""
    large = bytes(REPLICA_BULK_BYTES_MIN)

    async def work(world: World) -> None:
        async with copying(world) as copier:
            led = copier.led
            generation = (await led.placed()).generation
            broker = copier.source._me.node
            with world.held(broker):
                led.tell(copier.row(generation, as_led(0, large)))
                await until(lambda: copier.copy.log.log_end_offset == 1)
                asks = await led.frames.get()
                assert asks.wants_answer
                assert not asks.flushed
                led.tell(copier.row(generation, as_led(1, large)))
                assert not (await led.frames.get()).flushed
            told = [await led.flushed(), await led.flushed()]
            assert [each.flushed_end for each in told] == [1, 2], "the first flush began before the second append"
            assert all(each.generation == generation for each in told)

    run(tmp_path, work)


@pytest.mark.parametrize("what", ["garbage", "twice", "gap", "damaged"])
def test_what_cannot_be_is_not_appended_and_the_place_is_asked_for_again(tmp_path: Path, what: str) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            led = copier.led
            first = (await led.placed()).generation
            led.tell(copier.row(first, as_led(0, b"a", b"b")))
            await led.flushed()
            damaged = bytearray(as_led(2, b"c"))
            damaged[-1] ^= 1
            records = {"garbage": bytes(100), "twice": as_led(1, b"b"), "gap": b"", "damaged": bytes(damaged)}[what]
            if what == "gap":
                records = as_led(2, b"c")[:-1]
            await until(lambda: copier.source._link is not None and copier.source._link.awaited > 0)
            led.tell(copier.row(first, records))
            second = await led.placed()
            assert (second.log_end, second.flushed_end) == (2, 2)
            assert second.generation > first
            led.tell(copier.row(second.generation, as_led(2, b"c")))
            assert (await led.flushed()).flushed_end == 3

    run(tmp_path, work)


def test_a_leader_that_goes_is_looked_for_again_and_told_where_the_copy_is(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            led = copier.led
            led.tell(copier.row((await led.placed()).generation, as_led(0, b"a")))
            await led.flushed()
            led.transport.abort()
            again = await led.placed()
            assert (led.connections, again.log_end, again.last_epoch, again.flushed_end) == (2, 1, 0, 1)

    run(tmp_path, work)


def test_a_refused_place_is_asked_for_again(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            led = copier.led
            generations = []
            for _ in range(3):
                generations.append((await led.placed()).generation)
                led.tell(copier.row(generations[-1], error=ErrorCode.UNKNOWN_LEADER_EPOCH))
            assert generations == sorted(set(generations))

    run(tmp_path, work)


def test_who_has_too_much_to_flush_asks_for_no_more(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            led = copier.led
            generation = (await led.placed()).generation
            value = bytes(REPLICA_UNFLUSHED_BYTES_MAX // 4)
            with world.held(copier.source._me.node):
                for base in range(4):
                    led.tell(copier.row(generation, as_led(base, value)))
                    await until(lambda base=base: copier.copy.log.log_end_offset == base + 1)  # type: ignore[misc]
                    if base < 3:
                        assert (await led.frames.get()).wants_answer
                await world.turns()
                assert led.frames.empty()
            frame = await led.frames.get()
            while not frame.wants_answer:
                frame = await led.frames.get()
            assert copier.source._unflushed_bytes < REPLICA_UNFLUSHED_BYTES_MAX

    run(tmp_path, work)


def test_a_copy_that_has_no_room_for_what_came_keeps_no_other_from_being_copied(tmp_path: Path) -> None:
    """Else the other one would never find that there is no room, and stay in the ISR."""

    async def work(world: World) -> None:
        await world.make("u", partitions=3)
        async with copying(world) as copier:
            led, node, log = copier.led, copier.source._me.node, copier.copy.log
            generation = (await led.placed()).generation
            roles = [world.role(node, "u", index) for index in range(3)]
            other = next(role for role in roles if isinstance(role, FollowerPartition))
            copier.source.add(other)
            of_other = (await led.placed()).generation
            room = world.cluster.brokers[node].parts.logs.room
            room.stop()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "begin_flush", no_room)
                led.tell(copier.row(generation, as_led(0, b"v")))
                while not (await led.frames.get()).wants_answer:
                    pass
                led.tell(copier.row(of_other, as_led(0, b"w")))
                await until(lambda: other in room._waiting)
            await room.look()
            placed: set[TopicPartition] = set()
            while placed != {copier.copy.topic_partition, other.topic_partition}:
                placed |= {each.key for each in (await led.frames.get()).placed}
            await until(lambda: log.flushed_end == 1)

    run(tmp_path, work)


def no_room() -> None:
    raise NoRoom("planted")


def test_marks_of_the_leader_are_kept_within_what_the_log_has(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with copying(world) as copier:
            copy, led = copier.copy, copier.led
            generation = (await led.placed()).generation
            led.tell(copier.row(generation, as_led(0, b"a"), high=9))
            await led.flushed()
            assert copy.high_watermark == 1
            await until(lambda: copier.source._link is not None and copier.source._link.awaited > 0)
            led.tell(copier.row(generation, as_led(1, b"b"), high=2, start=1))
            await until(lambda: copy.log.log_start_offset == 1)
            assert copy.high_watermark == 2

    run(tmp_path, work)
