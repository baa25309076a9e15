"""Producers under load that know what was acknowledged to them, and a reader that says what is really there.

The oracle is on the client's side only: what librdkafka reported as delivered, at which partition and offset. It
knows nothing of the broker's files or memory.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka

from tests.threads import joined
from tests.tiers import of_tier

PARTITIONS: Final = 3
DEADLINE_S: Final = 150.0
QUEUED_MESSAGES_MAX: Final = 2_000
BURST_MESSAGES: Final = 1_000
LINGER_MS: Final = of_tier(short=1_000, long=2)
"""Of a producer with idempotence, whose full batches go at once, and the rest with the next burst or `flush`. While a
broker does not answer, librdkafka's thread for it never rests once a record has waited for longer than that. With 2 ms
such threads take up to a sixth of the processors. The long tier leaves nothing to wait for the next burst."""
BURST_EVERY_S: Final = 0.2
"""The pace of a producer: bursts, so that a kill that follows an acknowledgement finds requests in flight."""
ASKED_AGAIN: Final = (
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError._DESTROY_BROKER,  # librdkafka gave up its handle of a broker while it asked
)
QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda _: None}
"""librdkafka tells of every refused connection, and a killed broker refuses them by design."""

PartitionLogs = dict[int, dict[int, bytes]]
"""Partition to offset to value."""


@dataclass(slots=True)
class Acknowledged:
    """Everything that was reported as delivered, and what failed. Written by the producer's thread."""

    log: PartitionLogs
    count: int = 0
    twice: list[tuple[int, int]] = field(default_factory=list)
    unplaced: list[tuple[int, bytes]] = field(default_factory=list)
    """Partition and value of records delivered at an offset that the client does not know. An answer was lost, and a
    later one showed that the record had been taken (librdkafka: an implicit acknowledgement)."""
    failures: list[str] = field(default_factory=list)


class Sender(ABC):
    """Sends numbered values round robin until stopped, through every death of a broker, and knows which were
    acknowledged. A context manager; to be left when it sends no more, or the test has failed."""

    def __init__(self, topic: str, partitions: int = PARTITIONS) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acknowledged = Acknowledged({partition: {} for partition in range(partitions)})
        self.sent = 0
        self._changed = threading.Condition()

    def wait_for(self, more: int) -> None:
        """Until so many more messages are acknowledged than now. Fails after DEADLINE_S."""
        with self._changed:
            wanted = self.acknowledged.count + more
            done = self._changed.wait_for(lambda: self.acknowledged.count >= wanted, DEADLINE_S)
        story = f"{self.topic}: {self.acknowledged.count} of {wanted} acknowledged; {self.acknowledged.failures[-3:]}"
        assert done, story

    def snapshot(self) -> PartitionLogs:
        """The records acknowledged so far."""
        with self._changed:
            return {partition: dict(log) for partition, log in self.acknowledged.log.items()}

    def whole_log(self) -> PartitionLogs:
        """The records of a topic to which nobody else has written. Those without a known offset have the offsets that
        their partition lacks, in their order."""
        logs = self.snapshot()
        for partition, value in self.acknowledged.unplaced:
            log = logs[partition]
            log[next(offset for offset in itertools.count() if offset not in log)] = value
        return logs

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.give_up()

    @abstractmethod
    def stop(self) -> None:
        """Stop sending, and wait until all that was sent is delivered or has failed. Idempotent."""

    @abstractmethod
    def give_up(self) -> None:
        """Stop sending; what is under way does not count any more."""

    def _on_acknowledged(self, partition: int, offset: int | None, value: bytes) -> None:
        with self._changed:
            log = self.acknowledged.log[partition]
            if offset is None or offset < 0:
                self.acknowledged.unplaced.append((partition, value))
            else:
                if offset in log:
                    self.acknowledged.twice.append((partition, offset))
                log[offset] = value
            self.acknowledged.count += 1
            self._changed.notify_all()

    def _on_failed(self, reason: str) -> None:
        with self._changed:
            self.acknowledged.failures.append(reason)


