"""A producer in the middle of a transaction sees a move as nothing, and readers of committed records neither."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.base.ids import Offset
from headrace.metadata.segment_keys import is_undecided
from headrace.replica.transactions import OpenTransactions
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests import loops
from tests.broker.durable.test_recovery_from_history import lose, recover, until_led
from tests.broker.group_broker import RawClient, until
from tests.broker.in_transactions import Transactions, by_aiokafka, by_librdkafka
from tests.broker.moving import A, B, C, Moving, moving
from tests.broker.transactions.test_wire import ID, Client

DEADLINE_S = 150.0
BY_SEAL = {"segment_bytes": "4096"}
BY_COPY = {"segment_bytes": "4096", "durable_enable": "false"}
ROADS = pytest.mark.parametrize("configs", [BY_SEAL, BY_COPY], ids=["by seal", "by copy"])
FEW = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}
PADDING = b"." * 3_000
"""Each record nearly fills a segment."""


def run(root: Path, work: Callable[[Moving], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), moving(root, configs=FEW) as world:
            await work(world)

    loops.run(whole())


async def hand_over(world: Moving, to: int, configs: dict[str, str]) -> None:
    await (world.place(to) if configs == BY_COPY else world.move(to))


def state_of(world: Moving, broker: int) -> list[Any]:
    """The producers that it knows, without times, which recoveries guess."""
    return [
        (
            each.producer_id,
            each.epoch,
            [batch[:4] for batch in each.batches],
            each.coordinator_epoch,
            each.transaction_start,
        )
        for each in sorted(world.leading(broker).producers.entries())
    ]


class Writer:
    """A transactional producer of librdkafka."""

    def __init__(self, world: Moving, transactional_id: str) -> None:
        servers = ",".join(str(world.cluster.address(broker)) for broker in world.cluster.brokers)
        self._made = Producer({"bootstrap.servers": servers, "transactional.id": transactional_id, "linger.ms": 0})

    async def begin(self) -> None:
        await asyncio.to_thread(self._made.init_transactions, DEADLINE_S)
        self._made.begin_transaction()

    async def write(self, value: bytes) -> None:
        self._made.produce("t", value + PADDING, partition=0)
        assert await asyncio.to_thread(self._made.flush, DEADLINE_S) == 0

    async def end(self, *, commit: bool) -> None:
        end = self._made.commit_transaction if commit else self._made.abort_transaction
        await asyncio.to_thread(end, DEADLINE_S)


async def nothing_is_read_behind_it(world: Moving, leader: int) -> None:
    """By readers of committed records, though history has more there."""
    client = await world.client(leader)
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = (ListOffsetsTopic(name="t", partitions=(asked,)),)
    latest = ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=topics)
    assert (await client.ask(5, latest)).topics[0].partitions[0].offset == 1
    for offset in range(world.leading(leader).log.log_end_offset + 1):
        for version in (4, 11):
            wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                isolation_level=1,
                session_epoch=-1,
                max_bytes=1 << 20,
                min_bytes=offset == 0,
                max_wait_ms=10_000,
                topics=(FetchTopic(topic="t", partitions=(wanted,)),),
            )
            (found,) = (await client.ask(version, request)).responses[0].partitions
            assert (found.error_code, found.last_stable_offset) == (0, 1)
            assert (len(found.records) > 0) == (offset == 0)
            assert found.aborted_transactions == ()


async def told_aborted(world: Moving, leader: int, offset: int) -> list[tuple[int, int]]:
    """Return the aborted transactions that a fetch of committed records lists: producers and first offsets."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        isolation_level=1,
        session_epoch=-1,
        max_bytes=1 << 20,
        min_bytes=1,
        max_wait_ms=10_000,
        topics=(FetchTopic(topic="t", partitions=(wanted,)),),
    )
    (found,) = (await (await world.client(leader)).ask(11, request)).responses[0].partitions
    assert found.error_code == 0
    assert found.records
    return [(each[0], each[1]) for each in found.aborted_transactions]


async def story(world: Moving, configs: dict[str, str]) -> list[bytes]:
    """Two transactions that are open in two moves, one of which is aborted. Returns what readers are to see."""
    await world.make(A, **configs)
    one, other = Writer(world, "one"), Writer(world, "other")
    await one.begin()
    await other.begin()
    await world.write(A, b"plain")
    await one.write(b"one-1")
    await other.write(b"other-1")
    for source, target in ((A, B), (B, C)):
        before = state_of(world, source)
        await hand_over(world, target, configs)
        assert state_of(world, target) == before
        assert world.leading(target).last_stable_offset == 1
        await nothing_is_read_behind_it(world, target)
        await one.write(b"one-%d" % target)
        await other.write(b"other-%d" % target)
    await other.end(commit=False)
    await until(lambda: world.leading(C).last_stable_offset == 1)  # the first is still open
    await one.end(commit=True)
    await until(lambda: world.leading(C).last_stable_offset == world.leading(C).log.log_end_offset == 9)
    return [b"plain", *(b"one-%d" % at + PADDING for at in (1, 2, 3))]


