"""The producing half of the workload: each lane is one producer writing to one partition, in bursts of batches.

An idempotent lane resends batches in doubt, with the same bytes and sequence, until it knows the outcome. A plain lane
never resends. So in both a record may be in the log once at most.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from headrace.sim.client import Client, Lost
from headrace.sim.clock import BORN_MS
from headrace.sim.history import PartitionKey, Sent
from headrace.sim.world import BROKER, World
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record

BURST_BATCHES_MAX: Final = 4
"""Fewer than the five batches per producer that a broker remembers."""
BATCH_RECORDS_MAX: Final = 6
THINK_SECONDS_MAX: Final = 0.06
RETRY_SECONDS_MAX: Final = 0.05
BURSTS_MAX: Final = 25
"""Bursts after which a lane ends; another may begin on another partition."""
TRIES_WHILE_WINDING_DOWN_MAX: Final = 400
"""About ten seconds, at RETRY_SECONDS_MAX. A producer may lack records that a leader alone had acknowledged. It learns
that only OVERTAKING_MS_MAX after the leader's beginning, and users' clients retry for two minutes."""
TIMEOUT_MS: Final = 3_000
HASTY_EVERY: Final = 4
"""About one idempotent lane in this many asks for acks=1, and still resends batches in doubt."""

GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class _Batch:
    values: list[bytes]
    data: bytes


class Lane:
    """The lane, as the module says. `acks` is -1 (all) or 1."""

    def __init__(
        self, world: World, name: str, partition: PartitionKey, topic: str, *, idempotent: bool, hasty: bool = False
    ) -> None:
        self._world = world
        self._name = name
        self._partition = partition
        self._topic = topic
        self._idempotent = idempotent
        self._hasty = hasty
        self._acks = -1 if idempotent or world.random.random() < 0.6 else 1
        if hasty:
            self._acks = 1
        self._era = world.history.era
        """The era in which it began."""
        self._client = Client(name, BROKER)
        self._codec = world.random.choice((Compression.NONE, Compression.NONE, Compression.LZ4, Compression.GZIP))
        self._padding = world.random.choice((0, 100, 100, 600, 5000))
        self._number = 0
        self._sequence = 0
        self._producer = (-1, -1)
        self._open: list[_Batch] = []
        self._tries = 0
        self._bursts = world.random.randrange(1, BURSTS_MAX + 1)

    @property
    def _is_ending(self) -> bool:
        """Whether it starts nothing new."""
        return self._world.winding_down or self._bursts <= 0

    async def run(self) -> None:
        """Send until it has no more bursts, or the world winds down, and nothing is in doubt; or until the topic is
        gone."""
        world = self._world
        while self._partition in world.live_partitions and (self._open or not self._is_ending):
            if not await self._ready_to_send() or not await self._burst():
                await world.think(RETRY_SECONDS_MAX)
            else:
                await world.think(THINK_SECONDS_MAX)
        self._client.close()

    async def _ready_to_send(self) -> bool:
        """Connect, and get a producer id where one is needed; returns whether it is ready."""
        try:
            await self._client.connect()
            if self._idempotent and self._producer[0] < 0:
                await self._take_producer_id()
        except Lost:
            return self._stuck_soon("no connection")
        return not self._idempotent or self._producer[0] >= 0

    async def _take_producer_id(self) -> None:
        answer = await self._client.call(
            ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        )
        if answer.error_code != ErrorCode.NONE:
            return
        history = self._world.history
        if answer.producer_id in history.producer_ids:
            history.problem("producer-id-reused", f"{self._name} was given {answer.producer_id} again")
        history.producer_ids.add(answer.producer_id)
        self._producer = (answer.producer_id, answer.producer_epoch)

    async def _burst(self) -> bool:
        """Send some batches without waiting between them. True when all were settled."""
        if not self._is_ending:
            self._bursts -= 1
            wanted = self._world.random.randrange(1, BURST_BATCHES_MAX + 1)
            while len(self._open) < wanted:
                self._open.append(self._next_batch())
        batches, era = self._open, self._world.history.era
        answers = [self._client.send(ApiKey.PRODUCE, self._world.versions.produce, self._request(b)) for b in batches]
        self._open = []
        for batch, answer in zip(batches, answers, strict=True):
            try:
                error, offset = self._answered(await self._client.answer(answer))
            except Lost:
                error, offset = ErrorCode.NETWORK_EXCEPTION, -1
            self._settle(batch, error, offset, era)
        return not self._open or self._stuck_soon("cannot settle")

    def _settle(self, batch: _Batch, error: ErrorCode, offset: int, era: int) -> None:
        history = self._world.history
        if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            history.acknowledge(batch.values, offset, durable=self._acks == -1, sent_in_era=era)
            self._tries = 0
        elif not self._idempotent:
            self._check_refusal(error)
        elif self._hasty and error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and history.era != self._era:
            self._world.tell(f"{self._name} ends: what the leader alone acknowledged is lost")
            self._open, self._bursts = [], 0
        else:
            if not self._open:
                self._check_refusal(error)
            self._open.append(batch)

    def _check_refusal(self, error: ErrorCode) -> None:
        """Check that the first batch in doubt is only refused for transient reasons."""
        if self._world.in_trouble:
            return
        if error.retriable and error not in GONE and error is not ErrorCode.CORRUPT_MESSAGE:
            return
        if error in GONE and self._partition not in self._world.live_partitions:
            return
        self._world.history.problem("refused", f"{self._name} on {self._topic} was told {error.name}")

    def _stuck_soon(self, why: str) -> bool:
        self._tries += 1
        if self._world.winding_down and self._tries > TRIES_WHILE_WINDING_DOWN_MAX:
            self._world.history.problem("stuck", f"{self._name} on {self._topic}: {why}")
            self._open = []
        return False

    def _answered(self, answer: object) -> tuple[ErrorCode, int]:
        [topic] = answer.responses  # type: ignore[attr-defined]  # a ProduceResponse
        [partition] = topic.partition_responses
        return error_of(partition.error_code), partition.base_offset

    def _request(self, batch: _Batch) -> ProduceRequest:
        data = (PartitionProduceData(index=self._partition.number, records=batch.data),)
        topic = TopicProduceData(name=self._topic, topic_id=self._partition.topic_id, partition_data=data)
        if not self._world.versions.produces_by_id:
            topic = TopicProduceData(name=self._topic, partition_data=data)
        return ProduceRequest(acks=self._acks, timeout_ms=TIMEOUT_MS, topic_data=(topic,))

    def _next_batch(self) -> _Batch:
        world, records = self._world, []
        timestamp = BORN_MS + int(world.loop.time() * 1000)
        for place in range(world.random.randrange(1, BATCH_RECORDS_MAX + 1)):
            padding = "." * world.random.randrange(0, self._padding + 1)
            key, value = self._name.encode(), f"{self._name}/{self._number}/{padding}".encode()
            world.history.sent[value] = Sent(
                self._partition, self._name, self._number, key, timestamp, self._idempotent
            )
            records.append(Record(place, timestamp, key, value))
            self._number += 1
        data = encode_batch(
            records,
            compression=self._codec,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequence if self._idempotent else -1,
        )
        self._sequence += len(records)
        return _Batch([record.value for record in records if record.value is not None], data)


class Producers:
    """Starts lanes on all existing partitions."""

    def __init__(self, world: World, lanes: int) -> None:
        self._world = world
        self._wanted = lanes
        self._count = 0

    async def run(self) -> None:
        """Keep the wanted number of lanes running until the world winds down, then wait for them."""
        world = self._world
        lanes: list[asyncio.Task[None]] = []
        while not world.winding_down:
            if len(lanes) < self._wanted and world.live_partitions:
                partition = world.random.choice(list(world.live_partitions))
                self._count += 1
                idempotent = world.random.random() < 0.6
                name = f"{'idem' if idempotent else 'plain'}-{self._count}"
                hasty = idempotent and self._count % HASTY_EVERY == 0
                topic = world.live_partitions[partition]
                lane = Lane(world, name, partition, topic, idempotent=idempotent, hasty=hasty)
                lanes.append(world.loop.create_task(lane.run()))
            for task in [each for each in lanes if each.done()]:
                task.result()
                lanes.remove(task)
            await world.think(0.02)
        for task in lanes:
            await task
