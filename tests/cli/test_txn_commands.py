"""`headrace txn` against a real broker. librdkafka writes the transactions, and reads what is left of them."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.transactions import Transactions
from headrace.operations import unended
from headrace.operations.diagnosis import findings
from headrace.testing import RunningBroker
from headrace.testing.thread import ClusterThread
from tests.broker.patience import patient
from tests.cli.test_commands import Headrace, headrace
from tests.cli.test_doctor import commands_of
from tests.interop.hanging import VERIFICATION, hang, verify
from tests.tiers import long_only

__all__ = ["headrace"]

DEADLINE_S = 150.0


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
    assert "'mine' is not prepared" in headrace.refused("txn", "commit", "mine", "--execute")
    assert "add --execute" in headrace.ok("txn", "abort", "mine")
    assert "in 2 partitions" in headrace.ok("txn", "abort", "mine", "--execute")
    with pytest.raises(KafkaException):
        producer.commit_transaction(DEADLINE_S)
    (told,) = headrace.json("txn", "describe", "mine")
    assert (told["state"], told["partitions"]) == ("Empty", [])
    assert "no open transaction" in headrace.refused("txn", "abort", "mine", "--execute")


def test_the_doctor_tells_of_a_transaction_that_its_timeout_does_not_end(
    headrace: Headrace, headrace_broker: RunningBroker, producer: Producer
) -> None:
    with patient(), pytest.MonkeyPatch.context() as patch:
        assert asyncio.run(findings(partial(Cluster, headrace_broker.bootstrap))) == [], "it is young"
        patch.setattr(unended, "DOCTOR_TRANSACTION_MS", 0)
        assert asyncio.run(findings(partial(Cluster, headrace_broker.bootstrap))) == [], "it is within its timeout"
        patch.setattr(unended, "time", SimpleNamespace(time=lambda: time.time() + 3600))
        (told,) = asyncio.run(findings(partial(Cluster, headrace_broker.bootstrap)))
    assert (told.kind, told.subject, told.is_wrong) == (unended.OVERDUE, "transactional id mine", True)
    assert "open for 60 min, beyond its timeout of 60000 ms" in told.text
    (mending,) = commands_of(told)
    assert mending == ["txn", "abort", "mine", "--execute"]
    assert "in 2 partitions" in headrace.ok(*mending)


@long_only
def test_the_doctor_tells_of_a_transaction_whose_marker_waits_for_a_leader() -> None:
    one_copy = {"transaction.state.log.replication.factor": "1", "transaction.state.log.num.partitions": "1"}
    with ClusterThread(configs=one_copy) as cluster, patient(), pytest.MonkeyPatch.context() as patch:
        made = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "mine", "linger.ms": 0})
        made.init_transactions(DEADLINE_S)
        leader, index = asyncio.run(away_from_the_coordinator(cluster.bootstrap))
        made.begin_transaction()
        made.produce("orders", b"decided", partition=index)
        assert made.flush(DEADLINE_S) == 0
        cluster.stop_brokers(leader)
        made.commit_transaction(DEADLINE_S)
        patch.setattr(unended, "DOCTOR_TRANSACTION_MS", 0)
        told = [
            each
            for each in asyncio.run(findings(partial(Cluster, cluster.bootstrap)))
            if each.kind == unended.NOT_MARKED
        ]
    assert [each.subject for each in told] == ["transactional id mine"]
    assert f"PrepareCommit), and orders-{index} may lack its marker" in told[0].text


async def away_from_the_coordinator(bootstrap: str) -> tuple[int, int]:
    """The leader of a partition of the new topic `orders`, which does not coordinate `mine`, and that partition."""
    async with Cluster(bootstrap) as cluster:
        _, coordinator = await Transactions(cluster).coordinator("mine")
        await Admin(cluster).create_topic("orders", partitions=3, replication_factor=1)
        topic = await cluster.retried(lambda: cluster.topic("orders", fresh=True), ["orders"])
        return next((part.leader, part.index) for part in topic.partitions if part.leader != coordinator)


def test_nobody_has_an_unknown_id(headrace: Headrace, producer: Producer) -> None:
    assert "There is no transactional id 'other'" in headrace.refused("txn", "describe", "other")


def test_a_transaction_that_hangs_is_found_and_aborted(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("topic", "create", "orders")
    verify(headrace_broker.bootstrap, "false")
    hangs = asyncio.run(hang(headrace_broker.bootstrap, "orders"))
    verify(headrace_broker.bootstrap, "true")
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap})
    producer.produce("orders", b"behind it")
    assert producer.flush(DEADLINE_S) == 0

    with patient(), pytest.MonkeyPatch.context() as patch:
        assert asyncio.run(findings(partial(Cluster, headrace_broker.bootstrap))) == [], "it is young"
        patch.setattr(unended, "LONGEST_MS", 0)
        (told,) = asyncio.run(findings(partial(Cluster, headrace_broker.bootstrap)))
    assert (told.kind, told.subject, told.is_wrong) == (unended.HANGING, "orders-0", True)
    mending, listing = commands_of(told)
    assert mending == ["txn", "abort", "--topic", "orders", "--partition", "0", "--start-offset", "0", "--execute"]
    headrace.ok(*listing)

    assert headrace.ok("txn", "find-hanging", "--older-than", "600") == "no transaction hangs\n"
    (found,) = headrace.json("txn", "find-hanging", "--topic", "orders", "--older-than", "0")
    assert (found["partition"], found["start_offset"], found["producer_id"]) == (0, 0, hangs)
    where = ("--topic", "orders", "--partition", "0", "--start-offset")
    assert "No open transaction" in headrace.refused("txn", "abort", *where, "1", "--execute")
    assert "add --execute" in headrace.ok("txn", "abort", *where, "0")
    assert read_committed(headrace_broker.bootstrap, 0.5) is None, "a reader waits for it"
    assert "aborted the transaction" in headrace.ok(*mending)
    assert read_committed(headrace_broker.bootstrap, DEADLINE_S) == b"behind it"
    assert headrace.ok("txn", "find-hanging", "--older-than", "0") == "no transaction hangs\n"


def test_a_transaction_of_the_new_protocol_is_aborted_by_the_next_epoch(
    headrace: Headrace, headrace_broker: RunningBroker
) -> None:
    headrace.ok("topic", "create", "orders")
    opened = asyncio.run(hang(headrace_broker.bootstrap, "orders", "new"))

    async def abort() -> list[int]:
        async with Cluster(headrace_broker.bootstrap) as cluster:
            transactions = Transactions(cluster)
            found = await transactions.open_in(["orders"])
            for each in found:
                await transactions.abort_at(each)
            assert await transactions.open_in(["orders"]) == ()
            return [each.producer_id for each in found]

    assert asyncio.run(abort()) == [opened]


def test_without_all_coordinators_nobody_can_tell_what_hangs(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """One that is not there may yet end what no other one knows."""
    one_copy = {"transaction.state.log.replication.factor": "1", "transaction.state.log.num.partitions": "3"}
    with ClusterThread(configs={**one_copy, VERIFICATION: "false"}) as cluster:
        find = ("txn", "find-hanging", "--older-than", "0", "--bootstrap", cluster.bootstrap)
        headrace = Headrace(capsysbinary)
        headrace.ok("topic", "create", "orders", "--bootstrap", cluster.bootstrap)
        hangs = asyncio.run(hang(cluster.bootstrap, "orders", coordinated=True))
        assert [each["producer_id"] for each in headrace.json(*find)] == [hangs]
        cluster.stop_brokers(2)
        assert "has no leader, so nobody can tell which transactions hang" in headrace.refused(*find)


def test_what_a_producer_has_open_does_not_hang(headrace: Headrace, producer: Producer) -> None:
    assert headrace.json("txn", "find-hanging", "--older-than", "0") == []
    where = ("--topic", "orders", "--partition", "0", "--start-offset", "0", "--execute")
    assert "'headrace txn list' has its transactional id" in headrace.refused("txn", "abort", *where)
    producer.abort_transaction(DEADLINE_S)


def read_committed(bootstrap: str, seconds: float) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        message = consumer.poll(seconds)
        assert message is None or message.error() is None
        return None if message is None else message.value()
    finally:
        consumer.close()
