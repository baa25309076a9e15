"""Clients of others on TLS listeners: with and without a certificate, and as who they then are."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.net.selector import NetworkSelector

from headrace.testing import BrokerThread, RunningBroker
from tests.certificates import NOT_YET, OVER, Authority
from tests.interop.support.secured import secured_java

HOST: Final = "127.0.0.1"
NAMES: Final = "RULE:^CN=([a-z]+),.*$/$1/U,DEFAULT"
"""Alice, the administrator, is User:ALICE."""


class Place(NamedTuple):
    broker: RunningBroker
    ours: Authority
    theirs: Authority


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One broker. Clients of MUTUAL have to show a certificate, those of OPEN are not asked. The certificate of STALE
    is over. Alice and whoever is anonymous may do everything.
    """
    ours, theirs = (Authority.made(tmp_path_factory.mktemp(name)) for name in ("ours", "theirs"))
    stale = Authority(tmp_path_factory.mktemp("stale"), ours.ca)
    configs = {
        "listeners": "OPEN://127.0.0.1:0,MUTUAL://127.0.0.1:0,STALE://127.0.0.1:0",
        "listener.security.protocol.map": "OPEN:SSL,MUTUAL:SSL,STALE:SSL",
        "inter.broker.listener.name": "MUTUAL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(ours.issue(HOST)),
        "listener.name.stale.ssl.keystore.location": str(stale.issue(HOST, valid=OVER)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ours.trust),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": NAMES,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ALICE;User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": "0",
    }
    with BrokerThread(configs=configs) as broker:
        yield Place(broker, ours, theirs)


def context(place: Place, identity: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(place.ours.trust))
    if identity is not None:
        made.load_cert_chain(identity)
    return made


def librdkafka(place: Place, listener: str, identity: Path | None = None) -> dict[str, Any]:
    configs: dict[str, Any] = {
        "bootstrap.servers": place.broker.bootstrap_of(listener),
        "security.protocol": "SSL",
        "ssl.ca.location": str(place.ours.trust),
        "log_level": 0,
    }
    if identity is not None:
        configs |= {"ssl.certificate.location": str(identity), "ssl.key.location": str(identity)}
    return configs


