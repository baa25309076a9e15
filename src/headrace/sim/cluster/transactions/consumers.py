"""Readers of partitions, under either isolation, and of committed offsets."""

from __future__ import annotations

from typing import Any, Final

from headrace.base.errors import CorruptData
from headrace.sim.client import Lost
from headrace.sim.cluster.transactions.history import Logged, Look, Partition, Register, Seen
from headrace.sim.cluster.transactions.reading import Reading
from headrace.sim.cluster.transactions.stage import GROUP, Stage, Ways
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

FETCH_VERSIONS: Final = (9, 12, 13, 16)
BY_ID: Final = 13
"""The version from which topics go by their ids."""
WAIT_MS: Final = 300
EARLIEST: Final = -2
BYTES_MAX: Final = (1, 600, 100_000)
THINK_SECONDS_MAX: Final = 0.6


class Reader:
    """A consumer of one partition, from its start on."""

    def __init__(
        self, stage: Stage, name: str, partition: Partition, *, committed_only: bool, position: int = 0
    ) -> None:
        self._stage = stage
        self._name = name
        self._partition = partition
        self._committed_only = committed_only
        self._chance = stage.world.chance(f"reader {name}")
        self._ways = Ways(stage, name, self._chance)
        self._version = self._chance.choice(FETCH_VERSIONS)
        self._bytes_max = self._chance.choice(BYTES_MAX)
        self.start = 0
        """Where the partition began when the reader fell behind that."""
        self._reading = Reading(name, partition, committed_only=committed_only, position=position)

    @property
    def position(self) -> int:
        return self._reading.position

    @property
    def log(self) -> list[Logged]:
        """Records and markers, where it is not for committed ones only."""
        return self._reading.log

    async def run(self) -> None:
        """Read until the run is over."""
        while not self._stage.is_over:
            await self.poll()
            await self._stage.world.think(THINK_SECONDS_MAX)
        self.close()

    async def poll(self, *, wait_ms: int = WAIT_MS) -> list[Seen]:
        """The next records; an empty list also where the leader is not found."""
        try:
            answer = await self._ways.ask_leader(self._partition, ApiKey.FETCH, self._version, self._request(wait_ms))
        except Lost:
            return []
        [topic] = answer.responses
        [answered] = topic.partitions
        error = error_of(answered.error_code)
        if error is ErrorCode.NONE:
            return self._take(answered)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE and self._stage.deletes:
            await self._skip()
            return []
        if not error.retriable and error is not ErrorCode.OFFSET_OUT_OF_RANGE:
            self._stage.world.problem("unreadable", f"{self._name} at {self.position} was told {error.name}")
        self._ways.is_no_leader(self._partition)
        await self._ways.pause()
        return []

    async def _skip(self) -> None:
        """Go on where the partition begins now, as a consumer does that resets to the earliest offset."""
        asked = ListOffsetsTopic(self._partition.topic, (ListOffsetsPartition(self._partition.number, -1, EARLIEST),))
        try:
            request = ListOffsetsRequest(topics=(asked,))
            answer = await self._ways.ask_leader(self._partition, ApiKey.LIST_OFFSETS, 5, request)
        except Lost:
            return
        [topic] = answer.topics
        [answered] = topic.partitions
        if answered.error_code:
            self._ways.is_no_leader(self._partition)
            await self._ways.pause()
        self._reading.position = max(self.position, answered.offset)
        self.start = max(self.start, answered.offset)

    def _request(self, wait_ms: int) -> FetchRequest:
        asked = FetchPartition(
            partition=self._partition.number, fetch_offset=self.position, partition_max_bytes=self._bytes_max
        )
        by_id = self._version >= BY_ID
        topic = (
            FetchTopic(topic_id=self._stage.topic_id, partitions=(asked,))
            if by_id
            else FetchTopic(topic=self._partition.topic, partitions=(asked,))
        )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=4 * self._bytes_max,
            isolation_level=int(self._committed_only),
            topics=(topic,),
        )

    def _take(self, answered: Any) -> list[Seen]:
        start = self.position
        aborted = [(each.first_offset, each.producer_id) for each in answered.aborted_transactions or ()]
        try:
            poll = self._reading.take(
                answered.records or b"",
                aborted,
                stable=answered.last_stable_offset,
                high_watermark=answered.high_watermark,
                answered=self._stage.history.now(),
                begins=answered.log_start_offset,
            )
        except CorruptData as error:
            self._stage.world.problem("unreadable", f"{self._name} at {start}: {error}")
            return []
        self._stage.history.polls.append(poll)
        return list(poll.records)

    async def read_to_the_end(self) -> list[Seen]:
        """All records from the position to the log's end, once everything below that is decided."""
        found: list[Seen] = []
        while not self._reading.is_at_the_end:
            found += await self.poll(wait_ms=50)
        self.close()
        return found

    def close(self) -> None:
        self._ways.close()


class Watcher:
    """A client that asks for the committed offsets of groups."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._chance = stage.world.chance(f"watcher {name}")
        self._ways = Ways(stage, name, self._chance)

    async def run(self) -> None:
        """Ask until the run is over."""
        while not self._stage.is_over:
            if self._stage.registers:
                await self.look(self._chance.choice(self._stage.registers), stable=self._chance.random() < 0.3)
            await self._stage.world.think(2 * THINK_SECONDS_MAX)
        self.close()

    async def look(self, register: Register, *, stable: bool) -> int | None:
        """The committed offset (0: none); None where it is not told now."""
        return await look(self._stage, self._ways, register, stable=stable)

    def close(self) -> None:
        self._ways.close()


async def look(stage: Stage, ways: Ways, register: Register, *, stable: bool) -> int | None:
    """Ask for a committed offset, and note it. `stable`: it is not told while an open transaction may change it."""
    topics = (OffsetFetchRequestTopics(name=register.partition.topic, partition_indexes=(register.partition.number,)),)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=register.group, topics=topics),))
    request = request._replace(require_stable=stable)
    try:
        answer = await ways.ask_coordinator(GROUP, register.group, ApiKey.OFFSET_FETCH, 8, request)
    except Lost:
        return None
    [group] = answer.groups
    if error_of(group.error_code) is not ErrorCode.NONE:
        ways.is_no_coordinator(GROUP, register.group)
        await ways.pause()
        return None
    [topic] = group.topics
    [found] = topic.partitions
    if error_of(found.error_code) is not ErrorCode.NONE:
        await ways.pause()
        return None
    offset = max(0, int(found.committed_offset))
    stage.history.looks.append(Look(register, offset, stage.history.now()))
    return offset
