"""Clients that are no members: readers of offsets, administrators of offsets and groups, and makers of topics.

A reader asks the presumed coordinator, or any broker: a former coordinator must not return its old state. An
administrator commits to a group without members, deletes offsets, and deletes groups.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headrace.sim.client import Lost
from headrace.sim.cluster.groups.history import Register
from headrace.sim.cluster.groups.member import Member
from headrace.sim.cluster.groups.offsets import UNKNOWN, Identity, Offsets
from headrace.sim.cluster.groups.stage import FLEETING, STEADY, Phase, Stage, Way
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_groups import DeleteGroupsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

THINK_SECONDS_MAX: Final = 0.15
ADMIN_THINK_SECONDS_MAX: Final = 0.3
TOPIC_SECONDS_MAX: Final = 2.5
REPLICAS: Final = 2


class Outsider:
    """One client of one group that is no member."""

    def __init__(self, stage: Stage, name: str, group: str) -> None:
        self._stage = stage
        self._world = stage.world
        self.name = name
        self.group = group
        self._chance = stage.world.chance(f"outsider {name}")
        self._way = Way(stage, name, group, self._chance)
        self._offsets = Offsets(stage, name, group, self._way, self._chance)

    def _some(self) -> list[Register]:
        """Some registers of the group, committed or not."""
        stage = self._stage
        if stage.fleeting is not None and self._chance.random() < 0.3:
            return [self._offsets.some_register(stage.fleeting, stage.fleeting_partitions)]
        return sorted({self._offsets.some_register(stage.steady, stage.steady_partitions) for _ in range(2)})

    def close(self) -> None:
        self._way.close()


class Reader(Outsider):
    """Asks for the group's offsets, again and again."""

    async def run(self) -> None:
        while self._stage.phase is not Phase.OVER:
            node = self._way.some_host() if self._chance.random() < 0.5 else None
            try:
                await self._offsets.look(self._some(), node=node)
            except Lost:
                continue
            await self._world.think(THINK_SECONDS_MAX)
        self.close()

    async def read(self, registers: list[Register]) -> None:
        """Ask until it is answered."""
        while True:
            try:
                if await self._offsets.look(registers):
                    self.close()
                    return
            except Lost:
                continue


class Administrator(Outsider):
    """Administers a group. `visitors` makes temporary members of either protocol. `deletes`: it deletes whole
    groups."""

    def __init__(
        self, stage: Stage, name: str, group: str, *, deletes: bool, visitors: tuple[Callable[[], Member], ...] = ()
    ) -> None:
        super().__init__(stage, name, group)
        self._deletes = deletes
        self._visitors = visitors

    async def run(self) -> None:
        while self._stage.phase is not Phase.OVER:
            try:
                await self._act()
            except Lost:
                continue
            await self._world.think(ADMIN_THINK_SECONDS_MAX)
        self.close()

    async def _act(self) -> None:
        roll = self._chance.random()
        settling = self._stage.phase is Phase.SETTLING
        if settling or roll < 0.6:
            registers = self._some()
            answered = await self._offsets.commit(Identity(), registers)
            for register, error in answered.items():
                if settling and error is ErrorCode.NONE:
                    self._stage.settled.add((self.name, register))
        elif self._offsets.too_many_unknown():
            return
        elif roll < 0.75:
            await self._forget()
        elif roll < 0.87 and self._deletes:
            await self._delete()
        elif self._visitors:
            await self._chance.choice(self._visitors)().live(seconds=3 * self._chance.random())

    async def _forget(self) -> None:
        steady = self._stage.steady
        indexes = range(self._stage.steady_partitions)
        registers = [Register(self.group, steady, index) for index in indexes if self._chance.random() < 0.6]
        partitions = tuple(OffsetDeleteRequestPartition(register.partition) for register in registers)
        request = OffsetDeleteRequest(self.group, (OffsetDeleteRequestTopic(STEADY, partitions),))
        called = self._stage.ledger.now()
        try:
            answer = await self._way.ask(ApiKey.OFFSET_DELETE, 0, request)
        except Lost:
            self._offsets.may_be_cleared(registers, called)
            raise
        error = error_of(answer.error_code)
        self._world.tell(f"{self.name} has {len(registers)} offsets of {self.group} forgotten: {error.name}")
        if error is ErrorCode.NONE:
            [topic] = answer.topics
            for register, answered in zip(registers, topic.partitions, strict=True):
                if answered.error_code == ErrorCode.NONE:
                    self._offsets.cleared([register], called)
        else:
            self._settle(error, registers, called)

    async def _delete(self) -> None:
        called = self._stage.ledger.now()
        try:
            answer = await self._way.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest((self.group,)))
        except Lost:
            self._offsets.may_be_cleared(self._stage.ledger.registers(self.group), called)
            raise
        registers = self._stage.ledger.registers(self.group)  # includes registers that were first committed meanwhile
        error = error_of(answer.results[0].error_code)
        self._world.tell(f"{self.name} deletes {self.group}: {error.name}")
        if error is ErrorCode.NONE:
            self._offsets.cleared(registers, called)
        else:
            self._settle(error, registers, called)

    def _settle(self, error: ErrorCode, registers: list[Register], called: int) -> None:
        if error is ErrorCode.GROUP_ID_NOT_FOUND:
            self._offsets.is_no_group(called)
        elif error in UNKNOWN:
            self._offsets.may_be_cleared(registers, called)
        if error in UNKNOWN or error.retriable:
            self._way.is_wrong()


class Topics:
    """Creates and deletes the fleeting topic, again and again."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chance = stage.world.chance("topics")
        self._way = Way(stage, "topics", "", self._chance)

    async def run(self) -> None:
        """Work until the faults end; then the state stays as it is."""
        while self._stage.phase is Phase.FAULTS:
            with suppress(Lost):
                await self._act()
            await self._stage.world.think(TOPIC_SECONDS_MAX)
        self._way.close()

    async def _act(self) -> None:
        stage, node = self._stage, self._way.some_host()
        if stage.fleeting is None:
            topic = CreatableTopic(FLEETING, num_partitions=stage.fleeting_partitions, replication_factor=REPLICAS)
            await self._way.call(node, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 2_000), seconds=3.0)
        else:
            gone, stage.fleeting = stage.fleeting, None
            request = DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=gone),), timeout_ms=2_000)
            stage.world.tell(f"topic {FLEETING} {str(gone)[:8]} is to be deleted")
            await self._way.call(node, ApiKey.DELETE_TOPICS, 6, request, seconds=3.0)
        await self.look()

    async def look(self) -> None:
        """Ask some broker whether the topic exists. Raises Lost."""
        request = MetadataRequest((MetadataRequestTopic(name=FLEETING),), allow_auto_topic_creation=False)
        answer = await self._way.call(self._way.some_host(), ApiKey.METADATA, 12, request)
        [topic] = answer.topics
        self._stage.fleeting = topic.topic_id if topic.error_code == ErrorCode.NONE else None
        self._stage.world.tell(f"topic {FLEETING} is {self._stage.fleeting}")
