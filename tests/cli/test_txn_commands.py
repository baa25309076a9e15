"""`headrace txn` against a real broker. librdkafka writes the transactions, and reads what is left of them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace, headrace

__all__ = ["headrace"]

DEADLINE_S = 30.0


@pytest.fixture
def producer(headrace_broker: RunningBroker, headrace: Headrace) -> Producer:
    """It has an open transaction in both partitions of `orders`."""
    headrace.ok("topic", "create", "orders", "--partitions", "2")
    made = Producer({"bootstrap.servers": headrace_broker.bootstrap, "transactional.id": "mine", "linger.ms": 0})
    made.init_transactions(DEADLINE_S)
    made.begin_transaction()
    for partition in range(2):
        made.produce("orders", b"open", partition=partition)
    assert made.flush(DEADLINE_S) == 0
    return made


def test_a_transaction_is_listed_described_and_aborted(headrace: Headrace, producer: Producer) -> None:
    (listed,) = headrace.json("txn", "list", "--state", "ongoing")
    assert (listed["transactional_id"], listed["state"]) == ("mine", "Ongoing")
    (told,) = headrace.json("txn", "describe", "mine")
    assert told["partitions"] == [{"topic": "orders", "partition": index} for index in range(2)]
    assert told["producer_id"] == listed["producer_id"]
    assert "add --execute" in headrace.ok("txn", "abort", "mine")
    assert "in 2 partitions" in headrace.ok("txn", "abort", "mine", "--execute")
    with pytest.raises(KafkaException):
        producer.commit_transaction(DEADLINE_S)
    (told,) = headrace.json("txn", "describe", "mine")
    assert (told["state"], told["partitions"]) == ("Empty", [])
    assert "no open transaction" in headrace.refused("txn", "abort", "mine", "--execute")


def test_nobody_has_an_unknown_id(headrace: Headrace, producer: Producer) -> None:
    assert "There is no transactional id 'other'" in headrace.refused("txn", "describe", "other")
