"""A secured broker for tests, by one argument: clients of others come in by its settings, and nobody else does."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.testing import ClusterThread, RunningBroker, broker
from tests.testing.projects import run_pytest


def wrote(settings: dict[str, object], topic: str) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer(settings | {"log_level": 0})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(150) == 0
    assert errors == [None]


@pytest.mark.headrace(secure=True)
def test_every_client_comes_in_by_its_settings(headrace_broker: RunningBroker) -> None:
    clients = headrace_broker.clients
    wrote(clients.confluent, "t")
    producer = kafka.KafkaProducer(**clients.kafka_python)
    assert producer.send("t", b"y").get(60).offset == 1
    producer.close()

    async def by_aiokafka() -> int:
        async with aiokafka.AIOKafkaProducer(**clients.aiokafka) as producer:
            return int((await producer.send_and_wait("t", b"z")).offset)

    assert asyncio.run(by_aiokafka()) == 2


@pytest.mark.headrace(secure=True)
def test_and_nobody_else(headrace_broker: RunningBroker) -> None:
    settings = headrace_broker.clients.confluent
    for wrong in ({"sasl.password": "wrong"}, {"security.protocol": "SASL_PLAINTEXT"}, {"sasl.username": "broker"}):
        told: list[KafkaError] = []
        client = Producer({**settings, **wrong, "error_cb": told.append, "log_level": 0})
        while not told:
            client.poll(0.1)
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.1)
    assert headrace_broker.login is not None
    assert headrace_broker.login.password not in repr(headrace_broker)


@pytest.mark.headrace(secure=True, configs={"default.replication.factor": "3"})
def test_a_cluster_is_secured_alike(headrace_cluster: ClusterThread) -> None:
    wrote(headrace_cluster.clients.confluent | {"acks": "all"}, "t")
    for each in (1, 2, 3):
        headrace_cluster.stop_brokers(each)
        headrace_cluster.start_brokers(each)
    wrote(headrace_cluster.clients.confluent | {"acks": "all"}, "t")


def test_settings_of_a_broker_that_lets_everybody_in_are_its_address(headrace_broker: RunningBroker) -> None:
    at = headrace_broker.bootstrap
    clients = headrace_broker.clients
    assert clients.confluent == {"bootstrap.servers": at}
    assert clients.kafka_python == clients.aiokafka == {"bootstrap_servers": at}


async def test_its_directory_keeps_its_secrets(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        async with broker(data=tmp_path, secure=True) as running:
            assert running.login is not None
            found.append((running.login.password, running.login.ca.read_bytes()))
            await asyncio.to_thread(wrote, running.clients.confluent, "t")
    assert found[0] == found[1]


def test_an_unknown_argument_is_named(tmp_path: Path) -> None:
    """In a project of its own, which is strict about markers."""
    (tmp_path / "test_unknown.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.mark.headrace(secured=True)
            def test_it(headrace_broker): ...
            """
        )
    )
    done = run_pytest(tmp_path)
    assert "takes secure=True or False" in done
    assert "1 error" in done