@ROADS
def test_a_transaction_goes_along_in_moves_and_ends_behind_them(configs: dict[str, str], tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        seen = await story(world, configs)
        if configs == BY_SEAL:
            assert [is_undecided(each.descriptor) for each in world.leading(C).history or ()][-1]
        address = str(world.cluster.address(C))
        assert await by_aiokafka(address, len(seen)) == seen
        assert await asyncio.to_thread(by_librdkafka, address, len(seen)) == seen
        await hand_over(world, A, configs)  # the markers are in history, too
        address = str(world.cluster.address(A))
        assert await by_aiokafka(address, len(seen)) == seen

    run(tmp_path, work)


@ROADS
@pytest.mark.parametrize("commit", [True, False])
def test_the_new_protocol_goes_along_too(configs: dict[str, str], commit: bool, tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with AsyncExitStack() as stack:
            await world.make(A, **configs)
            coordinator = await coordinator_of(world, stack)
            producer = await coordinator.init(version=5)
            leader = Client(await world.client(A))
            assert await leader.produce(producer, 0, version=12) == 0
            await hand_over(world, B, configs)
            leader = Client(await world.client(B))
            assert await leader.produce(producer, 0, version=12) == 0  # sent again: it is there
            assert await leader.produce(producer, 1, version=12) == 0
            assert world.leading(B).log.log_end_offset == 2
            ended = await coordinator.end(producer, commit=commit, version=5)
            assert (ended.error_code, ended.producer_epoch) == (0, producer.producer_epoch + 1)
            await until(lambda: world.leading(B).last_stable_offset == 3)
            aborted = world.leading(B).aborted.between(Offset(0), Offset(3))
            assert [each[:3] for each in aborted] == ([] if commit else [(producer.producer_id, 0, 2)])

    run(tmp_path, work)


async def coordinator_of(world: Moving, stack: AsyncExitStack) -> Client:
    """Once there is one."""
    while True:
        found = await (await world.client(A)).ask(2, FindCoordinatorRequest(key=ID, key_type=1))
        if found.error_code == 0:
            return Client(await stack.enter_async_context(RawClient(f"{found.host}:{found.port}")))
        await asyncio.sleep(0.01)


MOVES = 3
BETWEEN = 2
"""Transactions that end before the next move."""


class Going(Writer):
    """Writes transactions of two records, and aborts some, until it is told to stop."""

    def __init__(self, world: Moving) -> None:
        super().__init__(world, "going")
        self.ended = asyncio.Condition()
        self.count = 0
        self.seen: list[bytes] = []
        """The records of committed transactions."""
        self.is_over = False

    async def go(self) -> None:
        """Raises what the client does."""
        await self.begin()
        while True:
            values = [b"%d-%d" % (self.count, at) for at in range(2)]
            for value in values:
                await self.write(value)
            commit = self.count % 3 != 2
            await self.end(commit=commit)
            self.seen += [value + PADDING for value in values] if commit else []
            async with self.ended:
                self.count += 1
                self.ended.notify_all()
            if self.is_over:
                return
            self._made.begin_transaction()

    async def more(self) -> None:
        async with self.ended:
            wanted = self.count + BETWEEN
            await self.ended.wait_for(lambda: self.count >= wanted)


@ROADS
def test_a_producer_of_transactions_sees_no_error_in_any_of_many_moves(configs: dict[str, str], tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await world.make(A, **configs)
        going = Going(world)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(going.go())
            for number in range(MOVES):
                await going.more()
                await hand_over(world, (B, C, A)[number % 3], configs)
            await going.more()
            going.is_over = True
            await writing
        assert await by_aiokafka(str(world.cluster.address(A)), len(going.seen)) == going.seen

    run(tmp_path, work)


async def with_an_abort_behind_history(world: Moving) -> None:
    """On A: history ends in the middle of a transaction, whose abort marker is in the log alone."""
    await world.make(A, segment_bytes="14000", local_retention_bytes="0")
    transactions = Transactions(world.leading(A))
    transactions.write(1, b"aborted" + bytes(10_000))
    transactions.write(2, b"committed" + bytes(10_000))
    transactions.mark(1, committed=False)
    transactions.mark(2, committed=True)
    await until(lambda: (known := world.leading(A).history) is not None and known.next_offset == 1)


def test_a_copy_that_begins_behind_history_knows_the_transactions_there(tmp_path: Path) -> None:
    """It leads then, and its readers see nothing of the one that was aborted."""

    async def work(world: Moving) -> None:
        await with_an_abort_behind_history(world)
        await until(lambda: world.leading(A).log.log_start_offset == 1)
        await world.place(A, B)
        await world.place(B)
        leader = world.leading(B)
        assert (leader.log.log_start_offset, leader.start_offset, leader.last_stable_offset) == (1, 0, 4)
        assert await told_aborted(world, B, 0) == [(1, 0)]
        (seen,) = await by_aiokafka(str(world.cluster.address(B)), 1)
        assert seen.startswith(b"committed")

    run(tmp_path, work)


def test_readers_do_not_wait_for_markers_that_are_lost_with_a_log(tmp_path: Path) -> None:
    """Its owner is gone for good. History tells how the transaction ended."""

    async def work(world: Moving) -> None:
        await with_an_abort_behind_history(world)
        await lose(world, A)
        await recover(world, B)
        await until_led(world, B)
        await world.write(B, b"later")
        leader = world.leading(B)
        assert (leader.last_stable_offset, leader.log.log_end_offset) == (2, 2)
        assert await by_aiokafka(str(world.cluster.address(B)), 1) == [b"later"]

    run(tmp_path, work)


def test_state_that_is_lost_in_a_move_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted move takes no open transaction along."""
    monkeypatch.setattr(OpenTransactions, "put", lambda *_: None)

    async def work(world: Moving) -> None:
        with pytest.raises(AssertionError):
            await story(world, BY_SEAL)

    run(tmp_path, work)
