"""The answer to a heartbeat that has nothing to tell waits, so that a rebalance is heard of when it begins; never for
long, and never with anything behind it."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from headrace.broker import held_heartbeats
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.group_answers import PlainAnswer
from headrace.broker.group_shard import GroupShard
from headrace.broker.held_heartbeats import HeldHeartbeats
from headrace.broker.system import SystemClock, system_random
from headrace.coordinators.groups.events import HeartbeatReply
from headrace.coordinators.groups.model import Group, GroupState, Member, Protocol
from headrace.net.connection import Connection
from headrace.sim.loop import VirtualLoop
from headrace.storage.disk import LocalDisk
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.headers import decode_response_header
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.broker.group_broker import QUICK, RawClient, until
from tests.broker.test_groups_wire import find, join, join_request, sync

HEARTBEAT, LEAVE = 4, 5
NOTHING = HeartbeatReply(error=ErrorCode.NONE)
SESSION_MS = 10_000
HELD_MS_MAX = 2_000


def group(state: GroupState = GroupState.STABLE) -> Group:
    member = Member(
        id="m",
        client_id="c",
        client_host="h",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocols=(Protocol("range", b""),),
    )
    return Group(id="g", state=state, members={"m": member, "n": member})


class World:
    """Those that are kept back, on virtual time; what the group would say is what a test puts into `says`."""

    def __init__(self, held_ms_max: int = HELD_MS_MAX) -> None:
        self.loop = asyncio.get_running_loop()
        self.held = HeldHeartbeats(self._put, held_ms_max)
        self.connection = cast("Connection", SimpleNamespace(session={}, let_go=None))
        self.says: Any = HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS)
        self.put = 0

    def _put(self, group_id: str, build: object, waiting: Any) -> None:
        assert group_id == "g"
        self.put += 1
        waiting.set_result(self.says)

    def heard(self, told: Any = NOTHING, *, of: Group | None = None, member: str = "m") -> PlainAnswer | None:
        """The answer to a heartbeat, where it is kept back."""
        answer = PlainAnswer(lambda told: [str(told).encode()])
        answer.set_result(told)
        kept = self.held.keep(of or group(), member, answer, lambda _: pytest.fail("built"), self.connection)
        assert answer.done() is not kept
        return answer if kept else None

    async def waited(self, answer: PlainAnswer | None) -> float:
        """For how long it is kept back, in seconds."""
        assert answer is not None
        begun, over = self.loop.time(), asyncio.Event()
        answer.add_done_callback(lambda _: over.set())
        await over.wait()
        assert answer.told == NOTHING
        assert len(self.held) == 0
        return round(self.loop.time() - begun, 6)


def virtually(main: Callable[[], Awaitable[None]]) -> None:
    loop = VirtualLoop(random.Random(1))
    try:
        loop.run_until_complete(main())
    finally:
        loop.workers.close()
        loop.close()
    assert loop.failures == []


@pytest.mark.parametrize(
    ("interval_s", "held_ms_max", "seconds"),
    [(0.5, HELD_MS_MAX, 0.4), (3.0, HELD_MS_MAX, 1.0), (3.0, 700, 0.7), (100.0, 60_000, 1.0)],
    ids=["of the interval", "of the session", "of the operator", "of a slow member's session"],
)
def test_it_waits_for_a_part_of_the_interval_of_the_session_and_no_longer_than_is_allowed(
    interval_s: float, held_ms_max: int, seconds: float
) -> None:
    async def main() -> None:
        world = World(held_ms_max)
        assert world.heard() is None, "it is not known yet how often it is heard"
        for _ in range(3):
            await asyncio.sleep(interval_s)
            assert await world.waited(world.heard()) == seconds
            await asyncio.sleep(0)

    virtually(main)


def test_the_shortest_interval_counts_and_a_members_own() -> None:
    async def main() -> None:
        world = World()
        world.heard()
        await asyncio.sleep(0.1)
        assert await world.waited(world.heard()) == 0.08
        await asyncio.sleep(0.9)
        assert await world.waited(world.heard()) == 0.08
        assert world.heard(member="n") is None, "another member of the same connection"
        await asyncio.sleep(0.2)
        assert await world.waited(world.heard(member="n")) == 0.16

    virtually(main)


@pytest.mark.parametrize(
    "case",
    [
        {"told": HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS)},
        {"told": ErrorCode.NOT_COORDINATOR},
        {"of": group(GroupState.COMPLETING)},
        {"member": "unknown"},
    ],
    ids=lambda case: next(iter(case)),
)
def test_what_has_something_to_tell_does_not_wait(case: dict[str, Any]) -> None:
    async def main() -> None:
        world = World()
        for _ in range(3):
            assert world.heard(**case) is None
            await asyncio.sleep(1)
        assert World(0).heard() is None

    virtually(main)


def test_nobody_waits_where_the_operator_has_it_so() -> None:
    async def main() -> None:
        world = World(0)
        for _ in range(3):
            assert world.heard() is None
            await asyncio.sleep(1)

    virtually(main)


@pytest.mark.parametrize("after", [group(GroupState.PREPARING), group(GroupState.COMPLETING), None])
def test_a_group_that_rebalances_is_asked_again(after: Group | None) -> None:
    async def main() -> None:
        world = World()
        world.heard()
        await asyncio.sleep(1)
        answer = world.heard()
        assert answer is not None
        world.held.look("g", group())
        world.held.look("another", None)
        assert not answer.done()
        world.held.look("g", after)
        assert (answer.told, world.put, len(world.held)) == (world.says, 1, 0)
        await asyncio.sleep(60)
        assert answer.told == world.says, "the time is not up any more"

    virtually(main)


def test_who_is_gone_is_not_put_to_the_group_again() -> None:
    async def main() -> None:
        world = World()
        world.heard()
        await asyncio.sleep(1)
        answer = world.heard()
        assert answer is not None
        answer.cancel()
        world.held.look("g", None)
        assert world.put == 0

    virtually(main)


def test_all_are_told_at_the_end() -> None:
    async def main() -> None:
        world = World()
        world.heard()
        await asyncio.sleep(1)
        answer = world.heard()
        world.held.close(ErrorCode.NOT_COORDINATOR)
        assert answer is not None
        assert (answer.told, len(world.held)) == (ErrorCode.NOT_COORDINATOR, 0)

    virtually(main)


# with a broker


class Served(NamedTuple):
    broker: Broker
    shard: GroupShard
    client: RawClient
    joined: Any

    async def beat(self) -> None:
        assert (await self.client.ask(HEARTBEAT, self.heartbeat)).error_code == ErrorCode.NONE

    @property
    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest("g", self.joined.generation_id, self.joined.member_id)

    async def held(self) -> Any:
        """A heartbeat that is kept back, for how long nobody here waits."""
        await self.beat()
        codec = self.client.send(HEARTBEAT, self.heartbeat)
        await until(lambda: len(self.shard.heartbeats) == 1)
        return codec

    async def error(self, codec: Any) -> ErrorCode:
        body = await self.client.receive(HEARTBEAT, codec)
        return error_of(codec.decode_response(HEARTBEAT, body).error_code)


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Served]:
    """A broker and a group of one member, whose first heartbeat is answered and whose second is kept back."""
    configs = {**QUICK, "offsets.topic.num.partitions": "1", "group.heartbeat.held.max.ms": "30000"}
    config = BrokerConfig(data=directory, port=0, configs=configs)
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        broker = await stack.enter_async_context(
            Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk())
        )
        client = await stack.enter_async_context(RawClient(f"{broker.host}:{broker.port}"))
        await find(client)
        assert broker._parts is not None
        (shard,) = broker._parts._services.groups.shards
        joined = await join(client)
        assert (await sync(client, joined)).error_code == ErrorCode.NONE
        yield Served(broker, shard, client, joined)


@pytest.fixture(autouse=True)
def for_long(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """With a broker: until something happens."""
    if "tmp_path" in request.fixturenames:
        monkeypatch.setattr(held_heartbeats, "HEARTBEAT_HELD_PART", 1e9)
        monkeypatch.setattr(held_heartbeats, "HEARTBEAT_HELD_SESSION_PART", 1e9)


async def test_a_member_hears_at_once_that_another_has_come(tmp_path: Path) -> None:
    async with served(tmp_path) as w, RawClient(w.client.address) as other:
        codec = await w.held()
        told = await other.ask(9, join_request())
        other.send(9, join_request(member_id=told.member_id))
        assert await w.error(codec) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_member_that_is_taken_out_hears_it_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as w, RawClient(w.client.address) as admin:
        codec = await w.held()
        leaving = (MemberIdentity(member_id=w.joined.member_id),)
        await admin.ask(LEAVE, LeaveGroupRequest(group_id="g", members=leaving))
        assert await w.error(codec) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "later"])
async def test_nothing_waits_behind_it(tmp_path: Path, together: bool) -> None:
    async with served(tmp_path) as w:
        await w.beat()
        first = w.client.send(HEARTBEAT, w.heartbeat)
        if not together:
            await until(lambda: len(w.shard.heartbeats) == 1)
        second = w.client.send(LEAVE, LeaveGroupRequest(group_id="g", members=(MemberIdentity("nobody"),)))
        for codec, version, at in ((first, HEARTBEAT, 1), (second, LEAVE, 0)):
            (size,) = struct.unpack(">i", await w.client._reader.readexactly(4))
            answer = memoryview(await w.client._reader.readexactly(size))
            correlation, body = decode_response_header(codec.key, version, answer)
            assert correlation == w.client._sent - at
            assert codec.decode_response(version, answer[body:]).error_code == ErrorCode.NONE
        assert len(w.shard.heartbeats) == 0


async def test_a_connection_that_ends_keeps_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as w:
        await w.held()
        w.client._writer.transport.abort()
        async with RawClient(w.client.address) as admin:
            leaving = (MemberIdentity(member_id=w.joined.member_id),)
            told = await admin.ask(LEAVE, LeaveGroupRequest(group_id="g", members=leaving))
            assert told.members[0].error_code == ErrorCode.NONE
        assert len(w.shard.heartbeats) == 0


async def test_a_broker_that_stops_sends_members_elsewhere(tmp_path: Path) -> None:
    async with served(tmp_path) as w:
        codec = await w.held()
        stopping = asyncio.ensure_future(w.broker.stop())
        assert await w.error(codec) is ErrorCode.NOT_COORDINATOR
        await stopping


async def test_a_shard_that_is_lost_sends_members_elsewhere(tmp_path: Path) -> None:
    async with served(tmp_path) as w:
        codec = await w.held()
        w.shard.lose()
        assert await w.error(codec) is ErrorCode.NOT_COORDINATOR
