"""A follower's connection to a leader, on a simulated network and in virtual time: what it brings, and how it ends."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.limits import REPLICA_SILENCE_MS_MAX
from headrace.net.peer.copylink import FRAME_BYTES_MAX, CopyLink, open_link
from headrace.sim.loop import VirtualLoop

ADDRESS = Address("127.0.0.1", 1)
SILENCE_S = REPLICA_SILENCE_MS_MAX / 1000
SOON_S = 2.0
"""For all that is on its way to arrive."""
ASK = struct.pack(">i", 3) + b"ask"
TELL = struct.pack(">i", 4) + b"tell"


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Leader(asyncio.Protocol):
    """Does with each frame what it is told to."""

    def __init__(self, on_frame: Callable[[Leader, bytes], None]) -> None:
        self._on_frame = on_frame
        self._data = b""
        self.received: list[bytes] = []
        self.ended = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := struct.unpack_from(">i", self._data)[0]):
            self.received.append(self._data[4 : 4 + size])
            self._data = self._data[4 + size :]
            self._on_frame(self, self.received[-1])

    def connection_lost(self, _: Exception | None) -> None:
        self.ended.set()

    def write(self, data: bytes) -> None:
        self.transport.write(data)


class Follower:
    """Notes all that the link tells."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.lost: list[tuple[float, str]] = []
        self.problem: str | None = None
        self.link: CopyLink

    def on_frame(self, frame: memoryview) -> None:
        if self.problem is not None:
            raise CorruptData(self.problem)
        self.frames.append(bytes(frame))

    def on_lost(self, reason: str) -> None:
        self.lost.append((asyncio.get_running_loop().time(), reason))


async def joined(answer: Callable[[Leader, bytes], None]) -> tuple[Follower, Leader]:
    leader, follower = Leader(answer), Follower()
    await asyncio.get_running_loop().create_server(lambda: leader, *ADDRESS)
    follower.link = await open_link(ADDRESS, follower.on_frame, follower.on_lost, timeout_ms=30_000)
    return follower, leader


def run(work: Callable[[], Awaitable[None]], seed: int = 7) -> None:
    loop = VirtualLoop(random.Random(seed))
    try:
        loop.run_until_complete(asyncio.wait_for(work(), 3600))
    finally:
        loop.workers.close()
        loop.close()
    assert loop.failures == []


def nothing(_: Leader, __: bytes) -> None:
    """It is silent."""


def now() -> float:
    return asyncio.get_running_loop().time()


@given(st.integers(0, 2**32), st.lists(st.binary(max_size=70_000), min_size=1, max_size=8))
def test_answers_come_whole_and_in_order_however_they_are_cut_on_the_way(seed: int, bodies: list[bytes]) -> None:
    async def work() -> None:
        answers = iter(bodies)
        follower, _ = await joined(lambda leader, _: leader.write(framed(next(answers))))
        for each in range(len(bodies)):
            follower.link.send(ASK, answered=True)
            assert follower.link.awaited == each + 1
        await asyncio.sleep(SOON_S)
        assert follower.frames == bodies
        assert (follower.link.awaited, follower.lost) == (0, [])
        follower.link.close()

    run(work, seed)


def test_what_wants_no_answer_awaits_none_however_long_it_takes() -> None:
    async def work() -> None:
        follower, leader = await joined(nothing)
        follower.link.send(TELL, answered=False)
        await asyncio.sleep(100 * SILENCE_S)
        assert (leader.received, follower.link.awaited, follower.lost) == ([b"tell"], 0, [])
        follower.link.close()

    run(work)


@pytest.mark.parametrize("answered_before", [0, 1, 5])
def test_silence_ends_it_where_an_answer_is_awaited(answered_before: int) -> None:
    async def work() -> None:
        def answer(leader: Leader, _: bytes) -> None:
            if len(leader.received) <= answered_before:
                asyncio.get_running_loop().call_later(0.8 * SILENCE_S, leader.write, framed(b"answer"))

        follower, leader = await joined(answer)
        for _ in range(answered_before):
            follower.link.send(ASK, answered=True)
            await asyncio.sleep(SILENCE_S)
            assert follower.lost == [], "it spoke in time"
        follower.link.send(ASK, answered=True)
        sent_at = now()
        await leader.ended.wait()
        ((lost_at, reason),) = follower.lost
        assert SILENCE_S <= lost_at - sent_at < 2 * SILENCE_S
        assert reason == f"it was silent for {REPLICA_SILENCE_MS_MAX} ms"
        assert len(follower.frames) == answered_before

    run(work)


