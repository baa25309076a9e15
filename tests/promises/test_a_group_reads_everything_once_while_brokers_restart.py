"""Promises 1 and 4 for members of a group, with real processes.

Twenty consumers of Kafka's Java client, with every assignor of both protocols, read and commit. In the short tier there
are six, of one group. Meanwhile the brokers are restarted one after the other, their coordinator is killed (SIGKILL),
and so are half of the consumers. Every acknowledged record is read, and none is read again once its commit was
acknowledged. A static member that returns soon disturbs nobody (KIP-345).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests import loops
from tests.interop import java_project
from tests.promises.support.load import QUIET, Producer
from tests.promises.support.members import KINDS, Members
from tests.promises.support.readings import Readings
from tests.promises.support.records import IMPATIENT, OPTIONS
from tests.promises.test_a_committed_offset_never_falls_back import coordinator
from tests.tiers import IS_LONG, of_tier
from tools.servers.broker_cluster import BrokerCluster

PARTITIONS: Final = 24
MEMBERS: Final = of_tier(short=6, long=20)
"""Of all groups of a round together, in two processes for each group."""
BURST: Final = 200
UNFILLED: Final = {**IMPATIENT, "linger.ms": 2}
"""Of producers whose bursts fill no batch of so many partitions: nothing waits for the next burst."""
BETWEEN: Final = 400
"""Records that each group reads before the next thing is done to it."""
CONFIGS: Final = (
    "offsets.topic.num.partitions=4",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.heartbeat.interval.ms=500",
)
FIRST: Final = ("cooperative-sticky", "consumer-static") if IS_LONG else ("consumer-static",)
ROUNDS: Final = (FIRST, *((kind,) for kind in KINDS))
"""The groups of each round."""


@dataclass(slots=True, kw_only=True)
class Group:
    """One group and its members, half of them in the first process and half in the second."""

    name: str
    kind: str
    size: int
    bootstrap: str
    topic: str
    readings: Readings = field(init=False)
    processes: list[Members] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.readings = Readings(PARTITIONS, one_reader=KINDS[self.kind].is_classic)

    def begin(self, stack: ExitStack, name: str, first: int) -> Members:
        """Half of the members."""
        members = Members(
            self.bootstrap,
            self.topic,
            self.name,
            KINDS[self.kind],
            self.readings,
            name=name,
            first=first,
            count=self.size // 2,
        )
        self.processes.append(stack.enter_context(members))
        return members

    def restart_static(self) -> None:
        """One of static members comes back within its session: everybody goes on in the same generation."""
        before = self.readings.wait_until_shared(self.size)
        closed, assignments = self.readings.closed, self.readings.assignments
        self.processes[0].restart(0)
        self.readings.wait_for(lambda: self.readings.closed > closed, "a member closes")
        self.readings.wait_until_shared(self.size)
        self.readings.wait_for_records(BETWEEN)
        after = self.readings.wait_until_shared(self.size)
        assert (after, self.readings.assignments) == (before, assignments + 1), "a static member's return was noticed"

    def kill_half(self) -> None:
        """SIGKILL."""
        self.processes.pop().kill()

    def replace_half(self, stack: ExitStack) -> None:
        """Others come. A static member of the new protocol is not let in before its former life is out."""
        if KINDS[self.kind] is KINDS["consumer-static"]:
            self.readings.wait_until_shared(self.size // 2)
        self.begin(stack, "c", self.size // 2)
        self.readings.wait_until_shared(self.size)

    def judge(self, producer: Producer) -> str:
        """Everything is read and committed; all members leave."""
        log = producer.whole_log()
        self.readings.wait_until_committed(log)
        closed = self.readings.closed
        for members in self.processes:
            members.stop()
        assert self.readings.closed - closed == self.size
        found = self.readings.check(log)
        return (
            f"{self.kind}: {found.records} records, {found.again} of them read again, {found.refused} commits refused, "
            f"{found.generations} generations"
        )


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    wanted = NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([wanted])[topic].result(150)


async def each(does: str, groups: list[Group], *arguments: object) -> None:
    """For all groups at once, in threads."""
    await asyncio.gather(*(asyncio.to_thread(getattr(group, does), *arguments) for group in groups))


async def go_on(groups: list[Group]) -> None:
    await asyncio.gather(*(asyncio.to_thread(group.readings.wait_for_records, BETWEEN) for group in groups))


async def one_round(cluster: BrokerCluster, number: int) -> None:
    times = [time.monotonic()]
    kinds, topic = ROUNDS[number % len(ROUNDS)], f"topic-{number}"
    await asyncio.to_thread(make_topic, cluster.bootstrap, topic)
    groups = [
        Group(name=f"{kind}-{number}", kind=kind, size=MEMBERS // len(kinds), bootstrap=cluster.bootstrap, topic=topic)
        for kind in kinds
    ]
    with ExitStack() as stack:
        producer = stack.enter_context(
            Producer(cluster.bootstrap, topic, idempotent=True, burst=BURST, partitions=PARTITIONS, **UNFILLED)
        )
        for group in groups:
            group.begin(stack, "a", 0)
            group.begin(stack, "b", group.size // 2)
        await asyncio.gather(*(asyncio.to_thread(group.readings.wait_until_shared, group.size) for group in groups))
        times.append(time.monotonic())
        await each("restart_static", [group for group in groups if KINDS[group.kind].static])
        times.append(time.monotonic())
        for broker in cluster.nodes:
            assert await cluster.stop(broker) == [0]
            await asyncio.gather(go_on(groups), cluster.start(broker))
            await go_on(groups)
        times.append(time.monotonic())
        victim = await coordinator(cluster, groups[0].name)
        await asyncio.gather(cluster.kill(victim), each("kill_half", groups))
        await asyncio.gather(go_on(groups), cluster.start(victim))
        await each("replace_half", groups, stack)
        times.append(time.monotonic())
        await asyncio.to_thread(producer.stop)
        told = producer.acknowledged
        assert (told.count, told.failures, told.twice) == (producer.sent, [], [])
        for group in groups:
            print(await asyncio.to_thread(group.judge, producer), flush=True)
    times.append(time.monotonic())
    steps = " ".join(f"{after - before:.1f}" for before, after in itertools.pairwise(times))
    print(f"round {number + 1}: kill -9 of {victim}, {times[-1] - times[0]:.1f} s ({steps})", flush=True)


@pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)
def test_every_record_is_read_and_none_again_once_committed(tmp_path: Path, few_rounds: int) -> None:
    async def work() -> None:
        configs = itertools.chain.from_iterable(("--config", config) for config in CONFIGS)
        async with BrokerCluster(tmp_path, 3, *OPTIONS, *configs) as cluster:
            await cluster.start(*cluster.nodes)
            for number in range(few_rounds):
                await one_round(cluster, number)

    loops.run(work())
