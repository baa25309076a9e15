"""State shared by all clients of the groups of one run: brokers, topics and ledger; and the route to coordinators."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final
from uuid import UUID

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.groups.history import Ledger, Register
from headrace.sim.cluster.groups.judge import GroupsJudge
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest

APIS: Final = (
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.DELETE_GROUPS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
)
"""The APIs of the workload, so that they can be loaded before any clock starts."""
STEADY: Final = "steady"
"""A topic that always exists."""
FLEETING: Final = "fleeting"
"""A topic that is deleted and created again."""
RETRY_SECONDS_MAX: Final = 0.1
ANSWER_SECONDS: Final = 1.0
"""Patience with a coordinator. After that the connection is given up and the coordinator looked up again."""
ELSEWHERE: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Phase(Enum):
    FAULTS = 1
    SETTLING = 2
    """All faults are over: members live, and each commits the partitions that it owns."""
    OVER = 3


class Stage:
    """The shared state, as the module says."""

    def __init__(self, world: ClusterWorld, hosts: Sequence[Host], judge: GroupsJudge, *, keeps_records: bool) -> None:
        """`keeps_records`: the offsets topic has one partition and is not compacted, so that all records can be
        found."""
        self.keeps_records = keeps_records
        self.world = world
        self.hosts = hosts
        self.judge = judge
        self.ledger = Ledger()
        self.phase = Phase.FAULTS
        self.partitions: dict[PartitionKey, str] = {}
        """The partitions of the offsets topic."""
        self.steady = UUID(int=0)
        self.steady_partitions = 0
        self.fleeting: UUID | None = None
        """As far as is known; None: it does not exist."""
        self.fleeting_partitions = 2
        self.settled: set[tuple[str, Register]] = set()
        """By member: the registers that it has committed since the faults ended."""
        self.sharings = 0

    def next_sharing(self) -> int:
        self.sharings += 1
        return self.sharings

    @property
    def shared(self) -> set[tuple[UUID, int]]:
        """The partitions of all existing topics."""
        steady = {(self.steady, index) for index in range(self.steady_partitions)}
        if self.fleeting is None:
            return steady
        return steady | {(self.fleeting, index) for index in range(self.fleeting_partitions)}


class Way:
    """One client's route to the coordinator of one group: the answer of some broker, which may be outdated."""

    def __init__(self, stage: Stage, name: str, group: str, chance: random.Random) -> None:
        self._stage = stage
        self._name = name
        self._group = group
        self._chance = chance
        self._clients: dict[int, Client] = {}
        self.node = -1
        self._answered = -1
        """The broker that answered last."""
        self._deposed: set[PartitionKey] = set()
        """Partitions for which that broker was deposed when it was asked."""

    def some_host(self) -> int:
        return self._chance.choice(self._stage.hosts).node

    async def find(self) -> None:
        """Ask any broker if no coordinator is known. Raises Lost where it does not tell."""
        if self.node >= 0:
            return
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=(self._group,))
        answer = await self.call(self.some_host(), ApiKey.FIND_COORDINATOR, 4, request)
        [coordinator] = answer.coordinators
        if coordinator.error_code != ErrorCode.NONE:
            raise Lost("no coordinator is known")
        self.node = coordinator.node_id

    async def ask(self, key: ApiKey, version: int, message: Any, *, seconds: float = ANSWER_SECONDS) -> Any:
        """The coordinator's answer. Raises Lost, after which the coordinator is looked up again."""
        try:
            await self.find()
            return await self.call(self.node, key, version, message, seconds=seconds)
        except Lost:
            self.is_wrong()
            await self.pause()
            raise

    async def call(self, node: int, key: ApiKey, version: int, message: Any, *, seconds: float = ANSWER_SECONDS) -> Any:
        """Any broker's answer. Raises Lost, also when it takes too long."""
        client = self._clients.setdefault(node, Client(self._name, (address_of(node), PORT)))
        deposed = self._stage.judge.deposed(node)
        try:
            async with asyncio.timeout(seconds):
                answer = await client.call(key, version, message)
        except TimeoutError as error:
            client.reset()
            raise Lost("no answer in time") from error
        self._answered, self._deposed = node, deposed
        return answer

    def tells(self, what: str) -> None:
        """The answer that has just come has facts that only the coordinator may give."""
        self._stage.judge.on_told(self._deposed, self._group, self._answered, what)

    def is_wrong(self) -> None:
        """The presumed coordinator does not answer, or says that it is not the coordinator."""
        self.node = -1

    async def pause(self) -> None:
        await asyncio.sleep(self._chance.random() * RETRY_SECONDS_MAX)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
