"""The network between members: who may speak, what is bounded, and when a member is plainly dead."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import structlog

from headrace.base import limits
from headrace.base.addresses import Address
from headrace.base.ids import NO_LINEAGE, BrokerId, ClusterId, Lineage
from headrace.net.client.security.dialing import dial
from headrace.net.peer import peers as module
from headrace.net.peer.peerframes import HEADER, Envelope, encode_frame, encoded
from headrace.net.peer.peers import AddressBook, Peers
from headrace.net.server.listener import Listener
from headrace.raft.messages import AppendRequest, Entry, Heartbeat, Message
from tests import loops
from tests.broker.group_broker import until
from tests.raft.member import peer

CLUSTER = ClusterId("a" * 22)
HOST = "127.0.0.1"


class End:
    """One member: its listener and what it received. `news`: something has happened here."""

    def __init__(
        self,
        node: int,
        cluster_id: ClusterId = CLUSTER,
        news: asyncio.Event | None = None,
        *,
        recovery_least: int = 0,
    ) -> None:
        self.peers = Peers(me=peer(node), cluster_id=cluster_id, recovery_least=recovery_least)
        self.peers.attach(self._receive)
        self.peers.on_peer_dead(self._died)
        self.listener = Listener(self.peers.serve)
        self.received: list[Message] = []
        self.dead: list[BrokerId] = []
        self.news = news or asyncio.Event()

    def _receive(self, message: Message) -> None:
        self.received.append(message)
        self.news.set()

    def _died(self, node: BrokerId) -> None:
        self.dead.append(node)
        self.news.set()

    async def listen(self, port: int = 0) -> int:
        port = await self.listener.bind(HOST, port)
        self.peers.address = Address(HOST, port)
        await self.listener.accept()
        return port

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def stop(self) -> None:
        self.peers.stop()
        await self.listener.stop(grace_s=0)


def heartbeat(source: int, target: int, number: int, *, life: int = 1) -> Heartbeat:
    return Heartbeat(term=1, source=peer(source), target=peer(target, life), commit_index=0, round=number)


@pytest.fixture
async def ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[End, End]]:
    """Two that know of each other, and whose news are one: what comes, and what becomes of connections."""
    news = asyncio.Event()
    for name in ("_failed", "connection_lost"):
        monkeypatch.setattr(module._Link, name, noting(getattr(module._Link, name), news))
    one, two = End(1, news=news), End(2, news=news)
    await one.listen()
    port = await two.listen()
    one.peers.learn(BrokerId(2), HOST, port)
    async with asyncio.timeout(150):
        yield one, two
    await one.stop()
    await two.stop()


async def test_messages_arrive_in_order_and_the_answer_finds_its_way(ends: tuple[End, End]) -> None:
    """The second was never told where the first listens: the first said so."""
    one, two = ends
    sent: list[Message] = [heartbeat(1, 2, number, life=1 + number // 60) for number in range(100)]
    for message in sent:
        one.peers.send(message)
    await two.until(lambda: len(two.received) == 100)
    assert two.received == sent
    two.peers.send(heartbeat(2, 1, 7))
    await one.until(lambda: bool(one.received))
    assert one.received == [heartbeat(2, 1, 7)]


async def test_nothing_is_lost_where_a_session_ends_and_another_connection_takes_its_place(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ends
    dialled = list[float]()

    async def brief(*arguments: Any, **settings: Any) -> tuple[Any, float]:
        protocol, lasts_s = await dial(*arguments, **settings)
        dialled.append(lasts_s)
        return protocol, 0.001

    monkeypatch.setattr(module, "dial", brief)
    sent = 0
    while len(dialled) < 20:
        sent += 1
        one.peers.send(heartbeat(1, 2, sent))
        await two.until(lambda: len(two.received) == sent)  # noqa: B023 - awaited here
    assert {message.round for message in two.received if isinstance(message, Heartbeat)} == {*range(1, sent + 1)}
    assert set(dialled) == {0.0}, "a session without a password has no end"
    assert one.dead == two.dead == []


@pytest.mark.parametrize("failure", [ConnectionRefusedError, TimeoutError, None])
async def test_a_link_serves_until_another_takes_its_place_and_a_member_is_not_dead_where_none_can_be_opened(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch, failure: type[OSError] | None
) -> None:
    """The member refuses new connections, as behind a gate that starts again, or loses them at once (None). The one
    that is open still serves."""
    one, two = ends
    tried = 0

    async def refused_next(*arguments: Any, **settings: Any) -> tuple[Any, float]:
        nonlocal tried
        tried += 1
        if tried > 1 and failure is not None:
            raise failure
        protocol, _ = await dial(*arguments, **settings)
        if tried > 1:
            protocol.abort()
            await until(lambda: protocol.transport is None)
        return protocol, 0.001

    monkeypatch.setattr(module, "dial", refused_next)
    monkeypatch.setattr(module, "PEER_BACKOFF_MS_MAX", 1)
    sent = 0
    while tried < 10:
        sent += 1
        one.peers.send(heartbeat(1, 2, sent))
        await two.until(lambda: len(two.received) == sent)  # noqa: B023 - awaited here
    assert [message.round for message in two.received if isinstance(message, Heartbeat)] == [*range(1, sent + 1)]
    assert one.dead == two.dead == []
    monkeypatch.setattr(module, "dial", dial)
    await two.stop()
    await one.until(lambda: one.dead == [2])


async def test_a_large_message_arrives(ends: tuple[End, End]) -> None:
    one, two = ends
    entries = tuple(Entry(1, index, bytes(1_000_000)) for index in range(1, 9))
    message = AppendRequest(
        term=1, source=peer(1), target=peer(2), previous_index=0, previous_term=0, entries=entries, commit_index=0
    )
    for _ in range(2):
        one.peers.send(message)
    await two.until(lambda: len(two.received) == 2)
    assert two.received == [message, message]


async def closed(port: int, data: bytes) -> bool:
    """Whether the listener closes the connection for this."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    try:
        ended = await reader.read() == b""
    except ConnectionResetError:
        ended = True
    writer.close()
    return ended


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("what", ["cluster", "target", "myself", "garbage", "cut", "huge"])
async def test_who_is_not_one_of_us_is_closed_with_one_line(ends: tuple[End, End], what: str) -> None:
    one, two = ends
    assert two.peers.address is not None
    message = encoded([heartbeat(1, 2, 1)])
    envelope = Envelope(CLUSTER, peer(1), peer(2), None)
    data = {
        "cluster": encode_frame(Envelope(ClusterId("b" * 22), peer(1), peer(2), None), message),
        "target": encode_frame(Envelope(CLUSTER, peer(1), peer(3), None), message),
        "myself": encode_frame(Envelope(CLUSTER, peer(2), peer(2), None), message),
        "garbage": framed(HEADER + b"\xff" * 60),
        "cut": framed(encode_frame(envelope, message)[4:-1]),
        "huge": framed(encode_frame(envelope, message)[4:] + bytes(limits.PEER_FRAME_BYTES_MAX)),
    }[what]
    with structlog.testing.capture_logs() as lines:
        assert await closed(two.peers.address.port, data)
    assert [line["event"] for line in lines] == ["connection closed: malformed request"]
    assert two.received == []
    one.peers.send(heartbeat(1, 2, 5))
    await two.until(lambda: two.received == [heartbeat(1, 2, 5)])