class Producer(Sender):
    """librdkafka's, in a thread of its own."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        idempotent: bool,
        burst: int = BURST_MESSAGES,
        partitions: int = PARTITIONS,
        **more: Any,
    ) -> None:
        super().__init__(topic, partitions)
        self._burst = burst
        options = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": idempotent}
        options |= {"linger.ms": LINGER_MS if idempotent else 2}
        options |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}
        options |= {"queue.buffering.max.messages": QUEUED_MESSAGES_MAX, "batch.num.messages": 20}
        self._client = confluent_kafka.Producer(options | dict(QUIET) | more)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"producer of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closed, or it would look for its topic, and have it made, wherever its addresses lead to afterwards."""
        try:
            super().__exit__(kind, error, at)
        finally:
            self._client.purge()
            self._client.close()

    def stop(self) -> None:
        self._stop_sending()
        left = self._client.flush(DEADLINE_S)
        assert left == 0, f"{self.topic}: {left} messages neither delivered nor failed"

    def look_around(self) -> None:
        """Hear of all brokers: librdkafka asks by itself only where something fails, or after minutes."""
        self._client.list_topics(timeout=DEADLINE_S)

    def give_up(self) -> None:
        self._stop_sending()
        self._client.flush(1.0)

    def _stop_sending(self) -> None:
        self._stopping.set()
        joined(self._thread)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                partition, value = self.sent % self.partitions, value_of(self.sent)
                self._client.produce(self.topic, value, partition=partition, on_delivery=self._on_delivery)
                self.sent += 1
            except BufferError:
                self._client.poll(0.05)
            self._client.poll(0)
            if self.sent % self._burst == 0:
                self._stopping.wait(BURST_EVERY_S)

    def _on_delivery(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self._on_failed(str(error))
        else:
            self._on_acknowledged(message.partition(), message.offset(), message.value())


class Watcher:
    """A consumer in a thread of its own that reads a topic from its start, live, through every death of the broker."""

    def __init__(self, bootstrap: str, topic: str, **more: Any) -> None:
        self.seen: PartitionLogs = {partition: {} for partition in range(PARTITIONS)}
        self.failures: list[str] = []
        options = {"bootstrap.servers": bootstrap, "group.id": "watcher", "enable.auto.commit": False}
        options |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "auto.offset.reset": "error"}
        self._client = confluent_kafka.Consumer(options | dict(QUIET) | more)
        self._client.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watcher of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        joined(self._thread)
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._client.consume(1000, timeout=0.1):
                if message.error() is not None:
                    self.failures.append(str(message.error()))
                    continue
                log = self.seen[message.partition()]
                if message.offset() != len(log):
                    self.failures.append(
                        f"partition {message.partition()}: {message.offset()} came after {len(log) - 1}"
                    )
                log[message.offset()] = message.value()


def value_of(number: int) -> bytes:
    """The value that a producer sends as its `number`-th: told from all others, and of changing length."""
    return b"%d:" % number + b"x" * (number * 37 % 200)


def read_all(bootstrap: str, topic: str, starts: Mapping[int, int] | None = None) -> PartitionLogs:
    """The records of the topic, from `starts` (or offset 0) to the present high watermark. Fails after DEADLINE_S."""
    options = {"bootstrap.servers": bootstrap, "group.id": "promises", "enable.auto.commit": False}
    client = confluent_kafka.Consumer(options | {"auto.offset.reset": "error"} | dict(QUIET))
    try:
        return _read(client, topic, {number: (starts or {}).get(number, 0) for number in range(PARTITIONS)})
    finally:
        client.close()


def ends_of(client: Any, topic: str, number: int) -> tuple[int, int]:
    """The first offset and the one behind the last. Asks again where the leader has changed since the client looked."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            first, end = client.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), DEADLINE_S)
            return int(first), int(end)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() not in ASKED_AGAIN:
                raise
            assert time.monotonic() < deadline, f"{topic}: nobody leads partition {number}"
            client.list_topics(topic, DEADLINE_S)


def _read(client: Any, topic: str, starts: Mapping[int, int]) -> PartitionLogs:
    ends = {}
    for number in starts:
        low, ends[number] = ends_of(client, topic, number)
        assert low == 0
    client.assign([confluent_kafka.TopicPartition(topic, number, start) for number, start in starts.items()])
    found: PartitionLogs = {number: {} for number in starts}
    deadline = time.monotonic() + DEADLINE_S
    while left := sum(max(0, ends[number] - start - len(found[number])) for number, start in starts.items()):
        assert time.monotonic() < deadline, f"{topic}: {left} messages did not come"
        for message in client.consume(min(left, 10_000), timeout=0.2):
            assert message.error() is None, message.error()
            log = found[message.partition()]
            assert message.offset() not in log, f"{topic}: {message.partition()}@{message.offset()} came twice"
            log[message.offset()] = message.value()
    return found