@pytest.mark.parametrize(("listener", "who"), [("OPEN", None), ("MUTUAL", "alice")])
def test_librdkafka(place: Place, listener: str, who: str | None) -> None:
    identity = None if who is None else place.ours.issue(common_name=who)
    configs = librdkafka(place, listener, identity)
    topic, errors = f"librdkafka-{listener}", list[Any]()
    producer = confluent_kafka.Producer({**configs, "linger.ms": 0})
    for size in (1, 1_000, 500_000):
        producer.produce(topic, b"x" * size, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(150) == 0
    assert errors == [None] * 3
    consumer = confluent_kafka.Consumer({**configs, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = list[int]()
    while len(found) < 3:
        for message in consumer.consume(3 - len(found), timeout=1):
            assert message.error() is None
            found.append(len(message.value() or b""))
    assert found == [1, 1_000, 500_000]
    consumer.close()


def test_librdkafka_is_told_why_it_is_not_let_in(place: Place) -> None:
    """As who shows no certificate, or one of another authority, or one out of its time. As who trusts another
    authority, or meets a broker whose certificate is over, too."""
    good = place.ours.issue(common_name="alice")
    for changed, words in (
        (librdkafka(place, "MUTUAL"), "alert certificate required"),
        (librdkafka(place, "MUTUAL", place.theirs.issue(common_name="mallory")), "alert unknown ca"),
        (librdkafka(place, "MUTUAL", good) | {"ssl.ca.location": str(place.theirs.trust)}, "verify failed"),
        (librdkafka(place, "MUTUAL", late(place, OVER)), "alert certificate expired"),
        (librdkafka(place, "MUTUAL", late(place, NOT_YET)), "alert bad certificate"),
        (librdkafka(place, "STALE"), "verify failed"),
    ):
        texts = list[str]()
        producer = confluent_kafka.Producer(changed | {"error_cb": partial(noted, texts)})
        while not any(words in each for each in texts):
            producer.poll(1)


def late(place: Place, valid: tuple[int, int]) -> Path:
    """A certificate of alice that is over, or not yet valid."""
    return place.ours.issue(f"alice{valid[0]}.example", common_name="alice", valid=valid)


@pytest.mark.parametrize(("listener", "valid"), [("MUTUAL", OVER), ("MUTUAL", NOT_YET), ("STALE", None)])
def test_aiokafka_and_kafka_python_do_not_come_in_out_of_time(
    place: Place, listener: str, valid: tuple[int, int] | None
) -> None:
    made = context(place, late(place, valid) if valid else None)
    configs = {
        "bootstrap_servers": place.broker.bootstrap_of(listener),
        "security_protocol": "SSL",
        "ssl_context": made,
    }

    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(**configs)
        try:
            with pytest.raises(aiokafka.errors.KafkaConnectionError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(work())
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaProducer(**configs, bootstrap_timeout_ms=500)
    for each in gc.get_objects():  # it leaves its sockets open
        if isinstance(each, (NetworkSelector, ssl.SSLSocket)):
            each.close()


def noted(texts: list[str], error: confluent_kafka.KafkaError) -> None:
    texts.append(error.str())


def test_aiokafka(place: Place) -> None:
    async def work() -> None:
        made = context(place, place.ours.issue(common_name="alice"))
        configs = {
            "bootstrap_servers": place.broker.bootstrap_of("MUTUAL"),
            "security_protocol": "SSL",
            "ssl_context": made,
        }
        async with aiokafka.AIOKafkaProducer(**configs) as producer:
            await producer.send_and_wait("aiokafka", b"v")
        async with aiokafka.AIOKafkaConsumer("aiokafka", **configs, auto_offset_reset="earliest") as consumer:
            assert (await consumer.getone()).value == b"v"

    asyncio.run(work())


def test_kafka_python_and_who_it_is(place: Place) -> None:
    """Bob is known, and may do nothing."""
    made = {
        who: {
            "bootstrap_servers": place.broker.bootstrap_of("MUTUAL"),
            "security_protocol": "SSL",
            "ssl_context": context(place, place.ours.issue(common_name=who)),
        }
        for who in ("alice", "bob")
    }
    producer = kafka.KafkaProducer(**made["alice"])
    assert producer.send("kafka-python", b"v").get(60).offset == 0
    producer.close()
    producer = kafka.KafkaProducer(**made["bob"])
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("kafka-python", b"v").get(60)
    producer.close()


@pytest.fixture(scope="module")
def java(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """The outcome of Kafka's own client on a listener, with these properties."""
    with secured_java(tmp_path_factory.mktemp("java")) as outcome:

        def on_listener(topic: str, listener: str, **more: str) -> str:
            return outcome(
                topic,
                bootstrap_servers=place.broker.bootstrap_of(listener),
                security_protocol="SSL",
                ssl_truststore_type="PEM",
                ssl_truststore_location=str(place.ours.trust),
                **more,
            )

        yield on_listener


def test_java(java: Callable[..., str], place: Place) -> None:
    alice, bob, mallory = (
        {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(authority.issue(f"{who}.example", common_name=who))}
        for authority, who in ((place.ours, "alice"), (place.ours, "bob"), (place.theirs, "mallory"))
    )
    assert java("open", "OPEN") == "ok"
    assert java("old", "OPEN", ssl_enabled_protocols="TLSv1.2") == "ok"
    assert java("alice", "MUTUAL", **alice) == "ok"
    assert java("bob", "MUTUAL", **bob) == "TopicAuthorizationException"
    assert java("nobody", "MUTUAL") == "SslAuthenticationException"
    assert java("mallory", "MUTUAL", **mallory) == "SslAuthenticationException"
    for topic, valid in (("over", OVER), ("not-yet", NOT_YET)):
        own = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(late(place, valid))}
        assert java(topic, "MUTUAL", **own) == "SslAuthenticationException"
    assert java("stale", "STALE") == "SslAuthenticationException"