def test_an_answer_on_its_way_for_long_is_no_silence() -> None:
    """One large answer over a slow line: each piece of it is a sign of life."""

    async def work() -> None:
        pieces = 20
        whole = framed(bytes(pieces * 100 - 4))

        def answer(leader: Leader, _: bytes) -> None:
            for each in range(pieces):
                piece = whole[each * 100 : (each + 1) * 100]
                asyncio.get_running_loop().call_later(each * 0.8 * SILENCE_S, leader.write, piece)

        follower, _ = await joined(answer)
        follower.link.send(ASK, answered=True)
        await asyncio.sleep(pieces * SILENCE_S)
        assert (follower.frames, follower.lost) == ([whole[4:]], [])
        follower.link.close()

    run(work)


ENDINGS: dict[str, tuple[Callable[[Leader, bytes], None], str]] = {
    "closed": (lambda leader, _: leader.transport.close(), "it closed the connection"),
    "huge": (lambda leader, _: leader.write(struct.pack(">i", FRAME_BYTES_MAX + 1)), "a frame claims"),
    "negative": (lambda leader, _: leader.write(struct.pack(">i", -1)), "a frame claims"),
    "unasked": (lambda leader, _: leader.write(2 * framed(b"answer")), "an answer that nobody asked for"),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_its_end_is_told_once_with_a_sentence(how: str) -> None:
    answer, reason = ENDINGS[how]

    async def work() -> None:
        follower, leader = await joined(answer)
        follower.link.send(ASK, answered=True)
        await leader.ended.wait()
        await asyncio.sleep(10 * SILENCE_S)
        ((_, told),) = follower.lost
        assert told.startswith(reason)
        follower.link.send(ASK, answered=True)
        follower.link.close()
        await asyncio.sleep(10 * SILENCE_S)
        assert (len(follower.lost), leader.received) == (1, [b"ask"])

    run(work)


def test_a_connection_that_breaks_is_told_as_that() -> None:
    async def work() -> None:
        follower, leader = await joined(nothing)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.network.reset(next(iter(loop.network.transports)))
        await leader.ended.wait()
        await asyncio.sleep(SOON_S)
        assert [reason for _, reason in follower.lost] == ["the connection broke"]

    run(work)


def test_an_answer_that_makes_no_sense_ends_it_and_nothing_behind_it_is_read() -> None:
    async def work() -> None:
        follower, leader = await joined(lambda leader, _: leader.write(framed(b"one") + framed(b"two")))
        follower.problem = "this is no answer"
        for _ in range(2):
            follower.link.send(ASK, answered=True)
        await leader.ended.wait()
        await asyncio.sleep(SOON_S)
        assert [reason for _, reason in follower.lost] == ["this is no answer"]
        assert follower.frames == []

    run(work)


def test_who_closes_it_is_told_nothing_more() -> None:
    """Not even what came in the same read."""

    async def work() -> None:
        follower, leader = await joined(lambda leader, _: leader.write(framed(b"one") + framed(b"two")))
        note = follower.on_frame

        def close_at_once(frame: memoryview) -> None:
            note(frame)
            follower.link.close()

        follower.link._on_frame = close_at_once
        follower.link.send(ASK, answered=True)
        await leader.ended.wait()
        await asyncio.sleep(10 * SILENCE_S)
        assert (follower.frames, follower.lost) == ([b"one"], [])

    run(work)


def test_who_cannot_be_reached_is_an_error_of_the_opening() -> None:
    async def work() -> None:
        follower = Follower()
        with pytest.raises(ConnectionRefusedError):
            await open_link(ADDRESS, follower.on_frame, follower.on_lost, timeout_ms=30_000)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await loop.create_server(lambda: Leader(nothing), "10.0.0.2", 1)
        loop.network.power_off("10.0.0.2")
        began = now()
        with pytest.raises(TimeoutError):
            await open_link(Address("10.0.0.2", 1), follower.on_frame, follower.on_lost, timeout_ms=2_000)
        assert now() - began == 2.0
        assert follower.lost == []

    run(work)
