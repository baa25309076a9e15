"""Promises 1, 3 and 6 while durable segments are merged, with a real process that is killed at each step of it.

Acknowledged records are in the store, provably, with no broker running. The next start continues from there, and in the
end the store has no object that nothing refers to. The oracle is what librdkafka was told.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex
from headrace.cli.work.durable_views import merge
from headrace.net import loops
from headrace.storage.tier.reader import Store
from headrace.wire.batches import decode_records
from tests.promises.support.dying import NEVER, STEPS
from tests.promises.support.load import QUIET
from tools.servers.broker_process import BrokerProcess

TOPIC: Final = "merged"
ZERO: Final = PartitionIndex(0)
BATCHES: Final = 12
PER_BATCH: Final = 2
DEADLINE_S: Final = 150.0
LOOK_EVERY_S: Final = 0.02
OPTIONS: Final = ("--json", "--config", "log.retention.check.interval.ms=20")
SWEEPS: Final = ("--config", "durable.sweep.interval.ms=100", "--config", "durable.sweep.grace.ms=0")


class DyingProcess(BrokerProcess):
    """One that dies at a step of a merge."""

    step = NEVER

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory)
        self.options = options

    def start(self) -> None:
        program = [sys.executable, "-m", "tests.promises.support.dying", self.step]
        command = [*program, *self._role, "--data", str(self.data), "--listen", self.bootstrap, *self.options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.bootstrap = self._address(self._process)

    def wait(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self._reap()


def until(true: Callable[[], bool]) -> None:
    """The test's own timeout ends a wait in vain."""
    pause = threading.Event()
    while not true():
        pause.wait(LOOK_EVERY_S)


def produce(bootstrap: str, known: dict[int, bytes]) -> None:
    """Batches of their own, so that there are many small segments; adds what was acknowledged: value by offset."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **QUIET})

    def on_delivery(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        known[message.offset()] = message.value()

    for number in range(len(known), len(known) + BATCHES * PER_BATCH):
        producer.produce(TOPIC, b"%d " % number + b"v" * 300, partition=0, on_delivery=on_delivery)
        if number % PER_BATCH == PER_BATCH - 1:
            assert producer.flush(DEADLINE_S) == 0


def history_of(store: Store) -> dict[int, bytes]:
    """All of it, proven: value by offset."""
    topic = store.topic(TOPIC)
    found = store.verify(topic, ZERO)
    records = (
        record
        for batch, _ in store.batches(topic, ZERO, found.start_offset, found.end_offset + 1)
        for record in decode_records(batch)
    )
    return {record.offset: record.value or b"" for record in records}


def is_exported(store: Store, count: int) -> bool:
    try:
        return store.catalog(store.topic(TOPIC), ZERO).next_offset >= count
    except UsageError:
        return False  # nothing is yet


def names_all_it_keeps(store: Store) -> bool:
    named = {entry.descriptor.key for entry in store.catalog(store.topic(TOPIC), ZERO)}
    return named == {meta.key for meta in store.objects.list("clusters/")}


def consumed(bootstrap: str, count: int) -> dict[int, bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "error", **QUIET}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    read: dict[int, bytes] = {}
    while len(read) < count:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"nothing came behind {len(read)}"
        if message.error() is None:
            read[message.offset()] = message.value()
    consumer.close()
    return read


def test_a_broker_that_is_killed_at_any_step_of_a_merge_loses_nothing(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    broker, store = DyingProcess(tmp_path, "--durable", url, *OPTIONS), Store.open(url)
    known: dict[int, bytes] = {}
    for step in STEPS:
        broker.step = step
        broker.start()
        if not known:
            configs = {"segment.bytes": "1024", "local.retention.bytes": "0", "durable.export.max.lag.ms": "0"}
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
            admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(DEADLINE_S)
        produce(broker.bootstrap, known)
        until(functools.partial(is_exported, store, len(known)))
        loops.run(merge(broker.bootstrap, TOPIC, None, execute=True))
        assert broker.wait() == -signal.SIGKILL, step
        assert history_of(store) == known, step
    broker.step = NEVER
    broker.options += SWEEPS
    with broker:
        merged = loops.run(merge(broker.bootstrap, TOPIC, None, execute=True))
        assert merged.problems == []
        assert consumed(broker.bootstrap, len(known)) == known
        until(functools.partial(names_all_it_keeps, store))
        assert history_of(store) == known
