"""Topics that are created and deleted without a pause, through each broker of a cluster, and the answers.

These answers are the oracle of the promises about what a cluster knows. It knows nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest
from tests.broker.group_broker import RawClient
from tools.servers.broker_cluster import BrokerCluster

DEADLINE_S: Final = 150.0
PATIENCE_MS: Final = 10_000
"""For which a broker may look for a controller before it refuses."""


@dataclass(slots=True)
class Ledger:
    """The acknowledged changes. A change whose answer was lost may have happened or not. Right after all were killed a
    topic may be refused because no broker is live yet. Any other refusal that no client retries is a mistake."""

    made: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    deletion_unknown: set[str] = field(default_factory=set)
    mistakes: list[str] = field(default_factory=list)
    acknowledged: Counter[int] = field(default_factory=Counter)
    """By the broker that was asked, as all that follows."""
    refused: Counter[int] = field(default_factory=Counter)
    """With an error that a client retries."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def note(self, counter: Counter[int], broker: int) -> None:
        async with self.changed:
            counter[broker] += 1
            self.changed.notify_all()

    async def wait_for(self, more: int, *, through: Iterable[int] | None = None) -> None:
        """So many more acknowledgements than now: in all, or through each of these brokers."""
        if through is None:
            wanted = self.acknowledged.total() + more
            await self._until(lambda: self.acknowledged.total() >= wanted)
            return
        each = {broker: self.acknowledged[broker] + more for broker in through}
        await self._until(lambda: all(self.acknowledged[broker] >= count for broker, count in each.items()))

    async def wait_for_refusals(self, more: int, *, through: int) -> None:
        """So many more than now that a client retries."""
        wanted = self.refused[through] + more
        await self._until(lambda: self.refused[through] >= wanted)

    async def _until(self, holds: Any) -> None:
        async with self.changed, asyncio.timeout(DEADLINE_S):
            await self.changed.wait_for(holds)

    def check(self, image: dict[str, Any]) -> None:
        assert self.made - image.keys() == set(), "acknowledged, and not there"
        assert self.deleted & image.keys() == set(), "acknowledged as deleted, and there"
        assert self.mistakes == []


class Writer:
    """Makes topics through one broker, and deletes every third, until stopped; through every death of it."""

    def __init__(self, cluster: BrokerCluster, broker: int, ledger: Ledger, *, patience_ms: int = PATIENCE_MS) -> None:
        self._address = str(cluster.address(broker))
        self._broker = broker
        self._ledger = ledger
        self._patience_ms = patience_ms
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
        ledger = self._ledger
        names = [next(self._names) for _ in range(3)]
        for name in names:
            if await self._change(name, create(client, name, self._patience_ms)):
                ledger.made.add(name)
                await ledger.note(ledger.acknowledged, self._broker)
        last = names[-1]
        if last in ledger.made:
            ledger.made.remove(last)
            ledger.deletion_unknown.add(last)
            if await self._change(last, delete(client, last, self._patience_ms)):
                ledger.deletion_unknown.remove(last)
                ledger.deleted.add(last)
                await ledger.note(ledger.acknowledged, self._broker)

    async def _change(self, name: str, work: Awaitable[int]) -> bool:
        """Whether it was acknowledged. Errors that a client would retry are not retried here: the outcome is
        unknown."""
        code = error_of(await work)
        if code.retriable:
            await self._ledger.note(self._ledger.refused, self._broker)
        elif code not in (ErrorCode.NONE, ErrorCode.BROKER_NOT_AVAILABLE):
            self._ledger.mistakes.append(f"{name}: {code.name}")
        return code is ErrorCode.NONE


async def create(client: RawClient, name: str, patience_ms: int = PATIENCE_MS) -> int:
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=patience_ms))).topics
    return int(made.error_code)


async def delete(client: RawClient, name: str, patience_ms: int = PATIENCE_MS) -> int:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=patience_ms)
    (gone,) = (await client.ask(6, request)).responses
    return int(gone.error_code)


async def told_by(cluster: BrokerCluster, broker: int) -> dict[str, Any]:
    """Every topic as this broker has it, once it has replayed all that was committed before this call."""
    async with asyncio.timeout(DEADLINE_S), RawClient(str(cluster.address(broker))) as client:
        while await create(client, "barrier") not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            pass  # until there is a controller: each question waits for one
        response = await client.ask(12, MetadataRequest(topics=None))
        return {topic.name: topic for topic in response.topics}


async def controller(cluster: BrokerCluster, through: int) -> int:
    """As that broker has it."""
    async with RawClient(str(cluster.address(through))) as client:
        return int((await client.ask(12, MetadataRequest(topics=()))).controller_id)
