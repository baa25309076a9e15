"""The cost of a classic group's rebalance for the event loop: `python -m benchmarks.micro.rebalance [--members 100]`.

A whole broker runs in this process, on the loop that brokers use. Each member's requests come as a socket would bring
them, a few members in each turn of the loop. They go to a connection of its own whose transport keeps its output. The
leader joins a stable group again, and the others learn of it by a heartbeat, join and sync.

Prints, for each phase, the loop's processor time for one request, in us: the median of the rebalances, and the least.
It prints these also for the bare state machine, without driver and wire. There are no sockets, so the kernel's work for
them is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random, tune_interpreter
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer.model import Topics
from headrace.coordinators.groups.machine import step
from headrace.coordinators.groups.model import Group, GroupState, Moment, Protocol
from headrace.net.loops import run
from headrace.net.server.connection import Connection
from headrace.net.server.listener import Listener
from headrace.storage.disk import LocalDisk
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_response_header, encode_request_frame
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.group_broker import QUICK, RawClient
from tests.broker.groups.test_wire import find

MEMBERS: Final = 100
REBALANCES: Final = 30
WARM_UP: Final = 5
PER_TURN: Final = 8
"""Members whose requests come in one turn of the loop."""
VERSIONS: Final = {ApiKey.JOIN_GROUP: 9, ApiKey.SYNC_GROUP: 5, ApiKey.HEARTBEAT: 4}
SUBSCRIPTION: Final = bytes(20)
SHARE: Final = bytes(30)
PATIENCE_S: Final = 60.0
PHASES: Final = ("heartbeat", "join", "joined", "sync", "synced")
"""To the answer; until it waits; from the last one's until all are answered; and the last two again."""


class Kept(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.has_written = asyncio.Event()
        self._connection = connection
        self._lost = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written.append(data)
        self.has_written.set()

    def writelines(self, list_of_data: Any) -> None:
        self.written += list_of_data
        self.has_written.set()

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def abort(self) -> None:
        if not self._lost:
            self._lost = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Member:
    """One connection, and who speaks on it."""

    def __init__(self, listener: Listener) -> None:
        self.connection = Connection(listener)
        self.transport = Kept(self.connection)
        self.connection.connection_made(self.transport)
        self.id = ""
        self.generation = -1
        self.members: tuple[str, ...] = ()

    def answer(self, key: ApiKey) -> Any:
        data = memoryview(b"".join(bytes(part) for part in self.transport.written))[4:]
        self.transport.written.clear()
        self.transport.has_written.clear()
        version = VERSIONS[key]
        _, at = decode_response_header(int(key), version, data)
        return codec(key).decode_response(version, data[at:])

    def heartbeat(self) -> bytes:
        return framed(ApiKey.HEARTBEAT, HeartbeatRequest("g", self.generation, self.id))

    def join(self) -> bytes:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol("range", SUBSCRIPTION),),
        )
        return framed(ApiKey.JOIN_GROUP, request)

    def sync(self) -> bytes:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(SyncGroupRequestAssignment(member_id, SHARE) for member_id in self.members),
        )
        return framed(ApiKey.SYNC_GROUP, request)

    def on_joined(self) -> None:
        told = self.answer(ApiKey.JOIN_GROUP)
        assert told.error_code == ErrorCode.NONE, told
        self.generation, self.members = told.generation_id, tuple(one.member_id for one in told.members)


def codec(key: ApiKey) -> Api:
    found = api(int(key))
    assert found is not None
    return found


def framed(key: ApiKey, request: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_request_frame(codec(key), VERSIONS[key], 1, "micro", request))


class Meter:
    """Processor time of this thread, by phase, in us for one request."""

    def __init__(self, requests: int) -> None:
        self.found: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self._requests = requests

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun = time.thread_time()
        yield
        self.found[name].append(1e6 * (time.thread_time() - begun) / self._requests)

    def report(self, title: str) -> None:
        print(title)
        for phase, taken in self.found.items():
            print(f"  {phase:10} {statistics.median(taken):6.1f} us (least {min(taken):.1f})")
        print(f"  {'in all':10} {sum(map(statistics.median, self.found.values())):6.1f} us")


async def came(members: list[Member], frames: list[bytes]) -> None:
    """A few in each turn of the loop."""
    for at in range(0, len(members), PER_TURN):
        for member, frame in zip(members[at : at + PER_TURN], frames[at : at + PER_TURN], strict=True):
            member.connection.data_received(frame)
        await asyncio.sleep(0)


