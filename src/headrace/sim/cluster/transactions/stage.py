"""State shared by all clients of the transactions of one run: brokers, topics and history; and the way to brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.transactions.history import History, Partition, Register
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

APIS: Final = (
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.OFFSET_FETCH,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.DELETE_RECORDS,
    ApiKey.LIST_OFFSETS,
)
"""The APIs of the workload, so that they can be loaded before any clock starts."""
TOPIC: Final = "t"
INPUT: Final = Partition(TOPIC, 0)
"""The partition that groups consume. Their output goes to others."""
GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of names of which a broker is the coordinator."""
RETRY_SECONDS_MAX: Final = 0.1
ANSWER_SECONDS: Final = 1.0
"""Patience with a broker. After that its connection is given up."""


class Stage:
    """The shared state, as the module says."""

    def __init__(self, world: ClusterWorld, hosts: Sequence[Host]) -> None:
        self.world = world
        self.hosts = hosts
        self.history = History()
        self.topic_id = UUID(int=0)
        self.partitions: list[Partition] = []
        """Of the topic that is written."""
        self.keys: dict[PartitionKey, str] = {}
        """All partitions, also of internal topics, with the names of their topics."""
        self.registers: list[Register] = []
        self.is_over = False
        """Readers end."""
        self.deletes = False
        """Beginnings of partitions are deleted."""
        self.on_end: Callable[[], object] = _nobody
        """Called when a client asks for the end of its transaction, so that a fault can use the moment."""

    @property
    def winding_down(self) -> bool:
        """Begin no new work; finish what is open."""
        return self.world.winding_down


def _nobody() -> None:
    """The default callback, which does nothing."""


class Ways:
    """One client's connections, and what it believes about leaders and coordinators, which may be outdated."""

    def __init__(self, stage: Stage, name: str, chance: random.Random) -> None:
        self._stage = stage
        self._name = name
        self._chance = chance
        self._clients: dict[int, Client] = {}
        self._leaders: dict[Partition, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    async def pause(self) -> None:
        await asyncio.sleep(self._chance.random() * RETRY_SECONDS_MAX)

    async def call(self, node: int, key: ApiKey, version: int, message: Any) -> Any:
        """A broker's answer. Raises Lost, also when it takes too long."""
        client = self._clients.setdefault(node, Client(self._name, (address_of(node), PORT)))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await client.call(key, version, message)
        except TimeoutError as error:
            client.reset()
            raise Lost("no answer in time") from error

    def _some_node(self) -> int:
        return self._chance.choice(self._stage.hosts).node

    async def ask_leader(self, partition: Partition, key: ApiKey, version: int, message: Any) -> Any:
        """The leader's answer. Raises Lost, after which the leader is looked up again."""
        try:
            if partition not in self._leaders:
                await self._look_up(partition)
            return await self.call(self._leaders[partition], key, version, message)
        except Lost:
            self.is_no_leader(partition)
            await self.pause()
            raise

    async def _look_up(self, partition: Partition) -> None:
        request = MetadataRequest((MetadataRequestTopic(name=partition.topic),), allow_auto_topic_creation=False)
        answer = await self.call(self._some_node(), ApiKey.METADATA, 12, request)
        for topic in answer.topics:
            for each in topic.partitions:
                if each.leader_id >= 0:
                    self._leaders[Partition(topic.name, each.partition_index)] = each.leader_id
        if partition not in self._leaders:
            raise Lost("no leader is known")

    def is_no_leader(self, partition: Partition) -> None:
        self._leaders.pop(partition, None)

    async def ask_coordinator(self, kind: int, name: str, key: ApiKey, version: int, message: Any) -> Any:
        """The coordinator's answer. Raises Lost, after which it is looked up again."""
        try:
            if (kind, name) not in self._coordinators:
                await self._find(kind, name)
            return await self.call(self._coordinators[kind, name], key, version, message)
        except Lost:
            self.is_no_coordinator(kind, name)
            await self.pause()
            raise

    async def _find(self, kind: int, name: str) -> None:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(name,))
        answer = await self.call(self._some_node(), ApiKey.FIND_COORDINATOR, 4, request)
        [found] = answer.coordinators
        if error_of(found.error_code) is not ErrorCode.NONE:
            raise Lost("no coordinator is known")
        self._coordinators[kind, name] = found.node_id

    def is_no_coordinator(self, kind: int, name: str) -> None:
        self._coordinators.pop((kind, name), None)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