FIRST, LATER = Lineage(1, "r"), Lineage(2, "s")


@pytest.mark.parametrize(("theirs", "ours"), [(NO_LINEAGE, FIRST), (FIRST, LATER), (LATER, FIRST), (FIRST, NO_LINEAGE)])
async def test_who_follows_an_earlier_lineage_is_told_so_and_nobody_hears_the_other(
    ends: tuple[End, End], theirs: Lineage, ours: Lineage
) -> None:
    one, two = ends
    told = list[tuple[int, Lineage]]()
    for end, lineage in ((one, theirs), (two, ours)):
        end.peers.follow(lineage)

        def hear(later: Lineage, node: int = end.peers.me.node, news: asyncio.Event = end.news) -> None:
            told.append((node, later))
            news.set()

        end.peers.on_superseded(hear)
    one.peers.send(heartbeat(1, 2, 1))
    await two.until(lambda: bool(told))
    assert told[0] == ((1, ours) if ours > theirs else (2, theirs))
    assert (one.received, two.received) == ([], [])


async def test_of_two_recoveries_with_one_number_neither_is_the_later(ends: tuple[End, End]) -> None:
    one, two = ends
    one.peers.follow(FIRST)
    two.peers.follow(Lineage(1, "t"))
    for end in ends:
        end.peers.on_superseded(lambda later: pytest.fail(f"{later} is not later"))
    assert two.peers.address is not None
    frame = encode_frame(Envelope(CLUSTER, peer(1), peer(2), None, FIRST), encoded([heartbeat(1, 2, 1)]))
    assert await closed(two.peers.address.port, frame)
    assert two.received == []


