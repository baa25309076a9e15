"""Both paths of JoinGroup, SyncGroup and Heartbeat answer alike and leave equal logs, to the byte. The short path is
compared with the long one, which has all rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import pytest

from headrace.base.ports import Random as RandomPort
from headrace.broker import parts
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.groups.shard import GroupShard
from headrace.broker.handlers import all_handlers, plain_groups
from headrace.broker.handlers.group_answers import PlainAnswer
from headrace.broker.system import SystemClock
from headrace.storage.disk import LocalDisk
from headrace.wire.apis import Api
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.group_broker import QUICK, RawClient, until
from tests.broker.groups.test_consumer_groups_wire import joining
from tests.broker.groups.test_wire import find, join_request

STAYS_MS = 1_700_000_000_000
SYNC, HEARTBEAT, LEAVE = 5, 4, 5


class Stopped(SystemClock):
    """A stopped clock, so that both brokers write equal times."""

    def now_ms(self) -> int:
        return STAYS_MS


class World(NamedTuple):
    broker: Broker
    shard: GroupShard
    clients: list[RawClient]
    answers: list[tuple[Any, bytes]]
    """Each request with the body of its answer."""

    @property
    def log(self) -> bytes:
        log = self.shard.partition.log
        return bytes(self.shard.partition.read(log.log_start_offset, 1 << 20, committed_only=True, at_least_one=True))

    @property
    def errors(self) -> Counter[tuple[int, int]]:
        """As the broker counts them."""
        assert self.broker._parts is not None
        assert self.broker._parts.counts is not None
        return self.broker._parts.counts.requests.errors

    async def ask(self, version: int, request: Any, client: int = 0) -> Any:
        codec = self.clients[client].send(version, request)
        return await self.told(version, request, codec, client)

    async def park(self, version: int, request: Any, client: int) -> Api:
        """Until it waits for others."""
        waiting = len(self.shard._waiters)
        codec = self.clients[client].send(version, request)
        await until(lambda: len(self.shard._waiters) > waiting)
        return codec

    async def told(self, version: int, request: Any, codec: Api, client: int) -> Any:
        body = await self.clients[client].receive(version, codec)
        self.answers.append((request, bytes(body)))
        return codec.decode_response(version, body)


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    """A broker that does the same each time, and three connections to it."""
    configs = {**QUICK, "offsets.topic.num.partitions": "1", "metrics.listen": "127.0.0.1:0"}
    config = BrokerConfig(data=directory, port=0, configs=configs)
    chance = cast("RandomPort", Random(7))
    async with AsyncExitStack() as stack, asyncio.timeout(150):
        broker = await stack.enter_async_context(Broker(config, clock=Stopped(), random=chance, disk=LocalDisk()))
        address = f"{broker.host}:{broker.port}"
        clients = [await stack.enter_async_context(RawClient(address, name)) for name in ("raw", "app" * 40, "ü")]
        await clients[0].create_topic("t", 2)
        await find(clients[0])
        assert broker._parts is not None
        (shard,) = broker._parts.requests.services.groups.shards
        yield World(broker, shard, clients, [])


def syncing(joined: Any, *shares: tuple[str, bytes], group: str = "g", **fields: Any) -> SyncGroupRequest:
    asked = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=tuple(SyncGroupRequestAssignment(*share) for share in shares),
    )
    return asked._replace(**fields)


def beating(joined: Any, group: str = "g", **fields: Any) -> HeartbeatRequest:
    return HeartbeatRequest(group, joined.generation_id, joined.member_id)._replace(**fields)


async def entered(w: World, version: int, client: int, **fields: Any) -> JoinGroupRequest:
    """The request to join with the id that one is told."""
    told = await w.ask(version, join_request(**fields), client)
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return join_request(member_id=told.member_id, **fields)


async def alone(w: World, version: int) -> Any:
    """One member, and all that can be asked wrongly."""
    request = await entered(w, version, 0, reason="first" if version >= 8 else None)
    joined = await w.ask(version, request)
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
    await w.ask(HEARTBEAT, beating(joined))
    await w.ask(SYNC, syncing(joined, protocol_name="another"))
    synced = await w.ask(SYNC, syncing(joined, (joined.member_id, b"all" * 100), ("nobody", b"")))
    assert synced.assignment == b"all" * 100
    await w.ask(SYNC, syncing(joined))
    for group in ("g", "nobody", "", "g" * 126, "g" * 127, "g" * 9_000, "ü"):
        for member_id in (joined.member_id, "", "another", "m" * 127, "ü"):
            who: dict[str, Any] = {"group_id": group, "member_id": member_id}
            for instance_id in (None, "one"):
                for generation in (1, 2):
                    more = {**who, "generation_id": generation, "group_instance_id": instance_id}
                    if instance_id is not None or member_id != joined.member_id:
                        await w.ask(HEARTBEAT, beating(joined, **more))
                        await w.ask(SYNC, syncing(joined, **more))
    for fields in (
        {"session_timeout_ms": 1},
        {"member_id": "nobody"},
        {"group": ""},
        {"group": "g" * 9_000},
        {"protocol_type": ""},
        {"protocol_type": "p" * 9_000},
        {"protocol_type": "another"},
        {"group_instance_id": "one", "member_id": "nobody"},
        {"group_instance_id": "i" * 127, "member_id": "nobody"},
    ):
        await w.ask(version, join_request(**fields))
    for protocols in ((), (JoinGroupRequestProtocol("roundrobin", b""),)):
        await w.ask(version, join_request()._replace(protocols=protocols))
    assert (await w.ask(HEARTBEAT, beating(joined))).error_code == ErrorCode.NONE
    return joined


async def together(w: World, version: int, first: Any) -> None:
    """A second and a third one come, and all share out twice; then they go."""
    joins = {0: join_request(member_id=first.member_id)}
    for client in (1, 2):
        joins[client] = await entered(w, version, client)
        codec = await w.park(version, joins[client], client)
        told = await w.ask(HEARTBEAT, beating(first))
        assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        for other in range(1, client):
            await w.park(version, joins[other], other)
        joined = {0: await w.ask(version, joins[0])}
        for other in range(1, client + 1):
            joined[other] = await w.told(version, joins[other], codec, other)
        first = joined[0]
        assert first.leader == first.member_id
        assert [len(joined[other].members) for other in joined] == [client + 1] + client * [0]
        syncs = {other: syncing(joined[other]) for other in range(1, client + 1)}
        for other, request in syncs.items():
            codec = await w.park(SYNC, request, other)
        shares = [(joined[other].member_id, bytes([other]) * 200) for other in joined]
        await w.ask(SYNC, syncing(first, *shares))
        for other, request in syncs.items():
            assert (await w.told(SYNC, request, codec, other)).assignment == bytes([other]) * 200
            assert (await w.ask(HEARTBEAT, beating(joined[other]), other)).error_code == ErrorCode.NONE
    leaving = tuple(MemberIdentity(member_id=each.member_id) for each in joined.values())
    await w.ask(LEAVE, LeaveGroupRequest(group_id="g", members=leaving))
    for each in joined.values():
        assert (await w.ask(HEARTBEAT, beating(each))).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def static(w: World, version: int) -> None:
    """A member that comes back under its own name; the one of before is fenced."""
    before = await w.ask(version, join_request("s", group_instance_id="one"))
    await w.ask(SYNC, syncing(before, (before.member_id, b"mine"), group="s", group_instance_id="one"))
    after = await w.ask(version, join_request("s", group_instance_id="one"))
    assert after.member_id != before.member_id
    for each in (before, after):
        await w.ask(HEARTBEAT, beating(each, "s", group_instance_id="one"))
        await w.ask(SYNC, syncing(each, group="s", group_instance_id="one"))
        await w.ask(version, join_request("s", each.member_id, group_instance_id="one"))


async def of_the_new_protocol(w: World, version: int) -> None:
    """Classic requests to a group of KIP-848."""
    await w.ask(1, joining("new"))
    told = await w.ask(version, join_request("new"))
    await w.ask(HEARTBEAT, beating(told, "new"))
    await w.ask(SYNC, syncing(told, group="new"))
    await w.ask(version, join_request("new", "m"))


class Outcome(NamedTuple):
    answers: list[tuple[Any, bytes]]
    log: bytes
    errors: Counter[tuple[int, int]]


async def outcome(directory: Path, version: int) -> Outcome:
    async with world(directory) as w:
        await together(w, version, await alone(w, version))
        await static(w, version)
        await of_the_new_protocol(w, version)
        return Outcome(w.answers, w.log, w.errors.copy())


@pytest.mark.parametrize("version", [7, 9])
async def test_both_roads_lead_to_the_same_place(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: Counter[tuple[str, bool]] = Counter()
    serve = plain_groups._Road.serve

    def counted(self: Any, frame: memoryview, connection: Any) -> Any:
        answer = serve(self, frame, connection)
        taken[self._key.name, answer is not None] += 1
        return answer

    monkeypatch.setattr(plain_groups._Road, "serve", counted)
    short = await outcome(tmp_path / "short", version)
    for api, least in (("JOIN_GROUP", 15), ("SYNC_GROUP", 50), ("HEARTBEAT", 50)):
        assert taken[api, True] >= least, "the short road is taken"
        assert taken[api, False] >= 3, "and left"
    monkeypatch.setattr(parts, "OFFERED", tuple(replace(handler, shortcuts=None) for handler in all_handlers()))
    taken.clear()
    long = await outcome(tmp_path / "long", version)
    assert not taken
    for (request, told), (_, expected) in zip(short.answers, long.answers, strict=True):
        assert told == expected, request
    assert short.log == long.log
    assert short.errors == long.errors
    assert short.errors.total() > 100


async def test_who_hangs_up_while_it_waits_is_told_nothing(tmp_path: Path) -> None:
    """The group goes on with it, until its session ends."""
    async with world(tmp_path) as w:
        request = await entered(w, 9, 0)
        first = await w.ask(9, request)
        await w.park(9, await entered(w, 9, 1), 1)
        w.clients[1]._writer.close()
        await w.clients[1]._writer.wait_closed()
        joined = await w.ask(9, request)
        assert joined.error_code == ErrorCode.NONE
        assert len(joined.members) == 2
        assert (await w.ask(HEARTBEAT, beating(first))).error_code == ErrorCode.ILLEGAL_GENERATION
        assert len(w.shard._waiters) == 0


def test_nobody_is_told_what_was_cancelled() -> None:
    told: list[Any] = []
    answer = PlainAnswer(lambda _: [b""])
    answer.add_done_callback(told.append)
    answer.cancel()
    assert answer.done()
    answer.set_result(ErrorCode.NONE)
    assert not told


async def test_who_is_refused_by_a_group_that_moved_is_told_its_own_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.ask(9, join_request("g"))
        w.shard.lose()
        refused = await w.ask(9, join_request("g", "mine"))
        assert refused.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert refused.member_id == "mine"
