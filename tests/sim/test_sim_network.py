"""The simulated network: TCP's promises, and every liberty that TCP takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process
from tests.tiers import examples


def run(loop: VirtualLoop, coroutine: Coroutine[Any, Any, object]) -> None:
    loop.run_until_complete(asyncio.wait_for(coroutine, 3600))
    loop.workers.close()
    loop.close()
    assert loop.failures == []


@given(seed=st.integers(0, 2**32), writes=st.lists(st.binary(max_size=200_000), max_size=8))
@settings(max_examples=examples(40), deadline=None)
def test_bytes_arrive_in_order_once_and_unchanged(seed: int, writes: list[bytes]) -> None:
    loop = VirtualLoop(random.Random(seed))
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    async def main() -> None:
        await asyncio.start_server(serve, "127.0.0.1", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", 1)
        for data in writes:
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    run(loop, main())
    assert received == b"".join(writes)


class Recorder(asyncio.Protocol):
    """Notes every call, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received = 0
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.lost.set_result(exc)


class Pair:
    """A client's and a server's end of one connection."""

    def __init__(self, near: Recorder, far: Recorder) -> None:
        self.near = near
        self.far = far


async def connect(loop: VirtualLoop, process: Process | None = None) -> Pair:
    """Connect to a server of one process (None: the simulator's own)."""
    ends: list[Recorder] = []

    def accept() -> Recorder:
        ends.append(Recorder())
        return ends[-1]

    async def listen() -> None:
        await loop.create_server(accept, "127.0.0.1", 1)

    await (listen() if process is None else loop.spawn(process, listen()))
    _, near = await loop.create_connection(Recorder, "127.0.0.1", 1)
    await asyncio.sleep(1)
    return Pair(near, ends[0])


def test_a_slow_reader_stops_the_writer_and_lets_it_go_on() -> None:
    loop = VirtualLoop(random.Random(1))

    async def main() -> None:
        pair = await connect(loop)
        pair.far.transport.pause_reading()
        pair.near.transport.set_write_buffer_limits(high=100_000, low=10_000)
        pair.near.transport.write(bytes(1_000_000))
        await asyncio.sleep(10)
        assert pair.near.calls == ["made", "pause"]
        assert pair.near.transport.get_write_buffer_size() > 900_000 - 65_536
        assert pair.far.received == 0
        pair.far.transport.resume_reading()
        await asyncio.sleep(10)
        assert pair.near.calls == ["made", "pause", "resume"]
        assert pair.far.received == 1_000_000

    run(loop, main())


def test_close_sends_what_was_written_and_both_ends_hear_of_it() -> None:
    loop = VirtualLoop(random.Random(2))

    async def main() -> None:
        pair = await connect(loop)
        pair.near.transport.write(bytes(500_000))
        pair.near.transport.close()
        assert await pair.far.lost is None
        assert await pair.near.lost is None
        assert pair.far.received == 500_000

    run(loop, main())


def test_abort_and_reset_are_heard_once() -> None:
    loop = VirtualLoop(random.Random(3))

    async def main() -> None:
        pair = await connect(loop)
        pair.near.transport.abort()
        assert isinstance(await pair.far.lost, ConnectionResetError)
        assert pair.near.calls == pair.far.calls == ["made", "lost"]
        again, _ = await loop.create_connection(Recorder, "127.0.0.1", 1)
        loop.network.reset(again)
        await asyncio.sleep(1)
        assert again.is_closing()

    run(loop, main())


def test_nobody_listens_where_nobody_listens() -> None:
    loop = VirtualLoop(random.Random(4))

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "127.0.0.1", 1)
        first = await loop.create_server(Recorder, "127.0.0.1", 0)
        port = first.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match="taken"):
            await loop.create_server(Recorder, "127.0.0.1", port)
        first.close()
        await loop.create_server(Recorder, "127.0.0.1", port)

    run(loop, main())


def test_the_clients_of_a_killed_process_hear_of_it_and_its_port_is_free() -> None:
    loop = VirtualLoop(random.Random(5))
    process = Process("server")

    async def main() -> None:
        pair = await connect(loop, process)
        loop.kill(process)
        pair.far.transport.write(b"from the grave")
        assert isinstance(await pair.near.lost, ConnectionResetError)
        assert pair.far.calls == ["made"]
        assert pair.near.received == 0
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "127.0.0.1", 1)

    run(loop, main())
    assert not loop.network.transports


def test_connecting_while_the_server_dies_fails() -> None:
    outcomes = set()
    for seed in range(30):
        loop = VirtualLoop(random.Random(seed))
        process = Process("server")

        async def main(loop: VirtualLoop = loop, process: Process = process) -> None:
            async def listen() -> None:
                await loop.create_server(Recorder, "127.0.0.1", 1)

            await loop.spawn(process, listen())
            loop.call_later(0.000_7, loop.kill, process)
            try:
                await loop.create_connection(Recorder, "127.0.0.1", 1)
                outcomes.add("connected")
            except OSError as error:
                outcomes.add(type(error).__name__)
            await asyncio.sleep(1)

        run(loop, main())
    assert outcomes >= {"connected", "ConnectionResetError", "ConnectionRefusedError"}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None)
def test_who_is_shown_a_connection_hears_of_its_end_and_who_is_not_hears_nothing(seed: int) -> None:
    """The other end may have broken it before this one knew that it was made."""
    loop = VirtualLoop(random.Random(seed))

    class Rude(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

    async def main() -> None:
        await loop.create_server(Rude, "127.0.0.1", 1)
        made = Recorder()
        try:
            await loop.create_connection(lambda: made, "127.0.0.1", 1)
        except ConnectionResetError:
            await asyncio.sleep(1)
            assert made.calls == []
        else:
            await made.lost
            assert made.calls == ["made", "lost"]

    run(loop, main())
