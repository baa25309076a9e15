"""Writes records: batches them per partition, sends each batch to the leader, retries without repeats or reordering.

Promises:

- The records of one partition are stored in the order of `send`, and with idempotence each once (KIP-98).
- Every `send` resolves, with a place or an error.
- Memory is bounded.

There is no linger timer. A batch leaves when the one before it is answered, so batches grow by themselves under load.
At most one batch of a partition is in flight.
"""

from __future__ import annotations

import asyncio
import random as chance
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from headrace.base.errors import UsageError
from headrace.base.ids import NO_PRODUCER_ID, Offset, PartitionIndex
from headrace.base.limits import CLIENT_BUFFER_BYTES_MAX
from headrace.base.ports import Random
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError, GaveUpError, RefusedError, check
from headrace.net.client.partitioner import partition_of
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import produce as wire
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.records import Record

ACKS_ALL = -1
PRODUCE_TIMEOUT_MS = 30_000
BATCH_BYTES = 512 * 1024
"""A batch is closed before it grows past this size. A larger record is sent alone."""
RECORD_OVERHEAD_BYTES = 24
SEQUENCES = 1 << 31


class Placed(NamedTuple):
    """Where a record was stored. `offset` is -1 where the broker does not report it (acks=0, or a repeat that it
    dropped).
    """

    topic: str
    partition: PartitionIndex
    offset: Offset


@dataclass(slots=True, eq=False)
class _Batch:
    """Records on their way to one partition, and the futures that wait for them."""

    records: list[Record] = field(default_factory=list)
    waiters: list[asyncio.Future[Placed]] = field(default_factory=list)
    bytes: int = 0
    sent: int = 0
    """How often it was sent. After the first time, a refusal does not mean that it is not stored."""


@dataclass(slots=True, eq=False)
class _Writer:
    """One partition's queue. Invariant: while `task` runs, it alone takes from `batches` and counts `sequence`."""

    topic: str
    partition: PartitionIndex
    batches: deque[_Batch] = field(default_factory=deque)
    sequence: int = 0
    task: asyncio.Task[None] | None = None


