"""What everyone in the groups of one run shares: the brokers, the topics, the ledger; and the way to coordinators."""

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
"""What the workload speaks, so that it can be loaded before any clock starts."""
STEADY: Final = "steady"
"""A topic that is there all the time."""
FLEETING: Final = "fleeting"
"""One that is deleted and made anew."""
RETRY_SECONDS_MAX: Final = 0.1
ANSWER_SECONDS: Final = 1.0
"""Of patience with a coordinator; then the connection is given up, and the next is looked for."""
ELSEWHERE: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Phase(Enum):
    FAULTS = 1
    SETTLING = 2
    """Nothing is broken any more: members live, and each commits what it owns."""
    OVER = 3


class Stage:
    """See the module."""

    def __init__(self, world: ClusterWorld, hosts: Sequence[Host], judge: GroupsJudge, *, keeps_records: bool) -> None:
        """`keeps_records`: the offsets topic, of one partition, is not compacted, so that all records can be found."""
        self.keeps_records = keeps_records
        self.world = world
        self.hosts = hosts
        self.judge = judge
        self.ledger = Ledger()
        self.phase = Phase.FAULTS
        self.partitions: dict[PartitionKey, str] = {}
        """Those of the offsets topic."""
        self.steady = UUID(int=0)
        self.steady_partitions = 0
        self.fleeting: UUID | None = None
        """As far as is known; None: there is none."""
        self.fleeting_partitions = 2
        self.settled: set[tuple[str, Register]] = set()
        """By member: what it has committed since all was calm."""
        self.sharings = 0

    def next_sharing(self) -> int:
        self.sharings += 1
        return self.sharings

    @property
    def shared(self) -> set[tuple[UUID, int]]:
        """The partitions of all topics there are."""
        steady = {(self.steady, index) for index in range(self.steady_partitions)}
        if self.fleeting is None:
            return steady
        return steady | {(self.fleeting, index) for index in range(self.fleeting_partitions)}


class Way:
    """One client's way to the coordinator of one group: what some broker said, which may be old."""

    def __init__(self, stage: Stage, name: str, group: str, chance: random.Random) -> None:
        self._stage = stage
        self._name = name
        self._group = group
        self._chance = chance
        self._clients: dict[int, Client] = {}
        self.node = -1
        self._answered = -1
        """Who answered last."""
        self._deposed: set[PartitionKey] = set()
        """What of that broker was, when it was asked."""

    def some_host(self) -> int:
        return self._chance.choice(self._stage.hosts).node

    async def find(self) -> None:
        """Ask any broker, where nobody is known. Raises Lost where it does not say."""
        if self.node >= 0:
            return
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=(self._group,))
        answer = await self.call(self.some_host(), ApiKey.FIND_COORDINATOR, 4, request)
        [told] = answer.coordinators
        if told.error_code != ErrorCode.NONE:
            raise Lost("no coordinator is known")
        self.node = told.node_id

    async def ask(self, key: ApiKey, version: int, message: Any, *, seconds: float = ANSWER_SECONDS) -> Any:
        """The coordinator's answer. Raises Lost, after which another is looked for."""
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
        """The answer that has just come tells what only the coordinator may know."""
        self._stage.judge.on_told(self._deposed, self._group, self._answered, what)

    def is_wrong(self) -> None:
        """Whoever was taken for the coordinator does not answer, or says that it is none."""
        self.node = -1

    async def pause(self) -> None:
        await asyncio.sleep(self._chance.random() * RETRY_SECONDS_MAX)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
