"""The consuming half of the workload: readers that follow a partition from its start, wherever its leader goes.

Like consumers, a reader continues from its position, or from the earliest offset where its position is out of range.
Some name the leader epoch that they know (KIP-320). Some name a rack and read from any replica (KIP-392), another one
each time.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.base.errors import CorruptData
from headrace.sim.client import Lost
from headrace.sim.cluster.records.history import Poll
from headrace.sim.cluster.records.stage import RETRY_SECONDS_MAX, Route, Stage
from headrace.sim.consumers import records_from
from headrace.sim.history import Found, PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

WAIT_MS: Final = 300
BY_RACK: Final = 11
"""The version from which readers name their rack."""
ROAMS: Final = 0.3
BY_ID: Final = 13
"""The version from which topics go by their ids."""
LATEST: Final = -1
THINK_SECONDS_MAX: Final = 0.05


class Reader:
    """One consumer of one partition."""

    def __init__(self, stage: Stage, name: str, partition: PartitionKey, *, roams: bool = False) -> None:
        """`roams`: it may be one that reads from any replica."""
        self._stage = stage
        self._world = stage.world
        self._name = name
        self._partition = partition
        self._route = Route(stage, name, partition)
        self._bytes_max = stage.world.random.choice((1, 1000, 100_000))
        self._names_epoch = stage.world.random.random() < 0.7
        self._chance = stage.world.chance(f"racks {name}")
        self._roams = roams and stage.fetch_version >= BY_RACK and self._chance.random() < ROAMS
        self._marks: dict[tuple[int, int], int] = {}
        """The highest high watermark that each broker has shown a roaming reader, by leader epoch."""
        self.position = 0

    async def run(self) -> None:
        """Read until the world winds down."""
        while not self._stage.winding_down:
            await self.poll()
            await self._world.think(THINK_SECONDS_MAX)
        self.close()

    async def poll(self) -> list[Found]:
        """The next records; an empty list also where the leader is not found."""
        client = await self._route.find()
        if client is None:
            return []
        epoch = self._route.epoch if self._names_epoch else -1
        node = self._route.leader
        if self._roams:
            node = self._chance.choice(self._stage.hosts).node
            client = self._route.client(node)
        seen = self._stage.judge.glimpse(self._partition, node)
        try:
            answer = await client.call(ApiKey.FETCH, self._stage.fetch_version, self._request(epoch))
        except Lost:
            return await self._lost_it()
        [topic] = answer.responses
        [answered] = topic.partitions
        error = error_of(answered.error_code)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE and not self._roams:  # another replica may be a former leader
            self._world.tell(f"{self._name} is told that there is no offset {self.position}")
            self.position = self._stage.judge.start_of(self._partition)
        elif error is not ErrorCode.NONE:
            if error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                self._refused(error, node)
            else:
                self.position = max(self.position, self._stage.judge.start_of(self._partition))
            return await self._lost_it()
        elif self._roams:
            self._see(node, epoch, answered.high_watermark)
            return await self._take(answered, node)
        else:
            self._stage.judge.on_served(seen, "gives records", epoch)
            if epoch >= 0:
                self._stage.judge.on_high_watermark(seen, epoch, answered.high_watermark)
            return await self._take(answered, node)
        return []

    def _see(self, node: int, epoch: int, high_watermark: int) -> None:
        """A replica shows it, whichever broker leads."""
        before = self._marks.get((node, epoch), 0)
        if epoch >= 0 and high_watermark < before:
            where = f"{self._name} in epoch {epoch}"
            self._world.problem("high-watermark-fell", f"{where} from {before} to {high_watermark}, says {node}")
        self._marks[node, epoch] = max(before, high_watermark)

    async def _lost_it(self) -> list[Found]:
        self._route.is_wrong()
        await self._world.think(RETRY_SECONDS_MAX)
        return []

    def _refused(self, error: ErrorCode, node: int) -> None:
        if error is ErrorCode.CORRUPT_MESSAGE and self._stage.judge.may_be_corrupt(node, self._partition):
            self._world.tell(f"{self._name} is told by {node} that offset {self.position} is damaged")
        elif not error.retriable or error is ErrorCode.CORRUPT_MESSAGE:
            self._world.problem("unreadable", f"{self._name} at {self.position} was told {error.name}")

    async def _take(self, answered: Any, node: int) -> list[Found]:
        try:
            records = list(records_from(answered.records or b"", self.position))
        except CorruptData as error:
            if self._stage.judge.may_be_corrupt(node, self._partition):  # as its client would
                return await self._lost_it()
            self._world.problem("unreadable", f"{self._name} at {self.position}: {error}")
            return []
        if not records:
            return []
        self._stage.history.polls.append(Poll(self._name, self._partition, records))
        if records[-1].offset >= answered.high_watermark:
            text = f"{self._name} got offset {records[-1].offset} under a high watermark of {answered.high_watermark}"
            self._world.problem("unstable-read", text)
        self.position = records[-1].offset + 1
        self._stage.judge.on_shown(self._partition, self.position)
        return records

    def _request(self, epoch: int) -> FetchRequest:
        asked = FetchPartition(
            partition=self._partition.number,
            current_leader_epoch=epoch,
            fetch_offset=self.position,
            partition_max_bytes=self._bytes_max,
        )
        name, key = self._stage.partitions[self._partition], self._partition.topic_id
        by_id = self._stage.fetch_version >= BY_ID
        topic = FetchTopic(topic_id=key, partitions=(asked,)) if by_id else FetchTopic(topic=name, partitions=(asked,))
        rack = "anywhere" if self._roams else ""
        return FetchRequest(
            max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=4 * self._bytes_max, topics=(topic,), rack_id=rack
        )

    async def read_to_the_end(self) -> list[Found]:
        """All records from the position to the end that the leader reports."""
        found: list[Found] = []
        while (end := await self._end()) is None or self.position < end:
            found += await self.poll()
        self.close()
        return found

    async def _end(self) -> int | None:
        """The end of the partition; None: no broker tells it."""
        client = await self._route.find()
        if client is None:
            return None
        name = self._stage.partitions[self._partition]
        asked = ListOffsetsPartition(self._partition.number, self._route.epoch, LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=name, partitions=(asked,)),))
        promised = self._stage.judge.promised_under(self._partition, self._route.epoch)
        seen = self._stage.judge.glimpse(self._partition, self._route.leader)
        try:
            answer = await client.call(ApiKey.LIST_OFFSETS, 7, request)
        except Lost:
            await self._lost_it()
            return None
        [answered] = answer.topics[0].partitions
        if error := error_of(answered.error_code):
            self._refused(error, seen.node)
            await self._lost_it()
            return None
        self._stage.judge.on_served(seen, "tells the end", self._route.epoch)
        if answered.offset < promised:
            text = f"partition {self._partition.number} is said to end at {answered.offset} by {self._route.leader}"
            self._world.problem("lost-write", f"{text}, {promised} records were promised")
        end: int = answered.offset
        return end

    async def probe(self) -> None:
        """Ask for the end from time to time, until the world winds down."""
        while not self._stage.winding_down:
            await self._end()
            await self._world.think(0.5)
        self.close()

    def close(self) -> None:
        self._route.close()
