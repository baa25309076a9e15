"""The producing half of the workload: each lane is one producer writing to one partition, in bursts of batches.

An idempotent lane resends batches in doubt, with the same bytes and sequence, to the present leader until it knows the
outcome. A plain lane never resends. So in both a record may be in the log once at most.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.clock import BORN_MS
from headrace.sim.cluster.records.history import Sent
from headrace.sim.cluster.records.stage import RETRY_SECONDS_MAX, Route, Stage
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record

BURST_BATCHES_MAX: Final = 4
REMEMBERED: Final = 5
"""Batches of a producer that a broker recognises. Like clients, a producer sends no more than these behind one in
doubt."""
BATCH_RECORDS_MAX: Final = 3
THINK_SECONDS_MAX: Final = 0.15
BURSTS_MAX: Final = 25
"""Bursts after which a lane ends; another may begin on another partition."""
TIMEOUTS_MS: Final = (300, 4_500)
BY_ID: Final = 13
"""The version from which topics go by their ids."""
GONE: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
"""Errors that an idempotent producer at acks=1 may get after a leader died with records that only it had."""


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    """Position in its lane."""
    first: int
    """Position of its first record in its lane."""
    values: list[bytes]
    data: bytes


class Lane:
    """The lane, as the module says. `acks` is -1 (all) or 1."""

    def __init__(self, stage: Stage, name: str, partition: PartitionKey, *, idempotent: bool, acks: int) -> None:
        self._stage = stage
        self._world = stage.world
        self.name = name
        self._partition = partition
        self._idempotent = idempotent
        self._acks = acks
        self._route = Route(stage, name, partition)
        self._padding = stage.world.random.choice((0, 50, 500))
        self._number = self._batches = self._sequence = 0
        self._producer = (-1, -1)
        self._open: list[_Batch] = []
        self._bursts = stage.world.random.randrange(1, BURSTS_MAX + 1)
        self._is_known = not idempotent
        """Whether the broker knows the producer. It accepts the first batch of an unknown one whatever its sequence (as
        in Kafka). So with several batches under way, the first could be refused and the second accepted."""
        self.waits_for = ""
        """The last error, for a reader of a stuck run."""

    @property
    def _is_ending(self) -> bool:
        return self._stage.winding_down or self._bursts <= 0

    async def run(self) -> None:
        """Send until it has no more bursts, or the world winds down, and nothing is in doubt."""
        while self._open or not self._is_ending:
            settled = await self._ready() and await self._burst()
            await self._world.think(THINK_SECONDS_MAX if settled else RETRY_SECONDS_MAX)
        self._route.close()

    async def _ready(self) -> bool:
        """Get a producer id where one is needed; returns whether it is ready."""
        if not self._idempotent or self._producer[0] >= 0:
            return True
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        try:
            answer = await self._route.any(ApiKey.INIT_PRODUCER_ID, 4, request)
        except Lost:
            return False
        if answer.error_code != ErrorCode.NONE:
            return False
        if answer.producer_id in self._stage.producer_ids:
            self._world.problem("producer-id-reused", f"{self.name} was given {answer.producer_id} again")
        self._stage.producer_ids.add(answer.producer_id)
        self._producer = answer.producer_id, answer.producer_epoch
        return True

    async def _burst(self) -> bool:
        """Send some batches to the leader without waiting between them. True when all were settled."""
        if not self._is_ending:
            self._bursts -= 1
            wanted = self._world.random.randrange(1, BURST_BATCHES_MAX + 1) if self._is_known else 1
            while len(self._open) < wanted and not (self._open and self._batches - self._open[0].number >= REMEMBERED):
                self._open.append(self._next_batch())
        client = await self._route.find()
        if client is None or not await _connected(client):
            self._route.is_wrong()
            return False
        seen = self._stage.judge.glimpse(self._partition, self._route.leader)
        version = self._stage.produce_version
        batches, self._open = self._open, []
        answers = [client.send(ApiKey.PRODUCE, version, self._request(batch)) for batch in batches]
        for batch, answer in zip(batches, answers, strict=True):
            try:
                error, offset = _answered(await client.answer(answer))
            except Lost:
                error, offset = ErrorCode.NETWORK_EXCEPTION, -1
            what = f"{len(batch.values)} records from {batch.first} on, sent to {seen.node}"
            self._world.tell(f"{self.name}: {what}: {error.name if error else f'at offset {offset}'}")
            if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._stage.history.acknowledge(batch.values, offset, on_all=self._acks == -1)
                self._stage.judge.on_served(seen, "takes a batch")
                self._is_known = True
                if self._acks == -1:
                    self._stage.judge.on_acknowledged(seen, batch.data, offset, len(batch.values))
            else:
                self._refused(batch, error)
        return not self._open

    def _refused(self, batch: _Batch, error: ErrorCode) -> None:
        """The batch is in doubt, or was refused. The first in doubt may only be refused for transient reasons."""
        self._route.is_wrong()
        self.waits_for = error.name
        may_be_lost = self._acks == 1 or self._stage.may_lose
        if self._idempotent and may_be_lost and error in GONE and not self._open:
            self._world.tell(f"{self.name} ends: what was acknowledged to it is lost")
            self._open, self._bursts = [], 0
            return
        if not self._open and not error.retriable:
            self._world.problem("refused", f"{self.name} was told {error.name}")
        if self._idempotent:
            self._open.append(batch)

    def _request(self, batch: _Batch) -> ProduceRequest:
        data = (PartitionProduceData(index=self._partition.number, records=batch.data),)
        name = self._stage.partitions[self._partition]
        if self._stage.produce_version >= BY_ID:
            topic = TopicProduceData(topic_id=self._partition.topic_id, partition_data=data)
        else:
            topic = TopicProduceData(name=name, partition_data=data)
        return ProduceRequest(acks=self._acks, timeout_ms=self._world.random.choice(TIMEOUTS_MS), topic_data=(topic,))

    def _next_batch(self) -> _Batch:
        records = []
        timestamp = BORN_MS + int(self._world.loop.time() * 1000)
        for place in range(self._world.random.randrange(1, BATCH_RECORDS_MAX + 1)):
            padding = "." * self._world.random.randrange(0, self._padding + 1)
            value = f"{self.name}/{self._number}/{padding}".encode()
            self._stage.history.sent[value] = Sent(self._partition, self.name, self._number)
            records.append(Record(place, timestamp, None, value))
            self._number += 1
        data = encode_batch(
            records,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequence if self._idempotent else -1,
        )
        self._sequence += len(records)
        self._batches += 1
        values = [record.value for record in records if record.value is not None]
        return _Batch(self._batches - 1, self._number - len(records), values, bytes(data))


async def _connected(client: Client) -> bool:
    try:
        await client.connect()
    except Lost:
        return False
    return True


def _answered(answer: Any) -> tuple[ErrorCode, int]:
    [topic] = answer.responses
    [partition] = topic.partition_responses
    return error_of(partition.error_code), partition.base_offset


class Producers:
    """Starts lanes on existing partitions."""

    def __init__(self, stage: Stage, lanes: int) -> None:
        self._stage = stage
        self._wanted = lanes
        self._count = 0
        self.lanes: dict[asyncio.Task[None], Lane] = {}

    async def run(self) -> None:
        """Keep the wanted number of lanes running until the world winds down, then wait for them."""
        world = self._stage.world
        while not world.winding_down:
            if len(self.lanes) < self._wanted:
                lane = self._some_lane()
                self.lanes[world.loop.create_task(lane.run())] = lane
            self._bury()
            await world.think(0.05)
        while self.lanes:
            await asyncio.wait(self.lanes, return_when=asyncio.FIRST_COMPLETED)
            self._bury()

    def _bury(self) -> None:
        for task in [each for each in self.lanes if each.done()]:
            task.result()
            del self.lanes[task]

    def _some_lane(self) -> Lane:
        chance = self._stage.world.random
        self._count += 1
        idempotent = chance.random() < 0.75
        acks = -1 if chance.random() < 0.7 else 1
        kind = f"{'idem' if idempotent else 'plain'}-{'all' if acks < 0 else 'one'}"
        partition = chance.choice(list(self._stage.partitions))
        return self._lane(f"{kind}-{self._count}", partition, idempotent=idempotent, acks=acks)

    def _lane(self, name: str, partition: PartitionKey, *, idempotent: bool, acks: int) -> Lane:
        return Lane(self._stage, name, partition, idempotent=idempotent, acks=acks)
