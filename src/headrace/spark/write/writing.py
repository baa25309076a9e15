"""Writes one task's rows: gathered, packed, sealed and delivered, and acknowledged by all in-sync replicas.

Promises that `write` returns once every row is acknowledged, or raises with one sentence that names topic and
partition. At most SPARK_CHUNKS_AHEAD_MAX packed chunks wait for brokers. A failed task may have written some of its
rows. Spark runs it again, and these are then stored twice (at least once). Never makes a topic.
"""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ids import TopicId
from headrace.base.limits import (
    REQUEST_BYTES_MAX,
    SPARK_CHUNKS_AHEAD_MAX,
    SPARK_PRODUCER_IDLE_S,
    SPARK_TARGETS_MAX,
)
from headrace.net.client.delivery import Delivery, SealedBatch, UndeliveredError
from headrace.net.client.errors import ClientError, RefusedError
from headrace.net.client.security.settings import ClientSecurity
from headrace.net.client.two_phase import Prepared
from headrace.spark.brokers import Brokers
from headrace.spark.write.packing import STAMP_HEADERS, Layout, Packed, Packer, Stamp, packer_for
from headrace.spark.write.rows import Chunk, chunks
from headrace.spark.write.sink import WriteOptions
from headrace.wire.batches import seal_records
from headrace.wire.errors import ErrorCode

REQUEST_ROOM: Final = 64 * 1024
"""Bytes of a request beside its batches."""

RAISE_SIZE: Final = "raise the topic's max.message.bytes, or write smaller records"
ADVICE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: RAISE_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: RAISE_SIZE,
    ErrorCode.INVALID_RECORD: "a compacted topic takes no record without a key",
    ErrorCode.INVALID_TIMESTAMP: "see the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the brokers that hold its other replicas",
    ErrorCode.LEADER_NOT_AVAILABLE: "start the brokers that hold its replicas",
}
OTHER_ADVICE: Final = "once that is mended run the job again"


class WriteFailed(ClientError):  # noqa: N818 - what came of a task
    """Rows that a partition does not accept."""

    def __init__(self, error: UndeliveredError) -> None:
        cause: BaseException | None = error.reason
        while cause is not None and not isinstance(cause, RefusedError):
            cause = cause.__cause__
        advice = ADVICE.get(cause.code, OTHER_ADVICE) if cause is not None else OTHER_ADVICE
        reason = str(error.reason).removeprefix(f"Partition {error.partition} of topic '{error.topic}': ").rstrip(".")
        super().__init__(
            f"Topic '{error.topic}', partition {error.partition} cannot be written to: {reason}; {advice}."
        )


class Target(NamedTuple):
    """A topic to write to."""

    topic: str
    id: TopicId
    partitions: int
    message_bytes_max: int


class Tally(NamedTuple):
    """The amounts that a task wrote."""

    records: int
    bytes: int
    """Bytes of batches, as they were sent."""
    batches: int


def find_target(brokers: Brokers, topic: str) -> Target:
    """The topic as it is now. Raises UnknownTopicError where there is none, UsageError for a topic of the brokers' own,
    ClientError.
    """
    view = brokers.topic(topic)
    if view.internal:
        raise UsageError(f"Topic '{topic}' is the brokers' own: write to another.")
    return Target(topic, view.id, len(view.partitions), brokers.message_bytes_max(topic))


