"""The listener: answers in request order, bounded appetite, and a clean end. `serve` is scripted."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.base.errors import CorruptData
from headrace.base.limits import REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX, RESPONSE_QUEUE_BYTES_MAX
from headrace.net.server.listener import Answer, Connection, Later, Listener

BIG_BYTES = RESPONSE_QUEUE_BYTES_MAX // 2


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@dataclass
class Deferred:
    """A `Later` that the test resolves."""

    payload: bytes
    pipelined: bool
    future: asyncio.Future[None]

    def done(self) -> bool:
        return self.future.done()

    def cancel(self) -> bool:
        return self.future.cancel()

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self.future.add_done_callback(callback)

    def answer(self) -> Answer | None:
        return [framed(self.payload)]


@dataclass
class Prompt:
    """A `Later` that tells at once where it is answered or cancelled, inside of who does it."""

    payload: bytes
    connection: Connection
    pipelined: bool = False
    is_done: bool = False
    tell: Callable[[Any], object] | None = None

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> None:
        self.settle()

    def settle(self) -> None:
        self.is_done = True
        assert self.tell is not None
        self.tell(self)

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self.tell = callback

    def answer(self) -> Answer | None:
        return [framed(self.payload)]


@dataclass
class Script:
    """A scripted service. It answers these requests:
    - `now:x` is echoed at once, and `big:x` with half a queue behind it;
    - `later:x` and `mute:x` are answered when the test says so, and `none:x` never;
    - `throttle:x` is as `now:x`, and the connection is throttled for an hour;
    - `prompt:x` is as `mute:x`, in the same turn;
    - `bad:x` is malformed.
    """

    served: list[bytes] = field(default_factory=list)
    deferred: dict[bytes, Deferred] = field(default_factory=dict)
    prompt: list[Prompt] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def serve(self, frame: memoryview, connection: Connection) -> Answer | Later | None:
        payload = bytes(frame)
        self.served.append(payload)
        asyncio.get_running_loop().create_task(self._tell())
        kind = payload.split(b":")[0]
        if kind == b"bad":
            raise CorruptData("scripted")
        if kind == b"none":
            return None
        if kind == b"throttle":
            connection.throttle(3_600_000)
        if kind in (b"now", b"throttle"):
            return [framed(payload)]
        if kind == b"big":
            return [framed(payload + bytes(BIG_BYTES))]
        if kind == b"prompt":
            self.prompt.append(Prompt(payload, connection))
            return self.prompt[-1]
        later = Deferred(payload, kind == b"later", asyncio.get_running_loop().create_future())
        self.deferred[payload] = later
        return later

    async def _tell(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()

    async def until_served(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.served) >= count)


async def turns(count: int) -> None:
    """Of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Script, Listener, asyncio.StreamReader, asyncio.StreamWriter]]:
    script = Script()
    listener = Listener(script.serve)
    port = await listener.bind("127.0.0.1", 0)
    await listener.accept()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield script, listener, reader, writer
    finally:
        writer.close()
        await listener.stop(grace_s=0.1)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


async def test_answers_leave_in_request_order_whatever_is_ready_first() -> None:
    async with running() as (script, _, reader, writer):
        writer.write(framed(b"later:1") + framed(b"later:2") + framed(b"now:3") + framed(b"none:4") + framed(b"now:5"))
        await script.until_served(5)
        script.deferred[b"later:2"].future.set_result(None)
        script.deferred[b"later:1"].future.set_result(None)
        answers = [await read_frame(reader) for _ in range(4)]
        assert answers == [b"later:1", b"later:2", b"now:3", b"now:5"]


async def test_a_muted_connection_serves_nothing_more_until_it_has_answered() -> None:
    async with running() as (script, _, reader, writer):
        writer.write(framed(b"mute:1") + framed(b"now:2"))
        await script.until_served(1)
        assert script.served == [b"mute:1"]
        script.deferred[b"mute:1"].future.set_result(None)
        assert [await read_frame(reader) for _ in range(2)] == [b"mute:1", b"now:2"]


async def test_the_one_answer_that_is_waited_for_leaves_in_the_turn_in_which_it_comes() -> None:
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"prompt:1"))
        await script.until_served(1)
        assert listener.room.gauge.queued_bytes > 0
        script.prompt[0].settle()
        assert listener.room.gauge.queued_bytes == 0
        writer.write(framed(b"now:2"))
        assert [await read_frame(reader) for _ in range(2)] == [b"prompt:1", b"now:2"]


async def test_a_connection_that_is_ended_asks_for_no_answer_of_what_is_cancelled_by_that() -> None:
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"prompt:1"))
        await script.until_served(1)
        (prompt,) = script.prompt
        prompt.connection.end("the test ends it")
        assert prompt.is_done
        assert await reader.read() == b""
        assert listener.room.gauge.queued_bytes == 0


async def test_a_connection_has_only_so_many_requests_in_flight() -> None:
    async with running() as (script, _, reader, writer):
        count = REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX + 10
        names = [b"later:%d" % number for number in range(count)]
        writer.write(b"".join(map(framed, names)))
        await script.until_served(REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX)
        assert len(script.served) == REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
        for at, name in enumerate(names):
            await script.until_served(at + 1)
            script.deferred[name].future.set_result(None)
            assert await read_frame(reader) == name


async def test_a_malformed_frame_closes_its_connection_and_no_other() -> None:
    async with running() as (_, listener, reader, writer):
        sane_reader, sane_writer = await asyncio.open_connection(*writer.get_extra_info("peername"))
        writer.write(framed(b"bad:1") + framed(b"now:2"))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        sane_writer.write(framed(b"now:3"))
        assert await read_frame(sane_reader) == b"now:3"
        assert listener.gauge.connections == 1
        sane_writer.close()


