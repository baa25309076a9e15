"""SASL_SSL: librdkafka, aiokafka, kafka-python and Kafka's own tools authenticate over TLS, each by PLAIN and SCRAM."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from kafka.net.selector import NetworkSelector

from headrace.broker.boot import Broker
from tests.broker.group_broker import until
from tests.certificates import Authority
from tests.interop.kafka_tools import KafkaTools
from tests.sasl_broker import PLAIN_MODULE, SASL, SCRAM_MODULE, confluent_config, make_users, sasl_broker
from tools import kafka_jars

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD: Final = "wonder;land"
TIMEOUT_S: Final = 150.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.made(tmp_path / "certificates")


@pytest.fixture
async def broker(tmp_path: Path, authority: Authority) -> AsyncIterator[Broker]:
    """It has alice for every mechanism, and a third listener, with TLS."""
    configs = {
        "listeners": f"{SASL['listeners']},SASL_SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("127.0.0.1", "localhost")),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="{PASSWORD}";',
    }
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs) as broker:
        await asyncio.to_thread(make_users, broker, alice=PASSWORD)
        yield broker


def by_librdkafka(at: str, trust: Path, mechanism: str, password: str) -> bool:
    """Whether it was let in, and wrote a record."""
    refused: list[Any] = []
    config = {
        "bootstrap.servers": at,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(trust),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "error_cb": lambda error: (
            refused.append(error) if error.code() == confluent_kafka.KafkaError._AUTHENTICATION else None
        ),
    }
    producer = confluent_kafka.Producer(config)
    producer.produce("by-librdkafka", b"hello")
    while producer.flush(0.01):
        if refused:
            producer.purge()
            return False
    return True


def by_kafka_python(at: str, trust: Path, mechanism: str, password: str) -> bool:
    try:
        producer = kafka.KafkaProducer(
            bootstrap_servers=at,
            security_protocol="SASL_SSL",
            ssl_cafile=str(trust),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password=password,
            bootstrap_timeout_ms=60_000 if password == PASSWORD else 200,
        )
    except (kafka.errors.SaslAuthenticationFailedError, kafka.errors.KafkaTimeoutError):
        for each in gc.get_objects():  # it leaves its sockets open
            if isinstance(each, NetworkSelector):
                each.close()
        return False
    producer.send("by-kafka-python", b"hello").get(TIMEOUT_S)
    producer.close()
    return True


async def by_aiokafka(at: str, trust: Path, mechanism: str, password: str) -> bool:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=at,
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=str(trust)),
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=password,
    )
    try:
        await producer.start()
        await producer.send_and_wait("by-aiokafka", b"hello")
    except aiokafka.errors.KafkaConnectionError:
        return False
    finally:
        await producer.stop()
    return True


async def let_in(client: Callable[..., Any], *given: Any) -> bool:
    """aiokafka runs on the loop, the others in a thread."""
    if asyncio.iscoroutinefunction(client):
        return bool(await client(*given))
    return bool(await asyncio.to_thread(client, *given))


@pytest.mark.parametrize("client", [by_librdkafka, by_kafka_python, by_aiokafka])
async def test_clients_log_in(broker: Broker, authority: Authority, client: Callable[..., Any]) -> None:
    at, counts = str(broker.addresses["SASL_SSL"]), broker.parts.requests.authentication.counts
    for mechanism in MECHANISMS:
        assert await let_in(client, at, authority.trust, mechanism, PASSWORD)
    before = counts.failed
    assert before == 0
    while counts.failed == before:  # kafka-python may give up before it has tried
        assert not await let_in(client, at, authority.trust, "SCRAM-SHA-512", "wonderland")
    await until(lambda: counts.unauthenticated == 0)


@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
async def test_java_logs_in(broker: Broker, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"

    def lists(tools: KafkaTools, mechanism: str, password: str) -> tuple[int, str]:
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        file.write_text(
            f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.trust}\n"
            f'sasl.mechanism={mechanism}\nsasl.jaas.config={module} required username="alice" password="{password}";\n'
        )
        at = ("--bootstrap-server", str(broker.addresses["SASL_SSL"]), "--command-config", str(file))
        said = tools.run_bare("TopicCommand", *at, "--list")
        return said.status, said.text

    def story() -> None:
        with KafkaTools("") as tools:
            for mechanism in MECHANISMS:
                assert lists(tools, mechanism, PASSWORD) == (0, "\n")
            status, text = lists(tools, "SCRAM-SHA-256", "wonderland")
            assert status == 1
            assert "Authentication failed" in text

    await asyncio.to_thread(story)


async def test_the_listener_without_tls_serves_beside_it(broker: Broker) -> None:
    def made() -> int:
        producer = confluent_kafka.Producer(confluent_config(broker, "PLAIN", "alice", PASSWORD))
        producer.produce("beside", b"hello")
        return int(producer.flush(TIMEOUT_S))

    assert await asyncio.to_thread(made) == 0
