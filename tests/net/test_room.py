"""Limits for strangers: room is bounded, nobody is locked out by those who hold it, and all of it comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.base.limits import RESPONSE_QUEUE_BYTES_MAX
from headrace.net.server import listener as listener_module
from headrace.net.server.listener import Crowd, Listener
from headrace.net.server.request_budget import Bounds, Gauge, RequestBudget
from tests.net.test_listener import Script, framed, read_frame

KB = 1024
NEVER = -1


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(150):
        while not is_so():  # noqa: ASYNC110  # a gauge tells nobody when it moves
            await asyncio.sleep(0.001)


class Peer:
    """One client, as slow and as rude as a test wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError once the connection is gone: uvloop itself says RuntimeError for a closed one."""
        if self.writer.is_closing():
            raise ConnectionResetError("the connection is closed")
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        return await asyncio.wait_for(read_frame(self.reader), 60)

    async def is_hung_up_on(self) -> bool:
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 60) == b""
        return True


class Place:
    """A listener and its peers."""

    def __init__(self, listener: Listener, port: int, script: Script) -> None:
        self.listener = listener
        self.script = script
        self._port = port
        self._peers: list[Peer] = []

    @property
    def gauge(self) -> Gauge:
        return self.listener.gauge

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self._port))
        self._peers.append(peer)
        return peer

    async def deaf_peer(self, *, buffer_bytes: int | None = None) -> Peer:
        """One that reads nothing. `buffer_bytes`: of the sockets on both sides, nearly."""
        theirs = socket.create_connection(("127.0.0.1", self._port))
        peer = Peer(*await asyncio.open_connection(sock=theirs))
        peer.reader._limit = 1  # type: ignore[attr-defined]  # asyncio's stream then stops reading
        self._peers.append(peer)
        if buffer_bytes is not None:
            await self.until(connections=len(self._peers))
            ours = list(self.listener._connections)[-1]._transport
            assert ours is not None
            ours.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        return peer

    async def until(self, **wanted: int) -> None:
        """Wait until the gauge shows these."""
        await eventually(lambda: all(getattr(self.gauge, name) == value for name, value in wanted.items()))

    def leave(self) -> None:
        for peer in self._peers:
            peer.writer.close()


@asynccontextmanager
async def place(bounds: Bounds) -> AsyncIterator[Place]:
    """On leaving, everything that was held has come back."""
    script = Script()
    listener = Listener(script.serve, bounds)
    port = await listener.bind("127.0.0.1", 0)
    await listener.accept()
    here = Place(listener, port, script)
    try:
        yield here
    finally:
        here.leave()
        try:
            await here.until(connections=0)
            assert here.gauge == Gauge()
            assert not listener.room.is_pressed
        finally:
            await listener.stop(grace_s=0.1)


async def test_a_frame_counts_whole_as_soon_as_its_length_is_known() -> None:
    async with place(Bounds(queued_bytes_max=KB * KB)) as here:
        peer = await here.peer()
        frame = framed(b"now:" + bytes(50 * KB))
        await peer.send(frame[:2])
        await here.until(waiting_bytes=2)
        await peer.send(frame[2:7])
        await here.until(queued_bytes=50 * KB + 4, reserved_bytes=50 * KB + 4, waiting_bytes=0)
        await peer.send(frame[7:])
        assert len(await peer.answer()) == 50 * KB + 4
        assert here.gauge.queued_bytes == here.gauge.reserved_bytes == 0


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(1, 40 * KB), st.integers(1, 9 * KB)), min_size=1, max_size=12),
    st.integers(1, 60 * KB),
)
def test_half_frames_never_block_each_other(frames: list[tuple[int, int]], bound: int) -> None:
    """For any sizes, pieces and bound, everybody is answered, and the bound holds except for one frame."""

    async def run() -> None:
        async with place(Bounds(queued_bytes_max=bound, patience_ms=60_000)) as here:
            peers = [await here.peer() for _ in frames]
            await asyncio.gather(*(converse(peer, *each) for peer, each in zip(peers, frames, strict=True)))

    async def converse(peer: Peer, size: int, piece: int) -> None:
        frame = framed(b"now:" + bytes(size))
        for at in range(0, len(frame), piece):
            await peer.send(frame[at : at + piece])
            await asyncio.sleep(0)
        assert len(await peer.answer()) == size + 4

    asyncio.run(run())


async def test_the_bound_holds_but_for_the_last_frame() -> None:
    async with place(Bounds(queued_bytes_max=100 * KB, patience_ms=60_000)) as here:
        peers = [await here.peer() for _ in range(20)]
        for peer in peers:
            await peer.send(framed(b"now:" + bytes(30 * KB))[:-1])
        admitted = 2 * (30 * KB + 4)  # half of the bound is reached with the second
        await here.until(reserved_bytes=admitted)
        assert here.gauge.queued_bytes == admitted
        for peer in peers:
            await peer.send(b"\0")
        for peer in peers:
            assert len(await peer.answer()) == 30 * KB + 4


async def test_who_is_not_answered_yet_is_read_no_further_once_there_is_no_room() -> None:
    async with place(Bounds(queued_bytes_max=100 * KB, patience_ms=60_000)) as here:
        eager = await here.peer()
        names = [b"later:%d:" % number for number in range(3)]
        for name in names[:2]:
            await eager.send(framed(name.ljust(60 * KB)))
        await here.script.until_served(2)
        await eager.send(framed(names[2].ljust(60 * KB)))
        for number in range(3):  # by then everything has been read
            other = await here.peer()
            await other.send(framed(b"now:%d" % number))
            assert await other.answer() == b"now:%d" % number
        assert names[2].ljust(60 * KB) not in here.script.served
        for name in names[:2]:
            here.script.deferred[name.ljust(60 * KB)].future.set_result(None)
        await here.script.until_served(6)
        assert names[2].ljust(60 * KB) in here.script.served
        here.script.deferred[names[2].ljust(60 * KB)].future.set_result(None)


async def test_who_sits_on_room_that_others_wait_for_gives_it_up() -> None:
    with capture_logs() as lines:
        async with place(Bounds(queued_bytes_max=100 * KB, patience_ms=50)) as here:
            sitting = [await here.peer() for _ in range(2)]
            for peer in sitting:
                await peer.send(framed(bytes(90 * KB))[:10])
            await here.until(reserved_bytes=90 * KB)
            honest = await here.peer()
            await honest.send(framed(b"now:" + bytes(20 * KB))[:-1])
            await eventually(lambda: here.gauge.waiting_bytes > 20 * KB)
            await honest.send(b"\0")
            assert len(await honest.answer()) == 20 * KB + 4
    assert [line["reason"] for line in lines][:1] == ["it holds up others, who wait for room"]


async def test_small_requests_pass_while_half_frames_fill_their_half() -> None:
    async with place(Bounds(queued_bytes_max=100 * KB, patience_ms=60_000)) as here:
        sitting = await here.peer()
        await sitting.send(framed(bytes(60 * KB))[:10])
        await here.until(reserved_bytes=60 * KB)
        for number in range(50):
            small = await here.peer()
            await small.send(framed(b"now:%d" % number))
            assert await small.answer() == b"now:%d" % number


async def test_what_cannot_be_held_ends_its_connection() -> None:
    """Everybody sends more than there is room for, all at once."""
    async with place(Bounds(queued_bytes_max=100 * KB, waiting_bytes_max=25 * KB, patience_ms=60_000)) as here:
        for _ in range(20):
            peer = await here.peer()
            with suppress(ConnectionError):
                await peer.send(framed(bytes(1000 * KB))[: 20 * KB])
        await eventually(lambda: here.gauge.connections <= 4)
        assert here.gauge.waiting_bytes <= 25 * KB


async def test_the_silent_are_closed_and_those_who_wait_for_an_answer_are_not() -> None:
    with capture_logs() as lines:
        async with place(Bounds(idle_ms_max=100)) as here:
            waiting, silent = await here.peer(), await here.peer()
            await waiting.send(framed(b"later:1"))
            await here.script.until_served(1)
            assert await silent.is_hung_up_on()
            await here.until(connections=1)
            here.script.deferred[b"later:1"].future.set_result(None)
            assert await waiting.answer() == b"later:1"
            assert await waiting.is_hung_up_on()
    assert [line["reason"] for line in lines] == ["idle for 100 ms"] * 2


async def test_nobody_is_idle_where_there_is_no_bound() -> None:
    async with place(Bounds(idle_ms_max=NEVER, frame_ms_max=20)) as here:
        silent = await here.peer()
        slow = await here.peer()
        await slow.send(b"\0")
        assert await slow.is_hung_up_on()  # several sweeps have passed
        await silent.send(framed(b"now:1"))
        assert await silent.answer() == b"now:1"


@pytest.mark.parametrize("part", [b"\0", framed(bytes(100))[:-1]], ids=["half a length", "half a frame"])
async def test_a_frame_that_takes_too_long_ends_its_connection(part: bytes) -> None:
    with capture_logs() as lines:
        async with place(Bounds(frame_ms_max=100)) as here:
            slow = await here.peer()
            await slow.send(part)
            assert await slow.is_hung_up_on()
    assert len(lines) == 1
    assert "was not whole in" in lines[0]["reason"]


async def test_a_frame_that_comes_a_byte_at_a_time_is_no_less_slow() -> None:
    with capture_logs() as lines:
        async with asyncio.timeout(150), place(Bounds(frame_ms_max=100)) as here:
            slow, other = await here.peer(), await here.peer()
            await slow.send(framed(bytes(100_000))[:5])
            with suppress(ConnectionError):
                while not slow.reader.at_eof():
                    await slow.send(b"\0")
                    await other.send(framed(b"now:1"))
                    assert await other.answer() == b"now:1"
    assert "was not whole in" in lines[0]["reason"]


async def test_who_does_not_read_its_answers_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as lines:
        async with asyncio.timeout(150), place(Bounds(patience_ms=100)) as here:
            rude = await here.deaf_peer()

            async def send() -> None:
                with suppress(ConnectionError):
                    for number in range(9):  # until nothing more is taken, which ends with the connection
                        await rude.send(framed(b"now:%d" % number + bytes(2 * KB * KB)))

            sending = asyncio.ensure_future(send())
            await eventually(lambda: here.gauge.unsent_bytes > 0)
            room = here.listener.room  # only now, so that it is not idle for so long before
            monkeypatch.setattr(room, "bounds", replace(room.bounds, idle_ms_max=100))
            await sending
            await here.until(connections=0)
    assert [line["reason"] for line in lines] == ["it does not read its answers for 100 ms"]


async def test_there_are_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "CONNECTIONS_MAX", 2)
    with capture_logs() as lines:
        async with place(Bounds()) as here:
            first, _ = await here.peer(), await here.peer()
            await here.until(connections=2)
            assert await (await here.peer()).is_hung_up_on()
            await first.send(framed(b"now:1"))
            assert await first.answer() == b"now:1"
    assert [line["event"] for line in lines] == ["connection refused: too many"]


@pytest.mark.parametrize("crowd", [Crowd(all=2), Crowd(of_one_address=2)])
async def test_connections_beyond_what_is_configured_are_refused_until_one_has_gone(crowd: Crowd) -> None:
    with capture_logs() as lines:
        async with place(Bounds()) as here:
            first, second, third = [await here.peer() for _ in range(3)]
            await here.until(connections=3)
            here.listener.crowd_max = crowd
            await third.send(framed(b"now:1"))
            assert await third.answer() == b"now:1", "those that are there stay"
            assert await (await here.peer()).is_hung_up_on()
            for each in (first, second):
                each.writer.close()
            await here.until(connections=1)
            fourth = await here.peer()
            await fourth.send(framed(b"now:2"))
            assert await fourth.answer() == b"now:2"
            assert await (await here.peer()).is_hung_up_on()
    assert [line["event"].partition(":")[0] for line in lines] == ["connection refused"] * 2


async def test_the_slowest_reader_goes_where_answers_pile_up() -> None:
    with capture_logs() as lines:
        async with place(Bounds(unsent_bytes_max=2 * KB * KB)) as here:
            for _ in range(5):
                rude = await here.deaf_peer()
                for number in range(9):
                    await rude.send(framed(b"now:%d" % number + bytes(700 * KB)))
            await eventually(lambda: bool(lines))
            assert here.gauge.unsent_bytes <= 2 * KB * KB
            polite = await here.peer()
            await polite.send(framed(b"now:1"))
            assert await polite.answer() == b"now:1"
    assert lines[0]["reason"] == "it does not read its answers, and others have to"


async def test_small_remains_of_many_are_counted_too() -> None:
    """Each has less to read than a connection may have at once: the sweep finds it."""
    async with place(Bounds(patience_ms=20)) as here:
        for _ in range(4):
            rude = await here.deaf_peer(buffer_bytes=4 * KB)
            await rude.send(framed(b"now:" + bytes(200 * KB)))
        await eventually(lambda: here.gauge.unsent_bytes > 4 * 100 * KB)
        assert here.listener.room.answer_bytes_max < RequestBudget(Bounds()).answer_bytes_max


async def test_what_waits_behind_an_answer_that_is_not_there_counts_and_comes_in_order() -> None:
    async with place(Bounds()) as here:
        peer = await here.peer()
        size = RESPONSE_QUEUE_BYTES_MAX
        await peer.send(framed(b"later:1") + framed(b"mute:" + bytes(size)) + framed(b"now:3"))
        await here.script.until_served(2)
        here.script.deferred[b"mute:" + bytes(size)].future.set_result(None)
        await eventually(lambda: here.gauge.unsent_bytes > size)
        here.script.deferred[b"later:1"].future.set_result(None)
        assert await peer.answer() == b"later:1"
        assert len(await peer.answer()) == len(b"mute:") + size
        assert await peer.answer() == b"now:3"
        here.listener._sweep()
        await here.until(unsent_bytes=0)


class Reader:
    """A `Holder`, as the accounts see it."""

    held_bytes = waiting_bytes = 0

    def __init__(self, name: str, ended: list[str]) -> None:
        self.unsent_bytes = 0
        self._name = name
        self._ended = ended

    def proceed(self) -> None:
        return

    def is_in_the_way(self, now: float) -> bool:
        return False

    def end(self, reason: str) -> None:
        self._ended.append(self._name)


def test_the_fuller_it_is_the_smaller_are_answers_and_who_takes_nothing_for_longest_is_closed() -> None:
    ended: list[str] = []
    room = RequestBudget(Bounds(unsent_bytes_max=1000, slow_reader_ms_max=5_000))
    slow, stuck, late = (Reader(name, ended) for name in ("slow", "stuck", "late"))
    assert room.answer_bytes_max == 250
    slow.unsent_bytes = stuck.unsent_bytes = 300
    room.note_unsent(slow)
    room.note_unsent(stuck)
    assert room.answer_bytes_max == 100
    room.now = 4.0
    slow.unsent_bytes = 299
    assert room.note_unsent(slow), "it takes its time"
    room.relieve_of_unsent()
    assert not ended, "nobody has taken nothing for five seconds"
    room.now = 6.0
    room.relieve_of_unsent()
    assert ended == ["stuck"]
    assert room.gauge.unsent_bytes == 299
    room.now = 60.0
    room.relieve_of_unsent()
    assert ended == ["stuck"], "it is less than half"
    late.unsent_bytes = 800
    slow.unsent_bytes = 250  # it took some, which nobody has noted
    room.note_unsent(late)
    assert ended == ["stuck", "late"], "at the bound at once, and not who was seen to take something"
    assert room.answer_bytes_max == 187


def test_room_that_is_made_while_one_goes_on_is_not_forgotten() -> None:
    """A woken waiter may take all the room, make others wait for it, and give it back in the same call."""
    room = RequestBudget(Bounds(queued_bytes_max=100))
    woken: list[str] = []

    class Waiting(Reader):
        def proceed(self) -> None:
            woken.append(self._name)
            if self._name == "large":
                assert room.reserve(self, 200)
                room.starve(small)
                room.gauge.reserved_bytes -= 200
                room.release(200)

    small, large = Waiting("small", []), Waiting("large", [])
    assert room.reserve(small, 100)
    assert not room.reserve(large, 200)
    room.gauge.reserved_bytes -= 100
    room.release(100)
    assert woken == ["large", "small"]