async def answered(members: list[Member]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for member in members:
            await member.transport.has_written.wait()


async def enter(members: list[Member]) -> None:
    """A stable group of all of them."""
    for key in (1, 2):
        await came(members, [member.join() for member in members])
        await answered(members[:1] if key == 1 else members)
        if key == 1:
            await answered(members)
            for member in members:
                member.id = member.answer(ApiKey.JOIN_GROUP).member_id
    for member in members:
        member.on_joined()


async def settle(members: list[Member], meter: Meter) -> None:
    """From the answers of JoinGroup on: all have their shares."""
    leaders = [member for member in members if member.members]
    others = [member for member in members if not member.members]
    (leader,) = leaders
    frames = [member.sync() for member in others]
    with meter.phase("sync"):
        await came(others, frames)
    frames = [leader.sync()]
    with meter.phase("synced"):
        await came(leaders, frames)
        await answered(members)
    for member in members:
        told = member.answer(ApiKey.SYNC_GROUP)
        assert (told.error_code, bytes(told.assignment)) == (ErrorCode.NONE, SHARE), told


async def rebalance(members: list[Member], meter: Meter) -> None:
    leader = next(member for member in members if member.members)
    others = [member for member in members if member is not leader]
    await came([leader], [leader.join()])
    frames = [member.heartbeat() for member in others]
    with meter.phase("heartbeat"):
        await came(others, frames)
        await answered(others)
    for member in others:
        assert member.answer(ApiKey.HEARTBEAT).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    frames = [member.join() for member in others]
    with meter.phase("join"):
        await came(others[:-1], frames[:-1])
    with meter.phase("joined"):
        await came(others[-1:], frames[-1:])
        await answered(members)
    for member in members:
        member.on_joined()
    await settle(members, meter)


async def whole(directory: Path, count: int) -> None:
    configs = {**QUICK, "offsets.topic.num.partitions": "1"}
    config = BrokerConfig(data=directory, port=0, configs=configs)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        async with RawClient(f"{broker.host}:{broker.port}") as client:
            await find(client)
        assert broker._parts is not None
        members = [Member(broker._parts.requests.listener) for _ in range(count)]
        await enter(members)
        await settle(members, Meter(count))
        tune_interpreter()
        meter = Meter(count)
        for at in range(WARM_UP + REBALANCES):
            await rebalance(members, Meter(count) if at < WARM_UP else meter)
        meter.report(f"{count} members, the whole road but for the sockets")
        for member in members:
            member.transport.abort()


class Nothing:
    """`Topics`: there are none."""

    version = 0

    def shape(self, name: str) -> None:
        return None

    def name(self, topic_id: object) -> None:
        return None

    def matching(self, pattern: str) -> frozenset[str]:
        return frozenset()

    def visible(self, sight: object) -> frozenset[str]:
        return frozenset()


class Machine:
    """The state machine alone."""

    def __init__(self, count: int) -> None:
        self.group: Group | None = None
        self.told: dict[int, Any] = {}
        self._now = Moment(0, 0)
        self._config = GroupConfig(group_initial_rebalance_delay_ms=0)
        self._topics: Topics = Nothing()
        self.count = count

    def send(self, event: ev.Event) -> None:
        self.group, effects = step("g", self.group, event, self._now, self._config, self._topics)
        for effect in effects:
            if isinstance(effect, ev.Reply):
                self.told[effect.waiter] = effect.reply
            elif isinstance(effect, ev.Append):
                self.send(ev.Written(write=effect.write))

    def join(self, at: int) -> ev.Join:
        return ev.Join(at, f"member-{at}", "", True, "c", "/h", 45_000, 300_000, "consumer", (_RANGE,))

    def enter(self) -> None:
        for at in range(self.count):
            self.send(self.join(at)._replace(member_id="", new_member_id=f"member-{at}", require_known_id=False))
        for at in range(1, self.count):  # the first was alone in the generation before
            self.send(self.join(at))
        self.send(self.join(0))
        self.share(Meter(self.count))

    def share(self, meter: Meter) -> None:
        assert self.group is not None
        generation, ids = self.group.generation, list(self.group.members)
        syncs = [ev.Sync(at, f"member-{at}", generation, {}) for at in range(1, self.count)]
        with meter.phase("sync"):
            for event in syncs:
                self.send(event)
        with meter.phase("synced"):
            self.send(ev.Sync(0, "member-0", generation, dict.fromkeys(ids, SHARE)))
        assert self.group.state is GroupState.STABLE, "all are served"

    def rebalance(self, meter: Meter) -> None:
        assert self.group is not None
        self.send(self.join(0))
        generation = self.group.generation
        beats = [ev.Heartbeat(at, f"member-{at}", generation) for at in range(1, self.count)]
        with meter.phase("heartbeat"):
            for event in beats:
                self.send(event)
        joins = [self.join(at) for at in range(1, self.count)]
        with meter.phase("join"):
            for join in joins[:-1]:
                self.send(join)
        with meter.phase("joined"):
            self.send(joins[-1])
        self.share(meter)


_RANGE: Final = Protocol("range", SUBSCRIPTION)


def bare(count: int) -> None:
    machine, meter = Machine(count), Meter(count)
    machine.enter()
    for at in range(WARM_UP + REBALANCES):
        machine.rebalance(Meter(count) if at < WARM_UP else meter)
    meter.report(f"{count} members, the state machine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=MEMBERS)
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    bare(chosen.members)
    with tempfile.TemporaryDirectory() as directory:
        run(whole(Path(directory), chosen.members))


if __name__ == "__main__":
    main()
