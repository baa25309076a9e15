"""Between hosts: cuts, lost power and slow roads, and processes that stand still; TCP's promises hold through all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.links import PATIENCE_SECONDS_MAX, PATIENCE_SECONDS_MIN
from headrace.sim.loop import VirtualLoop
from headrace.sim.network import CONNECT_SECONDS_MAX
from headrace.sim.process import Process
from tests.tiers import examples

SERVER, CLIENT = "10.0.0.1", "10.0.0.2"
THERE, BACK = (CLIENT, SERVER), (SERVER, CLIENT)
PORT = 9092


class End(asyncio.Protocol):
    """Notes what comes."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)


class Net:
    """Two hosts with a process each."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop(random.Random(seed))
        self.server = Process("server", SERVER)
        self.client = Process("client", CLIENT)
        self.accepted: list[End] = []

    @property
    def links(self) -> Any:
        return self.loop.network.links

    async def listen(self) -> None:
        def accept() -> End:
            self.accepted.append(End())
            return self.accepted[-1]

        async def serve() -> None:
            await self.loop.create_server(accept, SERVER, PORT)

        await self.loop.spawn(self.server, serve())

    async def connect(self) -> End:
        async def connect() -> End:
            _, end = await self.loop.create_connection(End, SERVER, PORT)
            assert isinstance(end, End)
            return end

        return await self.loop.spawn(self.client, connect())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(asyncio.wait_for(work, 3600))
        self.loop.close()
        assert self.loop.failures == []


@given(st.integers(0, 2**32), st.lists(st.binary(min_size=1, max_size=90_000), max_size=6))
@settings(max_examples=examples(40), deadline=None)
def test_bytes_arrive_in_order_and_once_through_cuts_slow_roads_and_pauses(seed: int, writes: list[bytes]) -> None:
    net, chance = Net(seed), random.Random(seed)

    async def trouble() -> None:
        for _ in range(12):
            net.links.set_cut([link for link in (THERE, BACK) if chance.random() < 0.4])
            net.links.set_slow({THERE: 1 + 40 * chance.random()})
            for process in (net.server, net.client):
                (net.loop.pause if chance.random() < 0.3 else net.loop.resume)(process)
            await asyncio.sleep(chance.random() * PATIENCE_SECONDS_MIN / 15)
        net.links.set_cut([])
        net.loop.resume(net.server)
        net.loop.resume(net.client)

    async def main() -> None:
        await net.listen()
        end = await net.connect()
        troubled = asyncio.get_running_loop().create_task(trouble())
        for data in writes:
            end.transport.write(data)
            await asyncio.sleep(chance.random() / 20)
        await troubled
        end.transport.close()
        await net.accepted[0].lost
        assert net.accepted[0].received == b"".join(writes)

    net.run(main())


def test_into_a_long_cut_the_sender_gives_up_and_the_other_hears_of_it_once_it_sends() -> None:
    net = Net()

    async def main() -> None:
        await net.listen()
        end = await net.connect()
        net.links.set_cut([THERE, BACK])
        end.transport.write(b"lost")
        assert isinstance(await end.lost, TimeoutError)
        [other] = net.accepted
        net.links.set_cut([])
        await asyncio.sleep(PATIENCE_SECONDS_MAX)
        assert not other.lost.done()
        assert not other.received
        other.transport.write(b"are you there?")
        assert isinstance(await other.lost, ConnectionResetError)

    net.run(main())


def test_one_way_what_is_not_acknowledged_ends_the_connection_though_it_arrives() -> None:
    net = Net()

    async def main() -> None:
        await net.listen()
        end = await net.connect()
        net.links.set_cut([BACK])
        end.transport.write(b"comes")
        assert isinstance(await end.lost, TimeoutError)
        assert net.accepted[0].received == b"comes"

    net.run(main())


@pytest.mark.parametrize("cut", [[THERE], [BACK], [THERE, BACK]])
def test_to_connect_into_a_cut_waits_for_its_end_and_not_for_ever(cut: list[tuple[str, str]]) -> None:
    net = Net()

    async def main() -> None:
        await net.listen()
        net.links.set_cut(cut)
        began = net.loop.time()
        with pytest.raises(TimeoutError):
            await net.connect()
        assert net.loop.time() - began >= CONNECT_SECONDS_MAX
        knocking = net.loop.create_task(net.connect())
        await asyncio.sleep(1)
        assert not knocking.done()
        net.links.set_cut([])
        await knocking

    net.run(main())


def test_nobody_hears_of_lost_power_until_somebody_asks_after_it_came_back() -> None:
    net = Net()

    async def main() -> None:
        await net.listen()
        end = await net.connect()
        net.loop.network.power_off(SERVER)
        net.loop.kill(net.server)
        await asyncio.sleep(100)
        assert not end.lost.done()
        with pytest.raises(TimeoutError):
            await net.connect()
        net.loop.network.power_on(SERVER)
        with pytest.raises(ConnectionRefusedError):
            await net.connect()
        end.transport.write(b"are you there?")
        assert isinstance(await end.lost, ConnectionResetError)

    net.run(main())


def test_a_goodbye_that_was_lost_with_the_power_is_made_up_for_when_somebody_asks() -> None:
    net = Net()

    async def main() -> None:
        await net.listen()
        end = await net.connect()
        net.links.set_cut([BACK])
        net.accepted[0].transport.close()
        await asyncio.sleep(0.1)
        net.loop.network.power_off(SERVER)
        net.loop.kill(net.server)
        net.links.set_cut([])
        net.loop.network.power_on(SERVER)
        await asyncio.sleep(1)
        assert not end.lost.done()
        end.transport.write(b"are you there?")
        assert isinstance(await end.lost, ConnectionResetError)

    net.run(main())


def test_a_killed_process_is_heard_of_at_once_and_refuses_connections() -> None:
    net = Net()

    async def main() -> None:
        await net.listen()
        end = await net.connect()
        net.loop.kill(net.server)
        assert isinstance(await end.lost, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await net.connect()

    net.run(main())


def test_a_paused_process_stands_still_and_then_does_all_in_order() -> None:
    net = Net()
    done: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(5, done.append, "late")
        asyncio.get_running_loop().call_later(2, done.append, "middle")
        asyncio.get_running_loop().call_later(30, done.append, "last")
        for _ in range(3):
            await asyncio.sleep(1)
            done.append("tick")

    async def main() -> None:
        net.loop.spawn(net.client, work())
        await asyncio.sleep(1.5)
        net.loop.pause(net.client)
        await asyncio.sleep(10)
        assert done == ["tick"]
        net.loop.resume(net.client)
        await asyncio.sleep(0)
        assert done == ["tick", "middle", "late"]
        await asyncio.sleep(100)
        assert done == ["tick", "middle", "late", "tick", "tick", "last"]

    net.run(main())


def test_a_paused_process_can_be_killed() -> None:
    net = Net()
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            done.append("woke")
        finally:
            done.append("unwound")

    async def main() -> None:
        net.loop.spawn(net.client, work())
        await asyncio.sleep(0.5)
        net.loop.pause(net.client)
        await asyncio.sleep(5)
        net.loop.kill(net.client)
        net.loop.resume(net.client)
        await asyncio.sleep(5)
        assert "woke" not in done

    net.run(main())