async def test_what_comes_behind_a_malformed_frame_is_not_carried_out() -> None:
    async with running() as (script, _, reader, writer):
        writer.write(framed(b"now:1") + framed(b"bad:2") + framed(b"now:3"))
        with suppress(ConnectionResetError):
            await reader.read()
        assert script.served == [b"now:1", b"bad:2"]


async def test_answers_that_wait_for_an_earlier_one_hold_up_further_requests_once_they_are_large() -> None:
    async with running() as (script, _, reader, writer):
        names = [b"later:0", *(b"big:%d" % number for number in range(1, 9))]
        writer.write(b"".join(map(framed, names)))
        await script.until_served(3)
        for _ in range(10):
            await asyncio.sleep(0)
        assert script.served == names[:3]
        script.deferred[b"later:0"].future.set_result(None)
        assert [(await read_frame(reader)).rstrip(b"\0") for _ in names] == names


async def test_a_peer_that_is_silent_is_probed() -> None:
    async with running() as (_, listener, reader, writer):
        writer.write(framed(b"now:1"))
        await read_frame(reader)
        (connection,) = listener._connections
        assert connection._transport is not None
        own = connection._transport.get_extra_info("socket")
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_stop_sends_all_of_a_large_answer() -> None:
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"big:1"))
        await script.until_served(1)
        stopping = asyncio.ensure_future(listener.stop(grace_s=60))
        await turns(3)  # it has begun
        assert len(await read_frame(reader)) == len(b"big:1") + BIG_BYTES
        await stopping


async def test_a_stop_answers_what_was_received_first() -> None:
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"later:1"))
        await script.until_served(1)
        stopping = asyncio.ensure_future(listener.stop(grace_s=60))
        script.deferred[b"later:1"].future.set_result(None)
        await stopping
        assert await read_frame(reader) == b"later:1"
        assert await reader.read() == b""


async def test_a_connection_that_was_accepted_before_the_stop_and_is_made_after_it_is_closed() -> None:
    async with running() as (script, listener, _, _):
        await listener.stop(grace_s=0)
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(listener), ours)
            assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""
        assert listener.gauge.connections == 0
        assert not script.served


def test_a_connection_that_asyncio_has_accepted_as_the_stop_comes_is_closed() -> None:
    """Its server, closed before the connection is made, would leave the socket open."""
    told: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        listener = Listener(Script().serve)
        port = await listener.bind("127.0.0.1", 0)
        await listener.accept()
        with socket.create_connection(("127.0.0.1", port)) as client:
            await turns(2)
            await listener.stop()
            client.settimeout(60)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(work())
    assert told == []


async def test_nothing_is_held_once_all_is_answered_or_the_peer_is_gone() -> None:
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"now:1") + framed(b"later:2"))
        await script.until_served(2)
        assert await read_frame(reader) == b"now:1"
        assert listener.gauge.queued_bytes == len(b"later:2")
        writer.close()
        await asyncio.wait([script.deferred[b"later:2"].future])
        assert listener.gauge.queued_bytes == 0
        assert listener.gauge.connections == 0


async def test_what_waits_of_a_throttled_peer_that_has_gone_is_not_served() -> None:
    """Its end lies behind what nobody reads. It may have sent the same again on another connection."""
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"throttle:1") + framed(b"now:2"))
        assert await read_frame(reader) == b"throttle:1"
        (connection,) = listener._connections
        assert connection._transport is not None
        writer.write(framed(b"now:3"))
        writer.close()
        await writer.wait_closed()
        ended = select.poll()
        ended.register(connection._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        assert await asyncio.to_thread(ended.poll, 10_000), "its end has come"
        connection._throttle_is_over()
        await turns(5)
        assert script.served == [b"throttle:1"]
        assert not connection.is_open


async def test_what_waits_of_a_throttled_peer_that_is_there_is_served() -> None:
    async with running() as (script, listener, reader, writer):
        writer.write(framed(b"throttle:1") + framed(b"now:2"))
        assert await read_frame(reader) == b"throttle:1"
        await turns(5)
        assert script.served == [b"throttle:1"]
        (connection,) = listener._connections
        connection._throttle_is_over()
        assert await read_frame(reader) == b"now:2"


async def test_a_throttled_connection_that_is_idle_for_too_long_is_ended_as_any_other() -> None:
    async with running() as (_, listener, reader, writer):
        writer.write(framed(b"throttle:1"))
        assert await read_frame(reader) == b"throttle:1"
        (connection,) = listener._connections
        room = listener.room
        room.now = connection._active_at + room.bounds.idle_ms_max / 1000 - 1  # seconds are no whole numbers
        connection.check_pace()
        assert connection.is_open
        room.now += 2
        connection.check_pace()
        assert not connection.is_open


async def test_who_listens_on_all_of_ipv6_listens_on_all_of_ipv4() -> None:
    """This is what Java's servers do. A client that connects by IPv4 has its IPv4 address as its name."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    hosts = []

    def serve(frame: memoryview, connection: Connection) -> Answer:
        hosts.append(connection.peer_host)
        return [framed(bytes(frame))]

    listener = Listener(serve)
    port = await listener.bind("::", 0)
    await listener.accept()
    for host in ("127.0.0.1", "::1"):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(framed(b"x"))
        assert await reader.readexactly(5) == framed(b"x")
        writer.close()
    await listener.stop()
    assert hosts == ["127.0.0.1", "::1"]
