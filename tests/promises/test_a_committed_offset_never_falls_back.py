"""Promises 1 and 4 for committed offsets, with real processes.

The coordinator is killed (kill -9) repeatedly, and at last all brokers, under consumers that commit. Acknowledged
offsets are there, and a later request never gets an older one. Members of librdkafka commit ever higher offsets, each
in a group of its own. Other clients ask for them all the time. The oracle is what they were told.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.load import QUIET
from tests.promises.support.records import ASKED_EVERY_S, DEADLINE_S, IMPATIENT, OPTIONS
from tests.threads import joined
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "t"
PARTITIONS: Final = 3
GROUPS: Final = 6
"""Each with a member that commits and a reader; they share the few partitions of the offsets topic."""
BEFORE_A_DEATH: Final = 40
"""Commits of each group that are acknowledged before the coordinator dies, and again after that."""
PAUSE_S: Final = 0.01
"""Of a reader, that others have the machine too."""
ALL: Final = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


class Looping:
    """A client that does one thing over and over in a thread of its own."""

    def __init__(self, bootstrap: str, group: str, **more: Any) -> None:
        options = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **QUIET, **IMPATIENT}
        options |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}
        del options["request.timeout.ms"]  # a producer's
        self.group = group
        self._client = confluent_kafka.Consumer(options | more)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{type(self).__name__} of {group}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        joined(self._thread)
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(KafkaException):  # refused or unanswered: what became of it is not known
                self.act()

    def act(self) -> None:
        raise NotImplementedError


class Committer(Looping):
    """The only member of its group."""

    def __init__(self, bootstrap: str, group: str) -> None:
        times = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
        super().__init__(bootstrap, group, **times)
        self._client.subscribe([TOPIC])
        self.tried = 0
        self.acknowledged = 0
        self._changed = threading.Condition()

    def act(self) -> None:
        self._client.poll(0)
        if not self._client.assignment():
            self._client.poll(0.05)
            return
        self.tried += 1
        offsets = [TopicPartition(TOPIC, number, self.tried) for number in range(PARTITIONS)]
        told = self._client.commit(offsets=offsets, asynchronous=False)
        if all(one.error is None for one in told):
            with self._changed:
                self.acknowledged = self.tried
                self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Until so many later commits than that of now are acknowledged. Fails after DEADLINE_S."""
        with self._changed:
            wanted = self.tried + more
            done = self._changed.wait_for(lambda: self.acknowledged >= wanted, DEADLINE_S)
        assert done, f"{self.group}: {self.acknowledged} of {wanted} acknowledged"


class Reader(Looping):
    """Asks what a group has committed, and compares it with what had been acknowledged before it asked."""

    def __init__(self, bootstrap: str, committer: Committer) -> None:
        super().__init__(bootstrap, committer.group)
        self._committer = committer
        self.asked = 0
        self.failures: list[str] = []

    def act(self) -> None:
        self._stopping.wait(PAUSE_S)
        before = self._committer.acknowledged
        found = self._client.committed(ALL, timeout=2.0)
        if any(one.error is not None for one in found):
            return
        self.asked += 1
        for one in found:
            if max(one.offset, 0) < before:
                self.failures.append(f"{self.group}: {one.partition}@{one.offset} after {before} was acknowledged")


async def coordinator(cluster: BrokerCluster, group: str) -> int:
    async with RawClient(str(cluster.address(1))) as client, asyncio.timeout(DEADLINE_S):
        while True:
            found = await client.ask(2, FindCoordinatorRequest(key=group))
            if found.error_code == 0:
                return int(found.node_id)
            await asyncio.sleep(ASKED_EVERY_S)  # its partition has no leader now


async def together(does: Callable[[Committer], None], committers: list[Committer]) -> None:
    await asyncio.gather(*(asyncio.to_thread(does, committer) for committer in committers))


def make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
        future.result(150)


def test_kill_9_of_the_coordinator_loses_no_commit_and_takes_none_back(tmp_path: Path, few_rounds: int) -> None:
    async def work() -> None:
        configs = ("--config", "offsets.topic.num.partitions=4", "--config", "group.initial.rebalance.delay.ms=0")
        cluster = BrokerCluster(tmp_path, 3, *OPTIONS, *configs)
        async with cluster:
            await cluster.start(*cluster.nodes)
            await asyncio.to_thread(make_topic, cluster.bootstrap)
            with ExitStack() as stack:
                committers = [
                    stack.enter_context(Committer(cluster.bootstrap, f"group {number}")) for number in range(GROUPS)
                ]
                readers = [stack.enter_context(Reader(cluster.bootstrap, one)) for one in committers]
                for number in range(few_rounds):
                    await together(lambda one: one.wait_for(BEFORE_A_DEATH), committers)
                    victim = await coordinator(cluster, committers[number % GROUPS].group)
                    print(f"round {number + 1} of {few_rounds}: kill -9 of {victim}", flush=True)
                    await cluster.kill(victim)
                    await together(lambda one: one.wait_for(BEFORE_A_DEATH), committers)
                    await cluster.start(victim)
                await cluster.kill(*cluster.nodes)
                await cluster.start(*cluster.nodes)
                await together(lambda one: one.wait_for(BEFORE_A_DEATH), committers)
                for reader in readers:
                    assert not reader.failures, reader.failures[:3]
                    assert reader.asked > 0
                told = sum(one.acknowledged for one in committers)
                print(f"judged: {told} commits, looked at {sum(one.asked for one in readers)} times", flush=True)

    loops.run(work())