async def test_a_member_without_a_log_takes_the_lineage_of_who_speaks_first(ends: tuple[End, End]) -> None:
    one, two = ends
    one.peers.follow(LATER)
    one.peers.send(heartbeat(1, 2, 1))
    await two.until(lambda: bool(two.received))
    two.peers.send(heartbeat(2, 1, 2))
    await one.until(lambda: bool(one.received))


async def test_and_not_of_who_speaks_to_a_disk_that_it_had_before(ends: tuple[End, End]) -> None:
    """Else one from before a recovery would have a new broker give up, which is to follow the recovered one."""
    one, two = ends
    two.peers.on_superseded(lambda later: pytest.fail(f"it has no log that {later} could be later than"))
    assert two.peers.address is not None
    reader, writer = await asyncio.open_connection(HOST, two.peers.address.port)
    before = Envelope(CLUSTER, peer(3), peer(2, 7), None, NO_LINEAGE)
    writer.write(encode_frame(before, encoded([heartbeat(3, 2, 1, life=7)])))
    writer.write(framed(b"garbage"))
    with suppress(ConnectionResetError):
        await reader.read()  # both were looked at
    writer.close()
    one.peers.follow(FIRST)
    one.peers.send(heartbeat(1, 2, 2))
    await two.until(lambda: bool(two.received))
    assert two.received == [heartbeat(1, 2, 2)]


async def test_a_member_that_set_its_log_aside_hears_nobody_of_before(ends: tuple[End, End]) -> None:
    """It forgot its votes, and its vote would count there."""
    one, _ = ends
    three = End(3, news=one.news, recovery_least=1)
    port = await three.listen()
    message = encoded([heartbeat(1, 3, 1)])
    assert await closed(port, encode_frame(Envelope(CLUSTER, peer(1), peer(3), None, NO_LINEAGE), message))
    assert three.received == []
    one.peers.follow(FIRST)
    one.peers.learn(BrokerId(3), HOST, port)
    one.peers.send(heartbeat(1, 3, 2))
    await three.until(lambda: bool(three.received))
    assert three.received == [heartbeat(1, 3, 2)]
    await three.stop()


async def test_a_member_is_plainly_dead_once_it_refuses_and_not_before(ends: tuple[End, End]) -> None:
    one, two = ends
    one.peers.send(heartbeat(1, 2, 1))
    await two.until(lambda: bool(two.received))
    for connection in list(two.listener._connections):
        connection.abort()  # it is still there
    await send_until(one, heartbeat(1, 2, 10), lambda: len(two.received) > 1)
    assert one.dead == []
    await two.stop()
    await one.until(lambda: bool(one.dead))
    assert one.dead == [2]
    again = End(2, news=one.news)
    assert two.peers.address is not None
    await again.listen(two.peers.address.port)
    await send_until(one, heartbeat(1, 2, 10), lambda: bool(again.received))
    assert one.dead == [2]
    await again.stop()
    await one.until(lambda: one.dead == [2, 2])


async def send_until(sender: End, message: Message, condition: Callable[[], bool]) -> None:
    """Again after each piece of news: what was sent may have been lost with a connection."""
    while not condition():
        sender.news.clear()
        sender.peers.send(message)
        await sender.news.wait()


async def test_a_death_is_noticed_where_nothing_is_ever_sent(ends: tuple[End, End]) -> None:
    one, two = ends
    one.peers.watch({BrokerId(1), BrokerId(2)})
    link = one.peers._links[BrokerId(2)]
    await until(lambda: len(two.listener._connections) == 1)
    idle = set(two.listener._connections)
    for connection in idle:
        connection.abort()
    await until(lambda: bool(set(two.listener._connections) - idle))
    assert one.dead == []
    await two.stop()
    await until(lambda: bool(one.dead))
    assert one.dead == [2]
    one.peers.watch(set())
    assert one.peers._links == {}
    assert link._transport is None