class Producer:
    """Writes to the topics of one cluster. An async context manager: leaving it flushes."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        compression: Compression = Compression.NONE,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = CLIENT_BUFFER_BYTES_MAX,
        auto_create: bool = False,
        random: Random | None = None,
    ) -> None:
        """`acks` is -1 (all), 1 or 0; `idempotent` needs -1."""
        assert acks in (-1, 0, 1), acks
        assert acks == ACKS_ALL or not idempotent, "idempotence needs acks=all"
        self._cluster = cluster
        self._acks = acks
        self._idempotent = idempotent
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._auto_create = auto_create
        self._random: Random = random or chance.Random()
        self._writers: dict[tuple[str, int], _Writer] = {}
        self._counts: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        self._buffered = 0
        self._room = asyncio.Event()
        self._room.set()
        self._producer: tuple[int, int] | None = None
        self._identity_lock = asyncio.Lock()
        self._failed: ClientError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.flush()
        await self.abort()

    async def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        timestamp_ms: int,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
    ) -> asyncio.Future[Placed]:
        """Queue one record. The future returns its place. Waits where the buffer is full.

        Without a partition, the key chooses one, as in the Java client. Without a key, one partition is used until its
        batch is full (KIP-480). Raises ClientError where the topic does not exist, UsageError for a partition that it
        does not have.
        """
        await self._room.wait()
        if self._failed is not None:
            raise self._failed
        count = self._counts.get(topic) or await self._count(topic)
        if partition is None:
            partition = partition_of(key, count) if key is not None else self._stick(topic, count)
        elif not 0 <= partition < count:
            raise UsageError(f"Topic '{topic}' has partitions 0 to {count - 1}, not {partition}.")
        return self._queue(topic, PartitionIndex(partition), Record(0, timestamp_ms, key, value, tuple(headers)))

    async def flush(self) -> None:
        """Wait until everything sent is answered. Does not raise: each `send` has its own outcome."""
        while tasks := [writer.task for writer in self._writers.values() if writer.task is not None]:
            await asyncio.wait(tasks)

    async def abort(self) -> None:
        """Stop at once. Unanswered records fail with GaveUpError. Idempotent."""
        self._failed = self._failed or GaveUpError("The producer was closed before this record was acknowledged.")
        tasks = [writer.task for writer in self._writers.values() if writer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers.values():
            self._fail_all(writer, self._failed)

    # inner

    async def _count(self, topic: str) -> int:
        """The topic's number of partitions, requested once: a key keeps its partition for as long as the producer
        lives.
        """

        async def ask() -> int:
            if self._auto_create:
                return len((await self._cluster.topic(topic, auto_create=True)).partitions)
            return len((await self._cluster.existing_topic(topic, may_be_made=True)).partitions)

        count = self._counts[topic] = await self._cluster.retried(ask)
        return count

    def _stick(self, topic: str, count: int) -> int:
        chosen = self._sticky.get(topic, -1)
        if not 0 <= chosen < count:
            chosen = self._sticky[topic] = self._random.randrange(0, count)
        return chosen

    def _queue(self, topic: str, partition: PartitionIndex, record: Record) -> asyncio.Future[Placed]:
        writer = self._writers.get((topic, partition))
        if writer is None:
            writer = self._writers[topic, partition] = _Writer(topic, partition)
        size = _size(record)
        if not writer.batches or writer.batches[-1].bytes + size > self._batch_bytes:
            writer.batches.append(_Batch())
            if len(writer.batches) > 1:
                self._sticky.pop(topic, None)
        batch = writer.batches[-1]
        batch.records.append(record._replace(offset=len(batch.records)))
        batch.bytes += size
        placed: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        batch.waiters.append(placed)
        self._buffered += size
        if self._buffered >= self._buffer_bytes:
            self._room.clear()
        if writer.task is None:
            writer.task = asyncio.create_task(self._write(writer))
        return placed

    async def _write(self, writer: _Writer) -> None:
        """Send one partition's batches, one after the other, until none is left."""
        try:
            while writer.batches:
                batch = writer.batches.popleft()
                self._sticky.pop(writer.topic, None)
                try:
                    await self._deliver(writer, batch)
                except ClientError as error:
                    self._settle(batch, error)
                    if self._idempotent and (batch.sent > 1 or not isinstance(error, RefusedError)):
                        self._failed = error  # it is unknown whether the batch is stored: its sequence is in doubt
                except asyncio.CancelledError:
                    writer.batches.appendleft(batch)
                    raise
                except Exception as error:  # a malformed answer, or a bug: no caller may wait for ever
                    self._failed = GaveUpError(f"Producing to topic '{writer.topic}' failed unexpectedly: {error!r}.")
                    self._settle(batch, self._failed)
                if self._failed is not None:
                    self._fail_all(writer, self._failed)
        finally:
            writer.task = None

    async def _deliver(self, writer: _Writer, batch: _Batch) -> None:
        producer_id, epoch = await self._identity()
        encoded = encode_batch(
            batch.records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=writer.sequence if self._idempotent else -1,
        )
        base = await self._cluster.retried(lambda: self._attempt(writer, batch, encoded), (writer.topic,))
        if self._idempotent:
            writer.sequence = (writer.sequence + len(batch.records)) % SEQUENCES
        self._release(batch)
        for index, waiter in enumerate(batch.waiters):
            if not waiter.done():
                offset = Offset(base + index if base >= 0 else -1)
                waiter.set_result(Placed(writer.topic, writer.partition, offset))

    async def _attempt(self, writer: _Writer, batch: _Batch, encoded: bytes) -> int:
        """One try. Returns the base offset, or -1 where the broker does not report it."""
        view = await self._cluster.topic(writer.topic)
        leader = await self._cluster.partition(writer.topic, writer.partition)
        connection = await self._cluster.broker_connection(leader.leader)
        data = wire.PartitionProduceData(index=writer.partition, records=memoryview(encoded))
        topic = wire.TopicProduceData(name=writer.topic, topic_id=view.id, partition_data=(data,))
        request = wire.ProduceRequest(acks=self._acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=(topic,))
        batch.sent += 1
        response = await connection.request(
            ApiKey.PRODUCE, request, timeout_ms=PRODUCE_TIMEOUT_MS + 5_000, answered=self._acks != 0
        )
        return -1 if response is None else _base_offset(response, writer)

    async def _identity(self) -> tuple[int, int]:
        """Producer id and epoch, requested once; (-1, -1) without idempotence."""
        if not self._idempotent:
            return NO_PRODUCER_ID, -1
        async with self._identity_lock:
            if self._producer is None:
                self._producer = await new_producer_id(self._cluster)
        return self._producer

    def _settle(self, batch: _Batch, error: ClientError) -> None:
        self._release(batch)
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # marks it as seen: a caller that only flushed does not look

    def _release(self, batch: _Batch) -> None:
        self._buffered -= batch.bytes
        if self._buffered < self._buffer_bytes:
            self._room.set()

    def _fail_all(self, writer: _Writer, error: ClientError) -> None:
        while writer.batches:
            self._settle(writer.batches.popleft(), error)


async def new_producer_id(cluster: Cluster) -> tuple[int, int]:
    """A producer id that no other producer has, and its epoch. Raises ClientError."""

    async def ask() -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        response = await cluster.ask_any(ApiKey.INIT_PRODUCER_ID, request)
        check(response.error_code, "A producer id")
        return response.producer_id, response.producer_epoch

    return await cluster.retried(ask)


def _size(record: Record) -> int:
    """The approximate size of a record in a batch, before compression, in bytes."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES


def _base_offset(response: Any, writer: _Writer) -> int:
    ((result,),) = (topic.partition_responses for topic in response.responses)
    if result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return -1
    check(result.error_code, f"Partition {writer.partition} of topic '{writer.topic}'", result.error_message)
    offset: int = result.base_offset
    return offset
