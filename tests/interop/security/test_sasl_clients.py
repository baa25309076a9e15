"""Clients that nobody here wrote authenticate by PLAIN and SCRAM, and nobody does with a wrong password."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient, ScramMechanism, UserScramCredentialDeletion
from kafka.net.selector import NetworkSelector

from headrace.broker.boot import Broker
from tests.broker.group_broker import until
from tests.sasl_broker import PREFIX, confluent_config, make_users, sasl_broker

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TIMEOUT_S: Final = 150.0
PASSWORD: Final = "wonder;land"
Client = Callable[[Broker, str, str], Any]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """It has alice for every mechanism."""
    async with asyncio.timeout(150), sasl_broker(tmp_path) as broker:
        await asyncio.to_thread(make_users, broker, alice=PASSWORD)
        yield broker


def by_librdkafka(broker: Broker, mechanism: str, password: str) -> None:
    """Raises PermissionError where it is not let in."""
    refused = threading.Event()

    def on_error(error: Any) -> None:
        if error.code() == confluent_kafka.KafkaError._AUTHENTICATION:
            refused.set()

    config = confluent_config(broker, mechanism, "alice", password)
    producer = confluent_kafka.Producer({**config, "error_cb": on_error})
    producer.produce("by-librdkafka", b"hello")
    while producer.flush(0.01):
        if refused.is_set():
            producer.purge()
            raise PermissionError
    consumer = confluent_kafka.Consumer({**config, "group.id": mechanism, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition("by-librdkafka", 0, 0)])
    message = consumer.poll(TIMEOUT_S)
    assert message.value() == b"hello"
    consumer.close()


def by_kafka_python(broker: Broker, mechanism: str, password: str) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": str(broker.address),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
        "bootstrap_timeout_ms": 60_000 if password == PASSWORD else 200,
    }
    producer = kafka_python_producer(config)
    if producer is None:
        for each in gc.get_objects():  # it leaves its sockets open
            if isinstance(each, NetworkSelector):
                each.close()
        raise PermissionError
    producer.send("by-kafka-python", b"hello").get(TIMEOUT_S)
    producer.close()


def kafka_python_producer(config: dict[str, Any]) -> Any:
    """None: it was not let in."""
    try:
        return kafka.KafkaProducer(**config)
    except (kafka.errors.SaslAuthenticationFailedError, kafka.errors.KafkaTimeoutError):  # it tries again
        return None


async def by_aiokafka(broker: Broker, mechanism: str, password: str) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=str(broker.address),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=password,
    )
    try:
        await producer.start()
        await producer.send_and_wait("by-aiokafka", b"hello")
    except aiokafka.errors.KafkaConnectionError as error:
        raise PermissionError from error
    finally:
        await producer.stop()


async def tried(client: Client, broker: Broker, mechanism: str, password: str) -> None:
    """aiokafka runs on the loop, the others in a thread."""
    if asyncio.iscoroutinefunction(client):
        await client(broker, mechanism, password)
    else:
        await asyncio.to_thread(client, broker, mechanism, password)


@pytest.mark.parametrize("client", [by_librdkafka, by_kafka_python, by_aiokafka])
async def test_who_knows_the_password_is_let_in(broker: Broker, client: Client) -> None:
    counts = broker.parts.requests.authentication.counts
    for mechanism in MECHANISMS:
        before = counts.succeeded
        await tried(client, broker, mechanism, PASSWORD)
        assert counts.succeeded > before
        assert counts.failed == 0


@pytest.mark.parametrize("client", [by_librdkafka, by_kafka_python, by_aiokafka])
async def test_and_nobody_else(broker: Broker, client: Client) -> None:
    counts = broker.parts.requests.authentication.counts
    for mechanism in MECHANISMS:
        before = counts.failed
        while counts.failed == before:  # kafka-python may give up before it has tried
            with pytest.raises(PermissionError):
                await tried(client, broker, mechanism, "wonderland")
    assert not broker.image.topics


async def test_librdkafka_authenticates_again(tmp_path: Path) -> None:
    """Its session lasts some time, and it goes on without an error (KIP-368). Another one is tried where the machine
    stood still for longer than a session."""
    async with asyncio.timeout(150), sasl_broker(tmp_path, {"connections.max.reauth.ms": "1200"}) as broker:
        counts, expired, errors = broker.parts.requests.authentication.counts, -1, list[Any]()
        while counts.expired != expired:
            expired, errors = counts.expired, []
            await go_on_through_a_session(broker, errors)
        assert errors == []
        assert counts.failed_again == 0


async def go_on_through_a_session(broker: Broker, errors: list[Any]) -> None:
    """A client authenticates again, and then writes."""
    counts = broker.parts.requests.authentication.counts
    before = counts.succeeded_again
    config = {**confluent_config(broker, "PLAIN", "alice", PASSWORD), "error_cb": errors.append}
    producer = confluent_kafka.Producer(config)
    await until(lambda: counts.succeeded_again > before or producer.poll(0.001) < 0)
    producer.produce("again", b"hello")
    assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0


async def test_a_credential_that_is_gone_lets_nobody_in(broker: Broker) -> None:
    def delete() -> None:
        admin = AdminClient(confluent_config(broker, "PLAIN", "admin", "of all"))
        gone = [UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)]
        for done in admin.alter_user_scram_credentials(gone).values():
            done.result(TIMEOUT_S)
        (found,) = admin.describe_user_scram_credentials().result(TIMEOUT_S).values()
        told = [(each.mechanism, each.iterations) for each in found.scram_credential_infos]
        assert told == [(ScramMechanism.SCRAM_SHA_512, 8_192)]

    await asyncio.to_thread(delete)
    with pytest.raises(PermissionError):
        await by_aiokafka(broker, "SCRAM-SHA-256", PASSWORD)
    await by_aiokafka(broker, "SCRAM-SHA-512", PASSWORD)


async def test_secrets_are_not_described(broker: Broker) -> None:
    config = confluent_config(broker, "PLAIN", "admin", "of all")
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.BROKER, "1")

    def described() -> Any:
        admin = AdminClient(config)
        (done,) = admin.describe_configs([resource]).values()
        return done.result(TIMEOUT_S)

    found = (await asyncio.to_thread(described))[f"{PREFIX}plain.sasl.jaas.config"]
    assert (found.value, found.is_sensitive, found.is_read_only) == (None, True, True)
    assert all(each.value is None for each in found.synonyms.values())
