"""Clients of brokers on a Redis: a consumer that goes back where records are lost, and an administrator.

The consumer is as KIP-320 has it. Where it hears of a new leader epoch, it asks for the end of the epoch of the last
record that it read. It goes back there where that is below its position.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.records.consumers import Reader
from headrace.sim.cluster.records.history import Poll
from headrace.sim.cluster.records.stage import RETRY_SECONDS_MAX, Stage
from headrace.sim.cluster.world import PORT, address_of
from headrace.sim.history import Found, PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.batches import iterate_headers
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

APIS: Final = (ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DESCRIBE_CONFIGS)
TOPIC: Final = 2
SET: Final = 0
SETTING: Final = "max.message.bytes"
SETTINGS_FROM: Final = 1_000_000
ADMIN_THINKS_SECONDS_MAX: Final = 0.5


class GoingBack(Reader):
    """The consumer. Each time that it goes back it has another name."""

    def __init__(self, stage: Stage, name: str, partition: PartitionKey) -> None:
        super().__init__(stage, name, partition)
        self._names_epoch = True
        self._read_epoch = self._checked_epoch = -1
        self._kept: list[Found] = []
        """Records that it has read below its position. They are the beginning of what it reads under another name."""

    async def poll(self) -> list[Found]:
        if await self._route.find() is None:
            return []
        before = self.position
        if before and self._route.epoch > self._checked_epoch and not await self._check():
            return []
        found = await super().poll()
        self._note_going_back(before)
        return found

    def _note_going_back(self, before: int) -> None:
        if self.position < before:
            self._world.tell(f"{self._name} goes back from {before} to {self.position}")
            self._name += "'"
            self._kept = [record for record in self._kept if record.offset < self.position]
            self._stage.history.polls.append(Poll(self._name, self._partition, list(self._kept)))

    async def _check(self) -> bool:
        """Ask whether what was read still stands. Returns whether it is known."""
        epoch = self._route.epoch
        partition = OffsetForLeaderPartition(self._partition.number, epoch, self._read_epoch)
        topic = OffsetForLeaderTopic(self._stage.partitions[self._partition], (partition,))
        request = OffsetForLeaderEpochRequest(-1, (topic,))
        try:
            answer = await self._route.client(self._route.leader).call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
        except Lost:
            await self._lost_it()
            return False
        [answered] = answer.topics[0].partitions
        if (error := error_of(answered.error_code)) is not ErrorCode.NONE:
            self._refused(error, self._route.leader)
            await self._lost_it()
            return False
        before, self._checked_epoch = self.position, epoch
        if 0 <= answered.end_offset < before:
            self.position = answered.end_offset
        self._note_going_back(before)
        return True

    async def _take(self, answered: Any, node: int) -> list[Found]:
        found = await super()._take(answered, node)
        self._kept += found
        if found:
            self._read_epoch = max(header.leader_epoch for _, header in iterate_headers(answered.records))
            self._checked_epoch = max(self._checked_epoch, self._route.epoch)
        return found


class Admin:
    """Changes one config of the topic again and again, and remembers what was acknowledged."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self._stage = stage
        self._world = stage.world
        self._topic = topic
        self._client = Client("admin", (address_of(1), PORT))
        self._asked = 0
        self._acknowledged = 0
        """The number of the last change that was acknowledged."""
        self._in_doubt: set[int] = set()
        """Changes that may be made at any time, also behind later ones."""

    async def run(self) -> None:
        """Change it until the world winds down."""
        while not self._world.winding_down:
            self._asked += 1
            self._choose()
            value = str(SETTINGS_FROM + self._asked)
            resource = AlterConfigsResource(TOPIC, self._topic, (AlterableConfig(SETTING, SET, value),))
            try:
                answer = await self._client.call(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest((resource,))
                )
            except Lost:
                self._in_doubt.add(self._asked)
                await self._world.think(RETRY_SECONDS_MAX)
                continue
            error = error_of(answer.responses[0].error_code)
            self._world.tell(f"admin: setting {self._asked}: {error.name}")
            if error is ErrorCode.NONE:
                self._acknowledged = self._asked
                await self._world.think(ADMIN_THINKS_SECONDS_MAX)
                continue
            self._in_doubt.add(self._asked)
            if not error.retriable:
                self._world.problem("refused", f"the admin was told {error.name}")
            await self._world.think(ADMIN_THINKS_SECONDS_MAX)

    async def check(self) -> None:
        """Check that the last change that was acknowledged holds, or a later one, or one in doubt."""
        while True:
            self._choose()
            request = DescribeConfigsRequest((DescribeConfigsResource(TOPIC, self._topic, (SETTING,)),))
            try:
                answer = await self._client.call(ApiKey.DESCRIBE_CONFIGS, 4, request)
                break
            except Lost:
                await self._world.think(RETRY_SECONDS_MAX)
        found = int(answer.results[0].configs[0].value) - SETTINGS_FROM
        if self._acknowledged and found < self._acknowledged and found not in self._in_doubt:
            self._world.problem("lost-change", f"setting {self._acknowledged} was acknowledged, and {found} holds")
        self._client.close()

    def _choose(self) -> None:
        node = self._world.random.choice(self._stage.hosts).node
        if self._client.address != (address_of(node), PORT):
            self._client.close()
            self._client = Client("admin", (address_of(node), PORT))
