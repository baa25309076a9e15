"""Faults that a test orders: the clients of others meet them, and the broker does what they say."""

from __future__ import annotations

import asyncio
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import UsageError
from headrace.testing import ClusterThread, RunningBroker
from headrace.testing.faults import Faults
from headrace.testing.refusing import SHAPES, refusal
from headrace.wire.apis import ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.catalog import FACTS
from tests.testing.projects import run_pytest


def make_topic(running: RunningBroker, topic: str, partitions: int = 1) -> None:
    admin = AdminClient(running.clients.confluent)
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)


def written(running: RunningBroker, topic: str, value: bytes, partition: int = 0, **config: Any) -> KafkaError | None:
    """The outcome of one record from librdkafka, which does not retry unless it is told to."""
    told: list[KafkaError | None] = []
    producer = Producer({**running.clients.confluent, "retries": 0, "log_level": 0, **config})
    producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(150) == 0
    return told[0]


def values_of(running: RunningBroker, topic: str, count: int, group: str = "g") -> list[bytes]:
    consumer = Consumer({**running.clients.confluent, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    return found


def test_a_refused_produce_appends_nothing_and_the_next_is_served(
    headrace_broker: RunningBroker, headrace_topic: str
) -> None:
    make_topic(headrace_broker, headrace_topic, partitions=2)
    fault = headrace_broker.faults.refuse("Produce", "MESSAGE_TOO_LARGE", topic=headrace_topic, partition=0)
    assert written(headrace_broker, headrace_topic, b"elsewhere", partition=1) is None
    assert (fault.met, fault.is_over) == (0, False)
    refused = written(headrace_broker, headrace_topic, b"refused")
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert (fault.met, fault.is_over) == (1, True)
    assert written(headrace_broker, headrace_topic, b"served") is None
    assert sorted(values_of(headrace_broker, headrace_topic, 2)) == [b"elsewhere", b"served"]


def test_a_client_gets_over_not_leader(headrace_broker: RunningBroker, headrace_topic: str) -> None:
    make_topic(headrace_broker, headrace_topic)
    fault = headrace_broker.faults.refuse("produce", "not_leader_or_follower", topic=headrace_topic, times=2)
    assert written(headrace_broker, headrace_topic, b"value", retries=10, **{"retry.backoff.ms": 1}) is None
    assert fault.met == 2
    assert values_of(headrace_broker, headrace_topic, 1) == [b"value"]


def test_a_lost_answer_doubles_a_record_unless_its_producer_is_idempotent(
    headrace_broker: RunningBroker, headrace_topic: str
) -> None:
    make_topic(headrace_broker, headrace_topic)
    headrace_broker.faults.lose_answer("Produce", topic=headrace_topic)
    assert written(headrace_broker, headrace_topic, b"plain", retries=10) is None
    headrace_broker.faults.lose_answer("Produce", topic=headrace_topic)
    config = {"retries": 10, "enable.idempotence": True}
    assert written(headrace_broker, headrace_topic, b"idempotent", **config) is None
    assert values_of(headrace_broker, headrace_topic, 3) == [b"plain", b"plain", b"idempotent"]


def test_a_dropped_produce_is_not_carried_out(headrace_broker: RunningBroker, headrace_topic: str) -> None:
    make_topic(headrace_broker, headrace_topic)
    fault = headrace_broker.faults.drop("Produce", topic=headrace_topic)
    assert written(headrace_broker, headrace_topic, b"once", retries=10) is None
    assert fault.met == 1
    assert values_of(headrace_broker, headrace_topic, 1) == [b"once"]


def test_a_fetch_in_a_session_meets_a_fault_of_its_topic(headrace_broker: RunningBroker, headrace_topic: str) -> None:
    """Java and aiokafka keep sessions in which a Fetch names no partitions."""

    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(headrace_topic, **headrace_broker.clients.aiokafka, fetch_max_wait_ms=10)
        async with consumer:
            await consumer.getmany(timeout_ms=100)
            fault = headrace_broker.faults.refuse("Fetch", "KAFKA_STORAGE_ERROR", topic=headrace_topic)
            while not fault.met:
                assert not await consumer.getmany(timeout_ms=10)
            await asyncio.to_thread(written, headrace_broker, headrace_topic, b"value")
            assert (await consumer.getone()).value == b"value"
            assert fault.is_over

    make_topic(headrace_broker, headrace_topic)
    asyncio.run(asyncio.wait_for(read(), 150))


def test_a_delayed_request_is_served_after_later_ones_of_others(
    headrace_broker: RunningBroker, headrace_topic: str
) -> None:
    make_topic(headrace_broker, headrace_topic, partitions=2)
    fault = headrace_broker.faults.delay("Produce", 0.5, topic=headrace_topic, partition=0)
    order: list[str] = []

    def write(name: str, partition: int) -> None:
        assert written(headrace_broker, headrace_topic, name.encode(), partition) is None
        order.append(name)

    slow = threading.Thread(target=write, args=("slow", 0))
    slow.start()
    while not fault.met:
        assert slow.is_alive()
    write("quick", 1)
    slow.join(150)
    assert order == ["quick", "slow"]


def test_a_test_answers_by_itself(headrace_broker: RunningBroker) -> None:
    """As kfake's ControlKey: a function is given the request, and returns the response, or None."""
    from headrace.wire.messages.find_coordinator import FindCoordinatorRequest

    asked: list[FindCoordinatorRequest] = []
    control = headrace_broker.faults.control("FindCoordinator", asked.append)
    make_topic(headrace_broker, "orders")
    assert written(headrace_broker, "orders", b"value") is None
    assert values_of(headrace_broker, "orders", 1) == [b"value"]
    assert {key for each in asked for key in (each.coordinator_keys or (each.key,))} == {"g"}
    control.cancel()
    seen = len(asked)
    assert values_of(headrace_broker, "orders", 1, group="other") == [b"value"]
    assert len(asked) == seen


def test_faults_of_a_cluster_are_each_brokers_own(headrace_cluster: ClusterThread, headrace_topic: str) -> None:
    admin = AdminClient(headrace_cluster.clients.confluent)
    faults = [headrace_cluster.faults(each).refuse("CreateTopics", "POLICY_VIOLATION") for each in (1, 2, 3)]
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(headrace_topic, 1)])[headrace_topic].result(60)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert sum(each.met for each in faults) == 1
    for each in (1, 2, 3):
        headrace_cluster.faults(each).clear()
    admin.create_topics([NewTopic(headrace_topic, 1)])[headrace_topic].result(60)
    with pytest.raises(UsageError, match="no broker 4"):
        headrace_cluster.faults(4)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (lambda faults: faults.refuse("Produced", "NONE"), "no API Produced"),
        (lambda faults: faults.refuse("Produce", "NOT_A_LEADER"), "no error NOT_A_LEADER"),
    ],
)
def test_a_wrong_name_is_said_at_once(order: Callable[[Faults], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        order(Faults())


def test_every_refusal_can_be_sent_in_each_version() -> None:
    for key in ApiKey:
        codec = api(int(key))
        if codec is None:
            continue
        (module,) = (facts[-1] for facts in FACTS if facts[0] == key)
        messages = __import__(f"headrace.wire.messages.{module}", fromlist=["_"])
        request = getattr(messages, f"{codec.name}Request")()
        try:
            response = refusal(codec, request, ErrorCode.UNKNOWN_SERVER_ERROR)
        except UsageError:
            assert key not in SHAPES
            continue
        for version in range(codec.min_version, codec.max_version + 1):
            assert codec.encode_response(version, response)


def test_logs_of_a_broker_are_pythons(tmp_path: Path) -> None:
    """In a process of its own, where nobody has set up structlog."""
    (tmp_path / "test_logs.py").write_text(
        textwrap.dedent(
            """
            import logging

            from headrace.testing import broker

            async def test_it(caplog):
                with caplog.at_level(logging.INFO, "headrace"):
                    async with broker():
                        pass
                (ready,) = [each for each in caplog.records if each.getMessage().startswith("ready ")]
                assert ready.name == "headrace.broker.boot"
                assert "listeners=" in ready.getMessage()
            """
        )
    )
    assert "1 passed" in run_pytest(tmp_path)
