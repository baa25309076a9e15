"""Clients that write and read all the time while a secret is changed, over a lasting connection and over new ones.

The oracle is what librdkafka was told: its errors, and the records that were acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import confluent_kafka

from tests.threads import joined
from tests.tiers import of_tier

TOPIC: Final = "written-meanwhile"
FLUSH_S: Final = 150.0
LOOK_EVERY_S: Final = 0.01
REST_S: Final = of_tier(short=50, long=0) / 1_000
"""Of a writer, after each record of its lasting connection: without it writers fill a processor, most of it with new
connections."""


class Writer(threading.Thread):
    """Writes until it is stopped, over connections of its own that it makes again and again."""

    def __init__(self, configs: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._configs = configs | {"error_cb": lambda error: self.problems.append(error.str()), "log_level": 0}
        self._over = threading.Event()
        self.problems: list[str] = []
        self.acknowledged: list[bytes] = []
        self.lasting = confluent_kafka.Producer(self._configs)
        self._name = b"%d" % id(self)

    def run(self) -> None:
        """Each producer writes a record. The first one goes on with its connection all the time."""
        number = 0
        while not self._over.is_set():
            for producer in (self.lasting, *self._brief()):
                number += 1
                producer.produce(TOPIC, b"%s-%d" % (self._name, number), on_delivery=self._delivered)
                producer.flush(FLUSH_S)
            self._over.wait(REST_S)

    def _brief(self) -> Sequence[confluent_kafka.Producer]:
        return [confluent_kafka.Producer(self._configs)]

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.problems.append(error.str())

    def stop(self) -> None:
        self._over.set()
        joined(self)


class LastingWriter(Writer):
    """One that makes no new connection by itself."""

    def _brief(self) -> Sequence[confluent_kafka.Producer]:
        return ()


class Reader(threading.Thread):
    """Reads all of it from the start, over one connection, until it is stopped. The topic has to be there: librdkafka
    looks for a lost one after minutes."""

    def __init__(self, configs: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        own = {"group.id": "r", "enable.auto.commit": False, "log_level": 0}
        self.problems: list[str] = []
        self.found: list[bytes] = []
        self._over = threading.Event()
        self.client = confluent_kafka.Consumer(
            configs | own | {"error_cb": lambda error: self.problems.append(error.str())}
        )
        self.client.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])

    def run(self) -> None:
        while not self._over.is_set():
            for message in self.client.consume(1_000, timeout=0.05):
                if message.error() is None:
                    self.found.append(message.value() or b"")
                else:
                    self.problems.append(message.error().str())

    def stop(self) -> None:
        """Idempotent."""
        if not self._over.is_set():
            self._over.set()
            joined(self)
            self.client.close()


@contextmanager
def writing(configs: dict[str, Any]) -> Iterator[Writer]:
    writer = Writer(configs)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


@asynccontextmanager
async def at_work(*workers: Writer | Reader) -> AsyncIterator[None]:
    """While the block runs. They end in threads, as the broker is on this loop."""
    for each in workers:
        each.start()
    try:
        yield
    finally:
        for each in workers:
            await asyncio.to_thread(each.stop)


def until(true: Callable[[], bool]) -> None:
    """The test's own timeout ends a wait in vain. The broker is in this process, too, and has its turn meanwhile."""
    pause = threading.Event()
    while not true():
        pause.wait(LOOK_EVERY_S)


def read(configs: dict[str, Any], wanted: int) -> list[bytes]:
    """So many records."""
    consumer = confluent_kafka.Consumer({**configs, "group.id": "r", "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while len(found) < wanted:
        if (message := consumer.poll(10)) is not None:
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found
