"""State shared by all clients of the records of one run: brokers, partitions and history; and the route to leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.records.history import RecordsHistory
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

APIS: Final = (
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
)
"""The APIs of the workload, so that they can be loaded before any clock starts."""
PRODUCE_VERSIONS: Final = (7, 9, 12, 13)
FETCH_VERSIONS: Final = (9, 12, 13, 16)
RETRY_SECONDS_MAX: Final = 0.1


class Stage:
    """The shared state, as the module says."""

    def __init__(self, world: ClusterWorld, hosts: Sequence[Host], judge: RecordsJudge) -> None:
        self.world = world
        self.hosts = hosts
        self.judge = judge
        self.history = RecordsHistory()
        self.partitions: dict[PartitionKey, str] = {}
        """Partitions, with the names of their topics."""
        self.produce_version = world.random.choice(PRODUCE_VERSIONS)
        self.fetch_version = world.random.choice(FETCH_VERSIONS)
        self.producer_ids: set[int] = set()
        self.may_lose = False
        """Leaders may be elected uncleanly, so records acknowledged by a whole ISR may be lost."""

    @property
    def winding_down(self) -> bool:
        """Start no new work; finish what is open."""
        return self.world.winding_down


class Route:
    """One client's route to the leader of one partition: the Metadata answer of any broker, which may be outdated."""

    def __init__(self, stage: Stage, name: str, partition: PartitionKey) -> None:
        self._stage = stage
        self._name = name
        self._partition = partition
        self._clients: dict[int, Client] = {}
        self.leader = -1
        self.epoch = -1

    def client(self, node: int) -> Client:
        """The connection to a broker."""
        return self._clients.setdefault(node, Client(self._name, (address_of(node), PORT)))

    async def find(self) -> Client | None:
        """A connection to the presumed leader. None, after a while, where no leader is known."""
        if self.leader < 0:
            await self._ask()
        if self.leader < 0:
            await self._stage.world.think(RETRY_SECONDS_MAX)
            return None
        return self.client(self.leader)

    def is_wrong(self) -> None:
        """The presumed leader does not answer, or says that it is not the leader."""
        self.leader = -1

    async def any(self, key: ApiKey, version: int, message: Any) -> Any:
        """The answer of some broker. Raises Lost."""
        return await self.client(self._stage.world.random.choice(self._stage.hosts).node).call(key, version, message)

    async def _ask(self) -> None:
        name = self._stage.partitions[self._partition]
        request = MetadataRequest((MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
        try:
            answer = await self.any(ApiKey.METADATA, 12, request)
        except Lost:
            return
        for topic in answer.topics:
            for answered in topic.partitions:
                if answered.partition_index == self._partition.number and answered.leader_epoch >= self.epoch:
                    self.leader, self.epoch = answered.leader_id, answered.leader_epoch

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
