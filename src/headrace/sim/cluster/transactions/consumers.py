"""Readers of partitions, under either isolation, and of committed offsets. They filter as Java's consumer does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.base.errors import CorruptData
from headrace.sim.client import Lost
from headrace.sim.cluster.transactions.history import NO_PRODUCER, Logged, Look, Partition, Poll, Register, Seen
from headrace.sim.cluster.transactions.stage import GROUP, Stage, Ways
from headrace.wire.apis import ApiKey
from headrace.wire.batches import check_batch, decode_records, iterate_headers
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.wire.transactions import decode_marker

FETCH_VERSIONS: Final = (9, 12, 13, 16)
BY_ID: Final = 13
"""The version from which topics go by their ids."""
WAIT_MS: Final = 300
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
        self.position = position
        self.stable = self.high_watermark = -1
        """As the last answer told them."""
        self.log: list[Logged] = []
        """Records and markers, where it is not for committed ones only."""

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
        if not error.retriable and error is not ErrorCode.OFFSET_OUT_OF_RANGE:
            self._stage.world.problem("unreadable", f"{self._name} at {self.position} was told {error.name}")
        self._ways.is_no_leader(self._partition)
        await self._ways.pause()
        return []

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
        start, data = self.position, answered.records or b""
        self.stable, self.high_watermark = answered.last_stable_offset, answered.high_watermark
        aborted = [(each.first_offset, each.producer_id) for each in answered.aborted_transactions or ()]
        try:
            found = list(logged_in(data, start))
        except CorruptData as error:
            self._stage.world.problem("unreadable", f"{self._name} at {start}: {error}")
            return []
        if found:
            self.position = found[-1].offset + 1
        if not self._committed_only:
            self.log += found
        kept = committed_of(found, aborted) if self._committed_only else found
        records = [Seen(each.offset, each.value) for each in kept if each.value is not None]
        self._stage.history.polls.append(
            Poll(
                self._name,
                self._partition,
                self._committed_only,
                start,
                self.position,
                tuple(records),
                self.stable,
                self.high_watermark,
                self._stage.history.now(),
            )
        )
        return records

    async def read_to_the_end(self) -> list[Seen]:
        """All records from the position to the log's end, once everything below that is decided."""
        found: list[Seen] = []
        while not self.high_watermark == self.stable == self.position or self.high_watermark < 0:
            found += await self.poll(wait_ms=50)
        self.close()
        return found

    def close(self) -> None:
        self._ways.close()


def logged_in(data: bytes | memoryview, position: int) -> Iterator[Logged]:
    """The records and markers at and above `position`. Raises CorruptData on anything that is no sound batch."""
    for at, header in iterate_headers(data):
        batch = memoryview(data)[at : at + header.size]
        check_batch(data, at, at + header.size)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        if header.is_control:
            marker = decode_marker(batch)
            commits = None if marker is None else marker.committed
            if header.last_offset >= position:
                yield Logged(header.last_offset, producer_id, header.producer_epoch, None, commits)
            continue
        for record in decode_records(batch):
            if record.offset >= position:
                yield Logged(record.offset, producer_id, header.producer_epoch, record.value)


def committed_of(found: list[Logged], aborted: list[tuple[int, int]]) -> Iterator[Logged]:
    """The records of no aborted transaction. `aborted`: their first offsets and producers, as an answer lists them."""
    waiting = sorted(aborted)
    dropped: set[int] = set()
    for each in found:
        while waiting and waiting[0][0] <= each.offset:
            dropped.add(waiting.pop(0)[1])
        if each.commits is not None:
            if not each.commits:
                dropped.discard(each.producer_id)
        elif each.producer_id not in dropped:
            yield each


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
