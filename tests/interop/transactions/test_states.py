"""The states of records that our client tells, beside what librdkafka reads under read_committed, then and later."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer as Librdkafka
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer
from headrace.net.client.offsets import LATEST, list_offsets
from headrace.net.client.states import State, TransactionState
from tests.promises.support.load import QUIET

DEADLINE_S = 150.0
POLL_S = 60.0
LINGER_MS = 5_000
"""Nothing is sent before a flush: what is written together is one batch."""
COMMITTED, ABORTED, OPEN = TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.OPEN
SIZES = [1, 700, 1 << 20]
"""Bytes of a partition in an answer. With 1 each answer has one batch, without the marker that decides it."""


class Read(NamedTuple):
    """A record of a page."""

    offset: int
    value: bytes
    state: State


class Partition:
    """One partition with its producers. A write is over when its call returns."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self._producers: dict[str, Producer] = {}
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(DEADLINE_S)
        self.plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, **QUIET})

    def producer(self, name: str) -> Producer:
        """A transactional producer: one for each name."""
        if name not in self._producers:
            options = {"transactional.id": f"{self.topic}-{name}", "linger.ms": LINGER_MS, **QUIET}
            made = self._producers[name] = Producer({"bootstrap.servers": self.bootstrap, **options})
            made.init_transactions(DEADLINE_S)
        return self._producers[name]

    def write(self, producer: Producer, *values: bytes) -> None:
        """Write one batch."""
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def end(self, name: str, *, commits: bool) -> None:
        """End the transaction, and wait for its marker."""
        made = self._producers.pop(name)
        (made.commit_transaction if commits else made.abort_transaction)(DEADLINE_S)
        self.producer(name)  # it begins only behind the marker

    def librdkafka(self, isolation: str = "read_committed") -> list[bytes]:
        """All values up to the end that it sees."""
        options = {"group.id": "g", "enable.partition.eof": True, "isolation.level": isolation, **QUIET}
        consumer = Librdkafka({"bootstrap.servers": self.bootstrap, "enable.auto.commit": False, **options})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[bytes] = []
        try:
            while True:
                message = consumer.poll(POLL_S)
                assert message is not None, "nothing more comes"
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                found.append(message.value())
        finally:
            consumer.close()

    def read(self, *, size: int = 1 << 20, first: int = 0, committed_only: bool = False) -> list[Read]:
        """All records up to the present end as our client reads them, with their states."""

        async def work() -> list[Read]:
            found: list[Read] = []
            async with Cluster(self.bootstrap) as cluster:
                ends = await list_offsets(cluster, self.topic, [0], LATEST, committed_only=committed_only)
                (end,) = (each.offset for each in ends.values())
                async with Consumer(
                    cluster, wait_ms=50, partition_bytes_max=size, committed_only=committed_only, tells_states=True
                ) as consumer:
                    consumer.assign(self.topic, 0, first)
                    while min(consumer.positions.values()) < end:
                        for one in await consumer.poll():
                            each = zip(one.records, one.states, strict=True)
                            found += [Read(record.offset, record.value or b"", state) for record, state in each]
            return found

        return asyncio.run(work())


def in_state(found: Iterable[Read], *states: State) -> list[bytes]:
    return [each.value for each in found if each.state in states]


@pytest.fixture
def partition(bootstrap: str) -> Partition:
    return Partition(bootstrap)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_committed_is_what_read_committed_sees(partition: Partition, seed: int) -> None:
    """Transactions of several producers lie in one another, and plain records between them."""
    random, began, number = Random(seed), set[str](), 0
    for _ in range(60):
        name = random.choice(["a", "b", "c", "plain"])
        if name in began and random.random() < 0.3:
            partition.end(name, commits=random.random() < 0.5)
            began.discard(name)
            continue
        values = [b"%d" % at for at in range(number, number + random.randrange(1, 4))]
        number += len(values)
        if name == "plain":
            partition.write(partition.plain, *values)
            continue
        if name not in began:
            partition.producer(name).begin_transaction()
            began.add(name)
        partition.write(partition.producer(name), *values)
    check(partition, number)
    opened = in_state(partition.read(), OPEN)
    seen: list[bytes] = []
    for name in sorted(began):
        partition.end(name, commits=name == "a")
        found = partition.read()
        seen += [each for each in in_state(found, COMMITTED) if each in opened and each not in seen]
        check(partition, number)
    assert not in_state(partition.read(), OPEN)
    assert set(seen) == set(opened) & set(partition.librdkafka())


def check(partition: Partition, count: int) -> None:
    """However they are read, records have the same states, and librdkafka sees those that are decided and visible."""
    visible = partition.librdkafka()
    everything = partition.read()
    assert [each.value for each in everything] == [b"%d" % at for at in range(count)]
    for size in SIZES:
        assert partition.read(size=size) == everything, size
        assert [each.value for each in partition.read(size=size, committed_only=True)] == visible
    for begin in everything[:: max(1, count // 6)]:
        for size in SIZES:
            assert partition.read(size=size, first=begin.offset) == [each for each in everything if each >= begin]
    first_open = next((each.offset for each in everything if each.state is OPEN), everything[-1].offset + 1)
    seen = [each for each in everything if each.offset < first_open and each.state is not ABORTED]
    assert [each.value for each in seen] == visible
    assert partition.read(committed_only=True) == seen


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_that_spans_pages_has_one_state(partition: Partition, commits: bool) -> None:
    made = partition.producer("long")
    partition.write(partition.plain, b"before")
    made.begin_transaction()
    for _ in range(20):
        for _ in range(50):
            made.produce(partition.topic, bytes(1_000), partition=0)
        assert made.flush(DEADLINE_S) == 0
        partition.write(partition.plain, b"between")
    opened = partition.read(size=50_000)
    assert {each.value: each.state for each in opened} == {b"before": None, b"between": None, bytes(1_000): OPEN}
    assert partition.librdkafka() == [b"before"]
    partition.end("long", commits=commits)
    found = partition.read(size=50_000)
    state = COMMITTED if commits else ABORTED
    assert found == [each._replace(state=state) if each.state is OPEN else each for each in opened]
    assert in_state(found, None, COMMITTED) == partition.librdkafka()


def test_behind_an_open_transaction_others_are_decided(partition: Partition) -> None:
    """Its marker may be far behind a record, and is looked for there."""
    first, told = partition.producer("first"), {b"held": OPEN, b"plain": None, b"aborted": ABORTED}
    first.begin_transaction()
    partition.write(first, b"held")
    for number, state in enumerate((ABORTED, COMMITTED) * 2):
        partition.producer("second").begin_transaction()
        partition.write(partition.producer("second"), *[state.encode()] * 5)
        partition.write(partition.plain, b"plain")
        partition.end("second", commits=state is COMMITTED)
        for size in SIZES:
            found = partition.read(size=size)
            assert len(found) == 1 + 6 * (number + 1)
            assert [each.state for each in found] == [(told | {b"committed": COMMITTED})[each.value] for each in found]
        assert partition.librdkafka() == [] == partition.read(committed_only=True)
    partition.end("first", commits=True)
    assert in_state(partition.read(), None, COMMITTED) == partition.librdkafka()