class TaskWriter:
    """One run of one task. For one thread."""

    def __init__(
        self,
        options: WriteOptions,
        known: Mapping[str, Target],
        stamp: Stamp | None,
        *,
        begin: int = 0,
        transaction: str | None = None,
    ) -> None:
        """`known`: targets that the driver has found. `begin`: the first partition for rows without a key.
        `transaction`: the transactional id in which the rows are written; somebody else ends it.
        """
        self._options = options
        self._targets = dict(known)
        self._stamp = stamp
        self._begin = begin
        self._packers: dict[str, Packer] = {}
        self._records = self._bytes = self._batches = 0
        self._transaction = transaction
        self.prepared: Prepared | None = None
        """After `write`, the transaction that waits for its end; None: there is none, for there was no row."""

    def write(self, batches: Iterable[Any], check: Callable[[], object] | None = None) -> Tally:
        """Write pyarrow.RecordBatch. `check` is called before each chunk is given to brokers, and stops the write where
        it raises. Raises WriteFailed, RowError, UsageError, ClientError.
        """
        producer: Producer | None = None
        pending: deque[Future[None]] = deque()
        try:
            for chunk in chunks(batches, self._options.topic, stamped=0 if self._stamp is None else STAMP_HEADERS):
                producer = producer or Producer.of(self._options, self._transaction)
                sealed = self._sealed(chunk, producer)
                if len(pending) == SPARK_CHUNKS_AHEAD_MAX:
                    pending.popleft().result()
                if check is not None:
                    check()
                pending.append(producer.deliver(sealed))
            while pending:
                pending.popleft().result()
        except UndeliveredError as error:
            raise WriteFailed(error) from error
        else:
            if producer is not None:
                self.prepared = producer.delivery.transaction
                producer.keep()
                producer = None
        finally:
            if producer is not None:
                producer.close()
        return Tally(self._records, self._bytes, self._batches)

    def _sealed(self, chunk: Chunk, producer: Producer) -> list[SealedBatch]:
        target = self._target(chunk.topic, producer)
        packer = self._packers.get(chunk.topic)
        if packer is None:
            limit = min(self._options.batch_bytes, target.message_bytes_max)
            layout = Layout(target.partitions, self._begin % target.partitions, limit, self._stamp)
            packer = self._packers[chunk.topic] = packer_for(layout)
        return [self._seal(target, packed, producer) for packed in packer.pack(chunk)]

    def _seal(self, target: Target, packed: Packed, producer: Producer) -> SealedBatch:
        producer_id, epoch = producer.delivery.producer
        data = seal_records(
            packed.room,
            count=packed.records,
            base_timestamp=packed.base_timestamp,
            max_timestamp=packed.max_timestamp,
            compression=self._options.compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=producer.delivery.next_sequence(target.id, packed.partition, packed.records),
            transactional=self._transaction is not None,
        )
        if len(data) > min(target.message_bytes_max, REQUEST_BYTES_MAX - REQUEST_ROOM):
            raise UsageError(
                f"A record for topic '{target.topic}', partition {packed.partition} makes a batch of {len(data)} "
                f"bytes, and the topic takes {target.message_bytes_max} at most: {RAISE_SIZE}."
            )
        self._records += packed.records
        self._bytes += len(data)
        self._batches += 1
        return SealedBatch(target.topic, target.id, packed.partition, data)

    def _target(self, topic: str, producer: Producer) -> Target:
        found = self._targets.get(topic)
        if found is None:
            if len(self._targets) == SPARK_TARGETS_MAX:
                raise UsageError(
                    f"Column topic names more than {SPARK_TARGETS_MAX} topics in one task: repartition by it."
                )
            found = self._targets[topic] = find_target(producer.brokers, topic)
        return found


def _key(options: WriteOptions, transaction: str | None) -> tuple[str, ClientSecurity, int, bool]:
    """A kept producer serves tasks with the same."""
    return options.bootstrap, options.security, options.delivery_timeout_ms, transaction is not None


class Producer:
    """Connections and a producer id, which a worker keeps from one task to the next. Each transaction has a producer
    id of its own."""

    _kept: Producer | None = None
    _is_let_go = False
    """Whether the end of this process closes the kept one."""

    def __init__(self, options: WriteOptions, transaction: str | None = None) -> None:
        self._key = _key(options, transaction)
        self._since = 0.0
        self.brokers = Brokers(options.bootstrap, options.security)
        self._opening = self._begin(options, transaction)

    def _begin(
        self, options: WriteOptions, transaction: str | None, behind: Delivery | None = None
    ) -> Future[Delivery]:
        topics = () if options.topic is None else (options.topic,)
        return self.brokers.begin_delivery(options.delivery_timeout_ms, transaction, topics=topics, behind=behind)

    @property
    def delivery(self) -> Delivery:
        """The delivery, once it is open. Raises ClientError."""
        return self._opening.result()

    @classmethod
    def of(cls, options: WriteOptions, transaction: str | None = None) -> Producer:
        """The kept producer, if it fits and is not too old, or a new one. It is opened meanwhile: rows are packed
        before its id is there."""
        kept, cls._kept = cls._kept, None
        if kept is not None:
            idle_s = time.monotonic() - kept._since
            if kept._key == _key(options, transaction) and idle_s < SPARK_PRODUCER_IDLE_S:
                return kept if transaction is None else kept._for_another(options, transaction)
            kept.close()
        return cls(options, transaction)

    def _for_another(self, options: WriteOptions, transaction: str) -> Producer:
        """This producer, in another transaction."""
        self._opening = self._begin(options, transaction, self.delivery)
        return self

    def deliver(self, batches: list[SealedBatch]) -> Future[None]:
        return self.brokers.deliver(self.delivery, batches)

    def keep(self) -> None:
        """Keep this producer for the next task of this worker. All its deliveries are acknowledged."""
        self._since = time.monotonic()
        Producer._kept = self
        if not Producer._is_let_go:
            Producer._is_let_go = True
            atexit.register(Producer.forget)

    def close(self) -> None:
        """Close at once. Unacknowledged batches may be stored or not."""
        if not self._opening.cancel() and self._opening.exception() is None:
            self.brokers.stop(self.delivery)
        self.brokers.close()

    @classmethod
    def forget(cls) -> None:
        """Close the kept producer."""
        kept, cls._kept = cls._kept, None
        if kept is not None:
            kept.close()
