"""Topics as librdkafka sees them: made, written, and read with read_committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.promises.support.load import QUIET

PARTITIONS: Final = 3
DEADLINE_S: Final = 240.0
POLL_S: Final = 1.0

Rows = list[tuple[str, str]]
"""Keys and values."""


def create(bootstrap: str, *topics: str) -> None:
    """With three replicas each."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
        future.result(DEADLINE_S)


def write(bootstrap: str, topic: str, rows: Iterable[tuple[str, str]]) -> None:
    """All of them, acknowledged, once each."""
    failed: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **QUIET})
    for key, value in rows:
        producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(DEADLINE_S) == 0
    assert not failed, failed


class Reader:
    """Reads committed records of all partitions, each from its beginning, in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.rows: Rows = []
        self._at_end: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def until(self, count: int, story: Callable[[], str]) -> None:
        """Read until so many have come."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.rows) < count:
            assert time.monotonic() < deadline, f"{self.topic}: {len(self.rows)} of {count} came\n{story()}"
            self._poll()

    def to_the_end(self) -> Rows:
        """Read until the end of each partition has been seen from now on; all that has come. Nobody may write."""
        self._consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
        self.rows.clear()
        self._at_end.clear()
        deadline = time.monotonic() + DEADLINE_S
        while len(self._at_end) < PARTITIONS:
            assert time.monotonic() < deadline, f"{self.topic}: the ends of {self._at_end} alone are seen"
            self._poll()
        return self.rows

    def _poll(self) -> None:
        message = self._consumer.poll(POLL_S)
        if message is None:
            return
        error = message.error()
        if error is None:
            key, value = message.key(), message.value()
            self.rows.append(((key or b"").decode(), (value or b"").decode()))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            self._at_end.add(message.partition())
