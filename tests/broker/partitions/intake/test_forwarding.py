"""Requests to a broker that leads a partition no longer, or not yet, because it is handed over: forwarded, kept,
refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.broker.partitions.intake import earlier, heirs
from headrace.broker.partitions.intake.forwarding import Forwarder
from headrace.broker.partitions.logs.opening import Opened, Wanted
from headrace.controller.asks.moves import FinishMove, SealMove
from headrace.net.client.connection import Connection, connect
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.produce import NodeEndpoint
from headrace.wire.records import Record
from tests import loops
from tests.broker.data_path import batch, produce, produce_request
from tests.broker.group_broker import RawClient, until
from tests.broker.moving import A, B, Held, Moving, moving

MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER
TOLD_FROM = 10
"""The version of Produce from which answers tell of leaders."""


def run(root: Path, work: Callable[[Moving], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with moving(root) as world:
            await world.make()
            for number in range(3):
                assert await world.write(A, b"%d" % number) == number
            await work(world)

    loops.run(whole())


def numbered(value: bytes, sequence: int) -> bytes:
    """One record of an idempotent producer."""
    record = Record(0, 1_700_000_000_000, None, value, ())
    return encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)


def of_another(value: bytes, sequence: int, epoch: int = 0) -> bytes:
    """A batch of a producer that is not known."""
    record = Record(0, 1_700_000_000_000, None, value, ())
    return encode_batch([record], producer_id=8, producer_epoch=epoch, base_sequence=sequence)


def sending(world: Moving, broker: int, records: bytes) -> asyncio.Task[Any]:
    """Over a connection of its own: the whole answer."""

    async def work() -> Any:
        async with RawClient(str(world.cluster.address(broker))) as client:
            return await client.ask(TOLD_FROM, produce_request("t", records))

    return asyncio.ensure_future(work())


def outcome(answer: Any) -> tuple[int, int]:
    (part,) = answer.responses[0].partition_responses
    return part.error_code, part.base_offset


def forwarder(world: Moving, broker: int) -> Forwarder:
    return world.cluster.brokers[broker].parts.forwarder


def kept(world: Moving, broker: int) -> int:
    """Batches that the broker keeps for whoever is to have them."""
    heirs = forwarder(world, broker)._heirs.values()
    return sum(len(heir._queue) for heir in heirs)


async def stopped(world: Moving, *waiting: bytes) -> tuple[Held, list[asyncio.Task[Any]]]:
    """The owner has stopped writing, and these batches wait there, in that order."""
    held = world.hold(A, SealMove)
    assert await world.ask(B) == 0
    await held.seen.wait()
    tasks = []
    for number, records in enumerate(waiting, 1):
        tasks.append(sending(world, A, records))
        await until(lambda number=number: len(world.leading(A).gate._waiting) == number)  # type: ignore[misc]
    return held, tasks


@asynccontextmanager
async def on_the_way(world: Moving) -> AsyncIterator[Way]:
    """Batches that A forwards to B pass through this."""
    way = Way(world.cluster.address(B))
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    forwarder(world, A).address_of = lambda _: Address(host, port)
    try:
        yield way
    finally:
        server.close()
        for task in way.tasks:
            task.cancel()


class Way:
    """Passes frames on; batches only once they are let go, or never, where it breaks."""

    def __init__(self, to: Address) -> None:
        self._to = to
        self.tasks: list[asyncio.Task[None]] = []
        self.seen = asyncio.Event()
        """A batch has come."""
        self.go = asyncio.Event()
        self.breaks = False
        self.connections = self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        back, forth = await asyncio.open_connection(self._to.host, self._to.port)
        self.tasks.append(asyncio.ensure_future(self._pass_back(back, writer)))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                if int.from_bytes(frame[:2], "big") == ApiKey.PRODUCE:
                    self.seen.set()
                    if self.breaks:
                        break
                    await self.go.wait()
                forth.write(size + frame)
        forth.close()
        writer.close()
        self.closed += 1

    async def _pass_back(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await back.read(1 << 16):
                writer.write(data)


def told(world: Moving, answer: Any) -> bool:
    """Whether an answer tells that B leads now, and where that is."""
    (part,) = answer.responses[0].partition_responses
    if part.current_leader.leader_id == -1:
        assert not answer.node_endpoints
        return False
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (B, world.known(A).leader_epoch)
    assert answer.node_endpoints == (NodeEndpoint(B, *world.cluster.address(B), None),)
    return True


@pytest.mark.parametrize("at_once", [False, True], ids=["in a quiet moment", "in time"])
def test_what_idempotent_producers_sent_meanwhile_is_carried_in_order_and_they_are_told_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if at_once:
        monkeypatch.setattr(heirs, "CARRIED_QUIETLY_MS", 0)

    async def work(world: Moving) -> None:
        held, tasks = await stopped(world, *(numbered(b"n%d" % at, at) for at in range(3)))
        held.let_go()
        answers = [await task for task in tasks]
        assert [outcome(answer) for answer in answers] == [(0, 3), (0, 4), (0, 5)]
        assert [told(world, answer) for answer in answers] == 3 * [at_once]
        assert {answer.responses[0].partition_responses[0].log_start_offset for answer in answers} == {0}
        await world.until_owned(B)
        last = await sending(world, A, numbered(b"n3", 3))
        assert outcome(last) == (0, 6)
        assert told(world, last), "it has nothing else in flight"
        assert await world.read(B, 3, 7) == [(3, b"n0"), (4, b"n1"), (5, b"n2"), (6, b"n3")]

    run(tmp_path, work)


def test_what_still_comes_to_the_old_owner_is_carried_too_and_never_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: Moving) -> None:
        await world.move(B)
        assert outcome(await sending(world, A, numbered(b"n0", 0))) == (0, 3)
        assert outcome(await sending(world, A, numbered(b"n0", 0))) == (0, 3), "the same once more"
        assert outcome(await sending(world, B, numbered(b"n0", 0))) == (0, 3), "and to the new owner itself"
        assert outcome(await sending(world, A, numbered(b"n2", 2))) == (MOVED, -1)
        monkeypatch.setattr(earlier, "CARRIED_UNTIL_MS_MAX", 0)
        world.leading(B).earlier.end_overtaking()
        assert outcome(await sending(world, A, numbered(b"n2", 2))) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        await forwarder(world, A).stop()
        assert outcome(await sending(world, A, numbered(b"n1", 1))) == (MOVED, -1)
        assert await world.write(B, b"next") == 4

    run(tmp_path, work)


def test_what_no_sequence_guards_is_refused_once_the_new_owner_may_write_and_no_sooner(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        held, (first,) = await stopped(world, batch(b"waits"))
        finishing = world.hold(B, FinishMove)
        held.let_go()
        await finishing.seen.wait()
        await world.until(A, lambda known: known.is_sealed)
        second = sending(world, A, batch(b"comes later"))
        await until(lambda: kept(world, A) == 2)
        assert not first.done()
        finishing.let_go()
        assert [outcome(await first), outcome(await second)] == [(MOVED, -1), (MOVED, -1)]
        assert not world.known(A).is_sealed
        assert await world.write(B, b"next") == 3
        assert outcome(await sending(world, A, batch(b"stale"))) == (MOVED, -1)

    run(tmp_path, work)


def test_what_comes_before_the_log_is_open_is_written_first(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        opener, opening = world.cluster.brokers[B].parts.logs.assignments._taking_up._opener, asyncio.Event()
        open_all = opener.open_all

        async def slow(wanted: Sequence[Wanted]) -> list[Opened | Exception]:
            await opening.wait()
            return await open_all(wanted)

        opener.open_all = slow  # type: ignore[method-assign]  # the real one follows
        finishing = world.hold(B, FinishMove)
        assert await world.ask(B) == 0
        await world.until(B, lambda known: known.is_sealed)
        early = world.writing(B, b"early")
        await until(lambda: kept(world, B) == 1)
        opening.set()
        await finishing.seen.wait()
        assert kept(world, B) == 0
        late = world.writing(B, b"late")
        await until(lambda: len(world.leading(B).gate._waiting) == 2)
        finishing.let_go()
        assert [(one.error_code, one.base_offset) for one in (await early, await late)] == [(0, 3), (0, 4)]
        await world.until_owned(B)

    run(tmp_path, work)


def test_who_has_more_in_flight_is_not_told_yet(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            await world.move(B)
            first = sending(world, A, numbered(b"n0", 0))
            await way.seen.wait()
            second = sending(world, A, numbered(b"n1", 1))
            (heir,) = forwarder(world, A)._heirs.values()
            await until(lambda: len(heir._asked) == 2)
            way.go.set()
            assert not told(world, await first)
            assert told(world, await second)

    run(tmp_path, work)


def test_what_was_carried_and_not_answered_is_told_as_perhaps_written(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            way.breaks = True
            held, (first,) = await stopped(world, numbered(b"n0", 0))
            held.let_go()
            assert outcome(await first) == (ErrorCode.REQUEST_TIMED_OUT, -1)
            await until(lambda: not forwarder(world, A)._heirs)
            await world.until_owned(B)
            assert outcome(await sending(world, A, numbered(b"n0", 0))) == (MOVED, -1)
            assert outcome(await sending(world, B, numbered(b"n0", 0))) == (0, 3)

    run(tmp_path, work)


def test_nothing_is_refused_while_what_came_before_it_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heirs, "CARRIED_QUIETLY_MS", 0)
    monkeypatch.setattr(heirs, "CARRIED_MS_MAX", 0)

    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            held, (first,) = await stopped(world, numbered(b"n0", 0))
            held.let_go()
            await way.seen.wait()
            second = sending(world, A, numbered(b"n1", 1))
            await until(lambda: kept(world, A) == 1)
            assert not first.done()
            way.go.set()
            assert outcome(await first) == (0, 3)
            assert outcome(await second) == (MOVED, -1)
            assert outcome(await sending(world, B, numbered(b"n1", 1))) == (0, 4)

    run(tmp_path, work)


@pytest.mark.parametrize("limit", ["PARKED_BATCHES_MAX", "PARKED_BATCHES_BYTES_MAX", "CARRIED_BYTES_MAX"])
def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    async def work(world: Moving) -> None:
        records = numbered(b"n0", 0)
        held, (first,) = await stopped(world, records)
        monkeypatch.setattr(heirs, limit, 1 if limit == "PARKED_BATCHES_MAX" else len(records))
        finishing = world.hold(B, FinishMove)
        held.let_go()
        await finishing.seen.wait()
        await world.until(A, lambda known: known.is_sealed)
        assert outcome(await sending(world, A, numbered(b"n1", 1))) == (MOVED, -1)
        finishing.let_go()
        assert outcome(await first) == (0, 3)
        await until(lambda: forwarder(world, A).waiting_bytes == 0)

    run(tmp_path, work)


def test_nobody_waits_longer_for_the_new_owner_than_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heirs, "CARRIED_WAIT_MS_MAX", 30)

    async def work(world: Moving) -> None:
        finishing = world.hold(B, FinishMove)
        held, (first,) = await stopped(world, numbered(b"n0", 0))
        held.let_go()
        assert outcome(await first) == (MOVED, -1)
        finishing.let_go()
        await world.until_owned(B)
        assert outcome(await sending(world, B, numbered(b"n0", 0))) == (0, 3)

    run(tmp_path, work)


def test_a_broker_that_was_the_owner_before_the_last_one_has_its_own_log_again(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        await world.move(B)
        assert outcome(await sending(world, A, numbered(b"n0", 0))) == (0, 3)
        await world.move(A)
        assert outcome(await sending(world, B, numbered(b"n1", 1))) == (0, 4)
        assert outcome(await sending(world, A, numbered(b"n2", 2))) == (0, 5)
        assert (await produce(await world.client(A), "t", batch(b"plain"))).base_offset == 6

    run(tmp_path, work)


def test_a_broker_that_nobody_can_reach_is_left_to_the_clients(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        forwarder(world, A).address_of = lambda _: None
        held, (first,) = await stopped(world, numbered(b"n0", 0))
        held.let_go()
        assert outcome(await first) == (MOVED, -1)
        await world.until_owned(B)
        assert world.known(A).leader == BrokerId(B)

    run(tmp_path, work)


# nothing is overtaken


def test_what_is_still_unpacked_is_not_overtaken(tmp_path: Path) -> None:
    async def whole() -> None:
        async with moving(tmp_path) as world:
            await world.make(compression_type="zstd")
            assert await world.write(A, b"0") == 0
            repacker = world.leading(A).line._repacker
            repack, go = repacker.repack, asyncio.Event()

            async def slow(records: Any, codec: Any, **rest: Any) -> Any:
                await go.wait()
                return await repack(records, codec, **rest)

            repacker.repack = slow  # type: ignore[assignment, method-assign]  # the real one follows
            first = sending(world, A, numbered(b"n0", 0))
            await until(lambda: not world.leading(A).line.is_empty)
            held = world.hold(A, SealMove)
            assert await world.ask(B) == 0
            await until(lambda: world.leading(A).gate.is_stopped)
            second = sending(world, A, numbered(b"n1", 1))
            await until(lambda: len(world.leading(A).line._places or ()) == 2)
            await until(lambda: world.leading(A).line._over is not None or held.seen.is_set())
            assert not held.seen.is_set(), "it waits for what is unpacked"
            held.let_go()
            go.set()
            assert [outcome(await first), outcome(await second)] == [(0, 1), (0, 2)]
            await world.until_owned(B)
            assert await world.read(B, 1, 3) == [(1, b"n0"), (2, b"n1")]

    loops.run(whole())


def test_what_was_carried_is_answered_though_the_partition_comes_back_and_who_has_overtaken_it_sends_again(
    tmp_path: Path,
) -> None:
    async def work(world: Moving) -> None:
        assert outcome(await sending(world, A, numbered(b"s", 0))) == (0, 3)
        await world.move(B)
        held = world.hold(B, SealMove)
        assert await world.ask(A) == 0
        await held.seen.wait()
        finishing = world.hold(A, FinishMove)
        carried = sending(world, A, numbered(b"x", 1))
        await until(lambda: len(world.leading(B).gate._waiting) == 1)
        held.let_go()
        await world.until(A, lambda known: known.is_sealed)
        direct = sending(world, A, numbered(b"d", 2))
        await finishing.seen.wait()
        await until(lambda: world.partitions(A).role(world.key) is not None and _gated(world, A) == 1)
        assert not carried.done()
        finishing.let_go()
        assert outcome(await direct) == (MOVED, -1)
        assert outcome(await carried) == (0, 4)
        await world.until_owned(A)
        assert outcome(await sending(world, A, numbered(b"d", 2))) == (0, 5)
        assert await world.read(A, 3, 6) == [(3, b"s"), (4, b"x"), (5, b"d")]

    run(tmp_path, work)


def _gated(world: Moving, broker: int) -> int:
    return len(world.leading(broker).gate._waiting)


def test_who_comes_by_another_way_sends_again_what_has_overtaken_carried_batches(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            held, (first, second) = await stopped(world, numbered(b"n0", 0), numbered(b"n1", 1))
            held.let_go()
            await way.seen.wait()
            await world.until_owned(B)
            assert outcome(await sending(world, B, numbered(b"n2", 2))) == (MOVED, -1), "nothing is known of it"
            assert outcome(await sending(world, B, of_another(b"o0", 0))) == (0, 3), "nothing can be before it"
            way.go.set()
            assert [outcome(await first), outcome(await second)] == [(0, 4), (0, 5)]
            assert outcome(await sending(world, B, numbered(b"n3", 3))) == (MOVED, -1), "it has written, and lacks one"
            assert outcome(await sending(world, B, of_another(b"o1", 1, epoch=1))) == (MOVED, -1)
            assert outcome(await sending(world, B, numbered(b"n2", 2))) == (0, 6)

    run(tmp_path, work)


def test_who_was_forgotten_long_ago_goes_on_once_nothing_is_carried_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: Moving) -> None:
        await world.move(B)
        assert outcome(await sending(world, B, of_another(b"o5", 5))) == (MOVED, -1)
        monkeypatch.setattr(earlier, "CARRIED_UNTIL_MS_MAX", 0)
        assert outcome(await sending(world, B, of_another(b"o5", 5))) == (0, 3)

    run(tmp_path, work)


@pytest.mark.parametrize("turns", range(4))
def test_what_is_carried_keeps_its_order_where_the_connection_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    made: list[Connection] = []

    async def connecting(*args: Any, **more: Any) -> Connection:
        made.append(await connect(*args, **more))
        return made[-1]

    monkeypatch.setattr(heirs, "connect", connecting)

    async def work(world: Moving) -> None:
        await world.move(B)
        assert outcome(await sending(world, A, numbered(b"n0", 0))) == (0, 3)
        (connection,) = made
        told: list[Any] = []
        connection.pause_writing()
        for sequence in (1, 2):
            assert forwarder(world, A).take(world.key, numbered(b"%d" % sequence, sequence), True, told.append)
        for _ in range(10):
            await asyncio.sleep(0)
        assert forwarder(world, A).take(world.key, numbered(b"3", 3), True, told.append)
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.resume_writing()
        await until(lambda: len(told) == 3)
        assert [getattr(each, "base_offset", each) for each in told] == [4, 5, 6]

    run(tmp_path, work)


def test_large_batches_are_carried_in_order(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            values = [bytes([at]) * 400_000 for at in range(8)]
            held, tasks = await stopped(world, *(numbered(value, at) for at, value in enumerate(values)))
            held.let_go()
            await way.seen.wait()
            way.go.set()
            assert [outcome(await task) for task in tasks] == [(0, 3 + at) for at in range(8)]

    run(tmp_path, work)


def test_who_was_refused_for_want_of_room_is_not_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: Moving) -> None:
        first, large, small = numbered(b"n0", 0), numbered(b"n1" * 200, 1), numbered(b"n2", 2)
        finishing = world.hold(B, FinishMove)
        held, (task,) = await stopped(world, first)
        monkeypatch.setattr(heirs, "PARKED_BATCHES_BYTES_MAX", 2 * len(first))
        held.let_go()
        await finishing.seen.wait()
        await world.until(A, lambda known: known.is_sealed)
        assert outcome(await sending(world, A, large)) == (MOVED, -1)
        assert outcome(await sending(world, A, small)) == (MOVED, -1)
        finishing.let_go()
        assert outcome(await task) == (0, 3)

    run(tmp_path, work)


def test_where_nothing_comes_nobody_connects(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            await world.move(B)
            await forwarder(world, A).stop()
            assert not way.connections

    run(tmp_path, work)


def test_what_is_carried_to_a_broker_that_is_gone_is_told_at_once(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        async with on_the_way(world) as way:
            await world.move(B)
            first = sending(world, A, numbered(b"n0", 0))
            await way.seen.wait()
            (heir,) = forwarder(world, A)._heirs.values()
            await until(lambda: len(heir._asked) == 1)
            await world.fence(B)
            assert outcome(await first) == (ErrorCode.REQUEST_TIMED_OUT, -1)
            assert not way.go.is_set()
            way.go.set()
            await until(lambda: way.connections == way.closed)

    run(tmp_path, work)
