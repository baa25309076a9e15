"""A clock that a test moves: retention, sessions of members and the times of records follow it at once."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import UsageError
from headrace.testing import HeadraceContainer, MovableClock, RunningBroker

HOUR_MS = 3_600_000


def test_records_go_with_their_retention(
    headrace_broker: RunningBroker, headrace_clock: MovableClock, headrace_topic: str
) -> None:
    config = {"retention.ms": str(HOUR_MS), "segment.ms": str(HOUR_MS // 2)}
    admin = AdminClient(headrace_broker.clients.confluent)
    admin.create_topics([NewTopic(headrace_topic, 1, config=config)])[headrace_topic].result(60)
    producer = Producer(headrace_broker.clients.confluent)
    for value, moved in ((b"old", 50), (b"new", 20)):
        producer.produce(headrace_topic, value, timestamp=headrace_clock.now_ms())
        assert producer.flush(150) == 0
        headrace_clock.advance(minutes=moved)
    consumer = Consumer({**headrace_broker.clients.confluent, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([headrace_topic])
    message = consumer.poll(60)
    assert message is not None
    assert message.value() == b"new"
    consumer.close()


def test_a_member_that_is_silent_is_gone(headrace_broker: RunningBroker, headrace_clock: MovableClock) -> None:
    config = {**headrace_broker.clients.confluent, "group.id": "g", "auto.offset.reset": "earliest"}
    admin = AdminClient(headrace_broker.clients.confluent)
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
    producer = Producer(headrace_broker.clients.confluent)
    producer.produce("orders", b"value")
    assert producer.flush(150) == 0
    lost = Consumer({**config, "session.timeout.ms": 45_000, "heartbeat.interval.ms": 40_000})
    lost.subscribe(["orders"])
    assert lost.poll(60) is not None
    heir = Consumer(config)
    heir.subscribe(["orders"])
    headrace_clock.advance(seconds=90)
    message = heir.poll(60)
    assert message is not None
    assert message.value() == b"value"
    heir.close()
    lost.close()


def test_a_clock_is_never_moved_back(headrace_broker: RunningBroker, headrace_clock: MovableClock) -> None:
    before = headrace_clock.now_ms()
    headrace_clock.advance(timedelta(days=3))
    assert headrace_clock.now_ms() - before >= 3 * 24 * HOUR_MS
    assert headrace_clock.now_ms() - time.time_ns() // 1_000_000 >= 3 * 24 * HOUR_MS - 1
    with pytest.raises(UsageError, match="never back"):
        headrace_clock.advance(seconds=-1)
    assert AdminClient(headrace_broker.clients.confluent).list_topics(timeout=60).brokers


def test_a_clock_without_a_broker_says_so() -> None:
    with pytest.raises(UsageError, match="headrace_clock"):
        MovableClock().advance(hours=1)


def test_a_container_without_docker() -> None:
    with HeadraceContainer().with_kraft().with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false") as kafka:
        assert kafka.get_bootstrap_server() == f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(9093)}"
        asked = AdminClient({"bootstrap.servers": kafka.get_bootstrap_server()})
        assert asked.list_topics("orders", timeout=60).topics["orders"].error is not None, "no topic is made by itself"
    kafka.stop()
    with pytest.raises(UsageError, match="not started"):
        HeadraceContainer().get_bootstrap_server()
