"""Promise: any broker may die at any moment, or all of them, and the cluster still knows all that it acknowledged.

Three real processes under topics that are made and deleted without a pause, through each of them; kill -9 of the
controller, of each in turn and of all at once. The oracle is on the client's side: what was acknowledged is there, what
was acknowledged as deleted is not, and every broker tells the same.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.net import loops
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest
from tests.broker.group_broker import RawClient
from tools.broker_cluster import BrokerCluster

BROKERS: Final = (1, 2, 3)
BEFORE_EACH_KILL: Final = 20
"""Acknowledgements that are waited for, so that a kill meets a busy cluster."""
DEADLINE_S: Final = 90.0
Victims = int | str


@dataclass(slots=True)
class Ledger:
    """What was acknowledged. A change whose answer was lost may have happened or not. Right after all were killed a
    topic may be refused because no broker is live yet; any other refusal is a mistake."""

    made: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    deletion_unknown: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    count: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def acknowledged(self) -> None:
        async with self.changed:
            self.count += 1
            self.changed.notify_all()

    async def wait_for(self, more: int) -> None:
        wanted = self.count + more
        async with self.changed, asyncio.timeout(DEADLINE_S):
            await self.changed.wait_for(lambda: self.count >= wanted)


class Writer:
    """Makes topics through one broker, and deletes every third, until stopped; through every death of it."""

    def __init__(self, cluster: BrokerCluster, broker: int, ledger: Ledger) -> None:
        self._address = str(cluster.address(broker))
        self._broker = broker
        self._ledger = ledger
        self._names = (f"from-{broker}-{number}" for number in itertools.count())
        self._stopping = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        self._stopping.set()
        await self.task

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with RawClient(self._address) as client:
                    while not self._stopping.is_set():
                        await self._make_three(client)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.wait([asyncio.ensure_future(self._stopping.wait())], timeout=0.02)  # it was killed

    async def _make_three(self, client: RawClient) -> None:
        names = [next(self._names) for _ in range(3)]
        for name in names:
            if await self._change(name, create(client, name)):
                self._ledger.made.add(name)
                await self._ledger.acknowledged()
        last = names[-1]
        if last in self._ledger.made:
            self._ledger.made.remove(last)
            self._ledger.deletion_unknown.add(last)
            if await self._change(last, delete(client, last)):
                self._ledger.deletion_unknown.remove(last)
                self._ledger.deleted.add(last)
                await self._ledger.acknowledged()

    async def _change(self, name: str, work: Awaitable[int]) -> bool:
        """Whether it was acknowledged. What a client would ask again for is not asked again here: it is unknown."""
        code = error_of(await work)
        if code is not ErrorCode.NONE and not code.retriable and code is not ErrorCode.BROKER_NOT_AVAILABLE:
            self._ledger.refused.append(f"{name}: {code.name}")
        return code is ErrorCode.NONE


async def create(client: RawClient, name: str) -> int:
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000))).topics
    return int(made.error_code)


async def delete(client: RawClient, name: str) -> int:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=10_000)
    (gone,) = (await client.ask(6, request)).responses
    return int(gone.error_code)


async def told_by(cluster: BrokerCluster, broker: int) -> dict[str, Any]:
    """Every topic as this broker has it, once it has replayed all that was committed before this call."""
    async with asyncio.timeout(DEADLINE_S), RawClient(str(cluster.address(broker))) as client:
        while await create(client, "barrier") not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            pass  # until there is a controller: each question waits for one
        response = await client.ask(12, MetadataRequest(topics=None))
        return {topic.name: topic for topic in response.topics}


def victims(rounds: int) -> Sequence[Victims]:
    return list(itertools.islice(itertools.cycle(("controller", "all", 2, 1, "controller", 3)), rounds))


def test_kill_9_of_any_broker_or_all_loses_no_acknowledged_change(tmp_path: Path, rounds: int) -> None:
    loops.run(_killed_again_and_again(tmp_path, rounds))


async def _killed_again_and_again(directory: Path, rounds: int) -> None:
    ledger = Ledger()
    async with BrokerCluster(directory, len(BROKERS), "--json") as cluster:
        await cluster.start(*BROKERS)
        writers = [Writer(cluster, broker, ledger) for broker in BROKERS]
        for victim in victims(rounds):
            await ledger.wait_for(BEFORE_EACH_KILL)
            killed = await _whom(cluster, victim)
            await cluster.kill(*killed)
            if len(killed) == 1:
                await ledger.wait_for(BEFORE_EACH_KILL)  # the others go on
            await cluster.start(*killed)
        await ledger.wait_for(BEFORE_EACH_KILL)
        for writer in writers:
            await writer.stop()
        await _check(cluster, ledger)
        await cluster.kill(*BROKERS)
        await cluster.start(*BROKERS)
        await _check(cluster, ledger)
        assert await cluster.stop(*BROKERS) == [0, 0, 0]


async def _whom(cluster: BrokerCluster, victim: Victims) -> list[int]:
    if victim == "all":
        return list(BROKERS)
    if victim == "controller":
        async with RawClient(str(cluster.address(1))) as client:
            return [(await client.ask(12, MetadataRequest(topics=()))).controller_id]
    return [int(victim)]


async def _check(cluster: BrokerCluster, ledger: Ledger) -> None:
    images = [await told_by(cluster, broker) for broker in BROKERS]
    assert images[0] == images[1] == images[2], "all brokers tell the same"
    assert ledger.made - images[0].keys() == set(), "acknowledged, and not there"
    assert ledger.deleted & images[0].keys() == set(), "acknowledged as deleted, and there"
    assert ledger.refused == []
