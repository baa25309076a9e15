"""Three brokers over one durable store, and topic 't', of one partition with one replica, that is handed over."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.base.ports import Objects
from headrace.broker.cluster.control import Control
from headrace.broker.home import identity
from headrace.broker.moves.service import Moves
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.controller.asks.asking import Ask
from headrace.controller.decision import Refusal
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.clusters import DEADLINE_S, Cluster
from tests.broker.data_path import batch, fetch, produce
from tests.broker.group_broker import LATE, RawClient
from tests.broker.replication_world import decoded
from tests.broker.tiered import objects_in

A, B, C = 1, 2, 3


class Held:
    """Asks of one kind that a broker has for the controller: each waits until it is let go. `lost`: who asks is told
    that nobody knows what became of it."""

    def __init__(self, control: Control, kind: type[Ask[Any]], *, lost: bool) -> None:
        self._lost = lost
        self._late: list[asyncio.Future[None]] = []
        self.seen = asyncio.Event()
        """One has come."""
        self._go = asyncio.Event()
        self._submit = control.submit
        self._kind = kind
        control.submit = self._held  # type: ignore[method-assign]  # the real one follows

    async def _held(self, ask: Ask[Any], **more: Any) -> Any:
        if not isinstance(ask, self._kind):
            return await self._submit(ask, **more)
        self.seen.set()
        if self._lost and not self._go.is_set():
            self._late.append(asyncio.ensure_future(self._later(ask)))
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, "Whether it was done is not known.")
        await self._go.wait()
        return await self._submit(ask, **more)

    async def _later(self, ask: Ask[Any]) -> None:
        await self._go.wait()
        await self._submit(ask)

    def let_go(self) -> None:
        self._go.set()


class Moving:
    """See the module. Broker 1 owns it at first."""

    def __init__(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self._clients: dict[int, RawClient] = {}

    async def client(self, broker: int) -> RawClient:
        if broker not in self._clients:
            self._clients[broker] = await self._stack.enter_async_context(RawClient(str(self.cluster.address(broker))))
        return self._clients[broker]

    async def stop(self, *brokers: int) -> None:
        for broker in brokers:
            self._clients.pop(broker, None)
        await self.cluster.stop(*brokers)

    async def make(self, owner: int = A, **configs: str) -> None:
        named = {"retention_ms": "-1", **configs}
        items = tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in named.items())
        topic = CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=(CreatableReplicaAssignment(0, (owner,)),),
            configs=items,
        )
        await (await self.client(owner)).create(topic)
        await self.cluster.agree()

    @property
    def key(self) -> TopicPartition:
        image = self.cluster.newest_image
        return TopicPartition(image.topic_ids["t"], PartitionIndex(0))

    def known(self, by: int) -> PartitionImage:
        """The partition, as that broker has it."""
        found = self.cluster.image(by).partition(self.key)
        assert found is not None
        return found

    def partitions(self, broker: int) -> Partitions:
        return self.cluster.brokers[broker].parts.partitions

    def moves(self, broker: int) -> Moves:
        moves = self.cluster.brokers[broker].parts.moves.service
        assert moves is not None
        return moves

    def leading(self, broker: int) -> Partition:
        role = self.partitions(broker).role(self.key)
        assert isinstance(role, Partition)
        return role

    def hold(self, broker: int, kind: type[Ask[Any]], *, lost: bool = False) -> Held:
        return Held(self.cluster.brokers[broker].parts.control, kind, lost=lost)

    def has_log(self, broker: int) -> bool:
        """Whether there is a directory of it."""
        return (self.cluster.data(broker) / "logs" / "t-0").exists()

    def writing(self, broker: int, *values: bytes) -> asyncio.Task[Any]:
        """Write without waiting for it, over a connection of its own. The result is the answer, of any kind."""

        async def work() -> Any:
            async with RawClient(str(self.cluster.address(broker))) as client:
                return await produce(client, "t", batch(*values))

        return asyncio.ensure_future(work())

    async def write(self, broker: int, *values: bytes, acks: int = -1) -> int:
        """Through that broker, which takes it; the offset."""
        answer = await produce(await self.client(broker), "t", batch(*values), acks=acks)
        assert answer.error_code == 0, answer
        return int(answer.base_offset)

    async def ask(self, to: int | None, through: int = A) -> int:
        """Have it moved, or what is under way cancelled; the error."""
        (code,) = await self._wish("t", ReassignablePartition(0, None if to is None else (to,)), through=through)
        return code

    async def _wish(self, topic: str, *wishes: ReassignablePartition, through: int) -> list[int]:
        """The error of each. It is asked again where a busy controller has not answered in time."""
        request = AlterPartitionReassignmentsRequest(timeout_ms=120_000, topics=(ReassignableTopic(topic, wishes),))
        client = await self.client(through)
        while (response := await client.ask(1, request)).error_code:
            assert response.error_code in LATE, response.error_message
        return [int(each.error_code) for each in response.responses[0].partitions]

    async def move(self, to: int, through: int = A) -> None:
        """Until it is there, and everybody knows."""
        assert await self.ask(to, through) == 0
        await self.until_owned(to)

    async def fence(self, broker: int) -> None:
        """As its silence would."""
        assert await self.cluster.fence(broker) is None

    async def until_unfenced(self, broker: int) -> None:
        """By its next heartbeat, or at once."""
        await self.cluster.unfence(broker)
        for other in self.cluster.brokers:
            await self.cluster.until(other, lambda image: not image.brokers[BrokerId(broker)].fenced)

    async def stop_for_a_while(self, broker: int, *, wipe: bool) -> None:
        """Stopped and started again; `wipe`: without its logs, as by an operator who says that they are lost."""
        await self.stop(broker)
        if wipe:
            shutil.rmtree(self.cluster.data(broker) / "logs")
            (self.cluster.data(broker) / identity.MADE).unlink()
        await self.cluster.start(broker)

    async def ask_coordinator(self, group: str, version: int, request: Any) -> Any:
        """Once there is one that is ready."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await (await self.client(A)).ask(2, FindCoordinatorRequest(key=group))
                if found.error_code == 0:
                    answer = await (await self.client(found.node_id)).ask(version, request)
                    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
                    if not error_of(next(filter(None, codes), getattr(answer, "error_code", 0))).retriable:
                        return answer

    async def copy_all(self, topic: str, to: int) -> None:
        """Until that broker alone holds all of a topic."""
        partitions = len(self.cluster.image(A).topics[self.cluster.image(A).topic_ids[topic]].partitions)
        wishes = tuple(ReassignablePartition(at, (to,)) for at in range(partitions))
        assert set(await self._wish(topic, *wishes, through=A)) == {0}

        def is_there(image: MetadataImage) -> bool:
            found = image.topic(topic)
            return found is not None and all(one.replicas == (to,) == (one.leader,) for one in found.partitions)

        for broker in self.cluster.brokers:
            await self.cluster.until(broker, is_there)

    async def place(self, *replicas: int, through: int = A) -> None:
        """Copied, until these are its replicas, all in sync."""
        assert await self._wish("t", ReassignablePartition(0, replicas), through=through) == [0]
        for broker in self.cluster.brokers:
            await self.until(broker, lambda known: known.replicas == known.isr == replicas and not known.is_reassigned)
        await self.cluster.agree()

    async def until_owned(self, by: int) -> None:
        for broker in self.cluster.brokers:
            await self.until(broker, lambda known: known.move is None and known.leader == by)
        await self.cluster.agree()

    async def until(self, broker: int, holds: Callable[[PartitionImage], bool]) -> None:
        key = self.key
        await self.cluster.until(broker, lambda image: (one := image.partition(key)) is not None and holds(one))

    async def read(self, broker: int, start: int, end: int) -> list[tuple[int, bytes | None]]:
        """As one who follows the topic does, from `start` to before `end`: each record once, in order."""
        client, found, offset = await self.client(broker), [], start
        async with asyncio.timeout(DEADLINE_S):
            while offset < end:
                answer: Any = await fetch(client, "t", offset, wait_ms=1_000)
                assert answer.error_code == 0, answer.error_code
                records = decoded(bytes(answer.records or b""))
                found += [(at, value) for at, value in records if offset <= at < end]
                offset = found[-1][0] + 1 if found else offset
        return found


@asynccontextmanager
async def moving(
    root: Path,
    brokers: int = 3,
    *,
    objects: Objects | None = None,
    configs: Mapping[str, str] | None = None,
    stores: Mapping[int, Objects | None] | None = None,
) -> AsyncIterator[Moving]:
    """`stores`: of brokers that have another one than the rest, or none."""
    named = {"log.retention.check.interval.ms": "50", **(configs or {})}
    cluster = Cluster(root, named, objects=objects or objects_in(root))
    cluster.stores |= stores or {}
    cluster.give_birth(brokers)
    try:
        await cluster.start(*range(1, brokers + 1))
        await cluster.agree()  # each knows that the others are ready
        async with AsyncExitStack() as stack:
            yield Moving(cluster, stack)
    finally:
        await cluster.stop(*cluster.brokers)
