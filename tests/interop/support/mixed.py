"""A topic with records in every state of a transaction, written by librdkafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

DEADLINE_S = 150.0
STATES = [("p0", None), ("c0", "committed"), ("a0", "aborted"), ("o0", "open"), ("c1", "committed"), ("p1", None)]
"""The value of each record, and its state while one transaction is open."""


def transactional(bootstrap: str, name: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 600_000})
    made.init_transactions(DEADLINE_S)
    return made


def write(producer: Producer, topic: str, *values: str) -> None:
    """Write records of partition 0. They are there when it returns."""
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def transaction(bootstrap: str, topic: str, *values: str, commits: bool) -> None:
    """Write a transaction. Its marker is there when it returns."""
    made = transactional(bootstrap, f"{topic}-{values[0]}")
    made.begin_transaction()
    write(made, topic, *values)
    (made.commit_transaction if commits else made.abort_transaction)(DEADLINE_S)
    transactional(bootstrap, f"{topic}-{values[0]}")  # it begins only behind the marker


@contextmanager
def mixed(bootstrap: str, topic: str) -> Iterator[Producer]:
    """Write the records of STATES, and lend the producer of the open transaction. It is aborted at the end, unless it
    was ended."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    plain = Producer({"bootstrap.servers": bootstrap})
    write(plain, topic, "p0")
    transaction(bootstrap, topic, "c0", commits=True)
    transaction(bootstrap, topic, "a0", commits=False)
    opened = transactional(bootstrap, f"{topic}-open")
    opened.begin_transaction()
    write(opened, topic, "o0")
    transaction(bootstrap, topic, "c1", commits=True)
    write(plain, topic, "p1")
    yield opened
    transactional(bootstrap, f"{topic}-open")