async def test_a_link_that_watches_dials_as_soon_as_the_address_is_known(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pause would last as long as the test."""
    one, two = ends
    monkeypatch.setattr(module, "PEER_BACKOFF_MS_MIN", 10**9)
    monkeypatch.setattr(module, "PEER_BACKOFF_MS_MAX", 10**9)
    assert two.peers.address is not None
    one.peers.book._known.clear()
    one.peers.watch({BrokerId(2)})
    link = one.peers._links[BrokerId(2)]
    await one.until(lambda: link._pause is not None)
    one.peers.learn(BrokerId(2), HOST, two.peers.address.port)
    await until(lambda: len(two.listener._connections) == 1)
    await two.stop()
    await until(lambda: bool(one.dead))
    assert one.dead == [2]


async def test_who_only_spoke_to_us_is_seen_dead_as_well(ends: tuple[End, End]) -> None:
    one, two = ends
    one.peers.send(heartbeat(1, 2, 1))
    await two.until(lambda: bool(two.received))
    await one.stop()
    await send_until(two, heartbeat(2, 1, 1), lambda: bool(two.dead))
    assert two.dead == [1]


async def test_who_was_never_there_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    monkeypatch.setattr(module._Link, "_failed", noting(module._Link._failed, tried))
    one, two = End(1), End(2)
    port = await two.listen()
    await two.stop()
    one.peers.learn(BrokerId(2), HOST, port)
    one.peers.send(heartbeat(1, 2, 1))
    await tried.wait()
    assert one.dead == []
    await one.stop()


def noting(method: Callable[..., None], event: asyncio.Event) -> Callable[..., None]:
    def noted(*arguments: Any) -> None:
        method(*arguments)
        event.set()

    return noted


def test_a_member_is_reached_though_the_process_stood_still_while_it_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection was made, and its time was over, when the loop went on: uvloop then tells nobody of its end."""

    async def work() -> None:
        tried = asyncio.Event()
        monkeypatch.setattr(module._Link, "_failed", noting(module._Link._failed, tried))
        monkeypatch.setattr(module, "PEER_CONNECT_MS_MAX", 50)
        one, two = End(1), End(2)
        one.peers.learn(BrokerId(2), HOST, await two.listen())
        try:
            async with asyncio.timeout(150):
                one.peers.send(heartbeat(1, 2, 1))
                asyncio.get_running_loop().call_soon(time.sleep, 0.2)
                await tried.wait()
                monkeypatch.setattr(module, "PEER_CONNECT_MS_MAX", limits.PEER_CONNECT_MS_MAX)
                while heartbeat(1, 2, 2) not in two.received:
                    one.peers.send(heartbeat(1, 2, 2))
                    await asyncio.sleep(0)
        finally:
            await one.stop()
            await two.stop()

    loops.run(work())


async def test_what_waits_is_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To one whose connection is being made, and never is."""
    never: Callable[..., Awaitable[None]] = lambda *_: asyncio.Event().wait()  # type: ignore[assignment] # noqa: E731
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never, raising=False)
    one = End(1)
    one.peers.learn(BrokerId(2), HOST, 1)
    for number in range(limits.PEER_QUEUE_MESSAGES_MAX + 100):
        one.peers.send(heartbeat(1, 2, number))
    link = one.peers._links[BrokerId(2)]
    assert len(link._queue) == limits.PEER_QUEUE_MESSAGES_MAX
    assert link._queue[-1] == heartbeat(1, 2, limits.PEER_QUEUE_MESSAGES_MAX + 99)
    big = AppendRequest(
        term=1,
        source=peer(1),
        target=peer(2),
        previous_index=0,
        previous_term=0,
        entries=(Entry(1, 1, bytes(5 << 20)),),
        commit_index=0,
    )
    for _ in range(5):
        one.peers.send(big)
    assert 3 <= len(link._queue) <= 4
    assert link._queued_bytes <= limits.PEER_QUEUE_BYTES_MAX
    await one.stop()


def test_the_newest_word_on_an_address_comes_first_and_others_are_tried_in_turn() -> None:
    book = AddressBook()
    node = BrokerId(1)
    assert book.find(node, 0) is None
    for port in (1, 2, 3, 2):
        book.learn(node, Address(HOST, port))
    assert [book.find(node, attempt) for attempt in range(4)] == [Address(HOST, port) for port in (2, 3, 1, 2)]
    for number in range(limits.PEERS_MAX + 10):
        book.learn(BrokerId(number + 2), Address(HOST, 9))
    assert book.find(BrokerId(limits.PEERS_MAX + 11), 0) is None
    for port in range(10, 20):
        book.learn(node, Address(HOST, port))
    assert {book.find(node, attempt) for attempt in range(9)} == {Address(HOST, port) for port in range(16, 20)}
