"""Clients that nobody here wrote meet ACLs: what they may do works, and the rest is the error that each has for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.broker.boot import Broker
from headrace.coordinators.groups.model import Group
from headrace.metadata.config_table import STANDARD_AUTHORIZER
from tests.sasl_broker import confluent_config, sasl_broker

CONFIGS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
TIMEOUT_S: Final = 150.0
ALICE: Final = "wonder;land"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Alice may write to and read from topics `mine-*`, but not `mine-secret`, as group `readers`."""
    async with asyncio.timeout(150), sasl_broker(tmp_path, CONFIGS) as broker:
        await asyncio.to_thread(prepare, broker)
        yield broker


def acl(
    kind: ResourceType, name: str, pattern: ResourcePatternType, operation: AclOperation, **more: Any
) -> AclBinding:
    permission = more.get("permission", AclPermissionType.ALLOW)
    return AclBinding(kind, name, pattern, "User:alice", "*", operation, permission)


def prepare(broker: Broker) -> None:
    admin = AdminClient(confluent_config(broker, "PLAIN", "admin", "of all"))
    names = ("mine-1", "mine-secret", "theirs")
    for made in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result(TIMEOUT_S)
    prefixed, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
    acls = [
        acl(ResourceType.TOPIC, "mine-", prefixed, AclOperation.WRITE),
        acl(ResourceType.TOPIC, "mine-", prefixed, AclOperation.READ),
        acl(ResourceType.TOPIC, "mine-secret", literal, AclOperation.ALL, permission=AclPermissionType.DENY),
        acl(ResourceType.GROUP, "readers", literal, AclOperation.READ),
    ]
    for made in admin.create_acls(acls).values():
        made.result(TIMEOUT_S)
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert len(admin.describe_acls(everything).result(TIMEOUT_S)) == len(acls)


def librdkafka(broker: Broker, **more: Any) -> dict[str, Any]:
    return {**confluent_config(broker, "PLAIN", "alice", ALICE), **more}


async def test_librdkafka(broker: Broker) -> None:
    await asyncio.to_thread(by_librdkafka, broker)


def by_librdkafka(broker: Broker) -> None:
    admin = AdminClient(librdkafka(broker))
    assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == {"mine-1"}
    told: dict[str, Any] = {}
    producer = confluent_kafka.Producer(librdkafka(broker, acks="all"))
    for topic in ("mine-1", "mine-secret", "theirs", "new"):
        producer.produce(topic, b"x", on_delivery=lambda error, message: told.update({message.topic(): error}))
    producer.flush(TIMEOUT_S)
    assert told.pop("mine-1") is None
    assert {error.code() for error in told.values()} == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    assert len(told) == 3
    consumer = confluent_kafka.Consumer(librdkafka(broker, **{"group.id": "readers", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["mine-1"])
    record = consumer.poll(TIMEOUT_S)
    assert record is not None
    assert record.value() == b"x"
    consumer.commit(asynchronous=False)
    consumer.close()
    stranger = confluent_kafka.Consumer(librdkafka(broker, **{"group.id": "others"}))
    stranger.subscribe(["mine-1"])
    refused = stranger.poll(TIMEOUT_S)
    assert refused is not None
    assert refused.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()
    failed_login(broker)
    transactional = confluent_kafka.Producer(librdkafka(broker, **{"transactional.id": "t"}))
    with pytest.raises(KafkaException) as failed:
        transactional.init_transactions(TIMEOUT_S)
    assert failed.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as failed:
        admin.create_topics([NewTopic("new", 1)])["new"].result(TIMEOUT_S)
    assert failed.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    mine = acl(ResourceType.TOPIC, "theirs", ResourcePatternType.LITERAL, AclOperation.ALL)
    with pytest.raises(KafkaException) as failed:
        admin.create_acls([mine])[mine].result(TIMEOUT_S)
    assert failed.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


async def test_an_expression_of_librdkafka_matches_what_it_may_describe(broker: Broker) -> None:
    await asyncio.to_thread(by_expression, broker)


def by_expression(broker: Broker) -> None:
    """Alice asks for every topic, and is assigned hers alone, by name and by id; a right that comes is followed."""
    options = {"group.id": "readers", "group.protocol": "consumer", "topic.metadata.refresh.interval.ms": "100"}
    consumer = confluent_kafka.Consumer(librdkafka(broker, **options))
    consumer.subscribe(["^.*"])
    has = set[str]()
    while has != {"mine-1"}:
        consumer.poll(0.1)
        has = {each.topic for each in consumer.assignment()}
        assert has <= {"mine-1"}
    group = broker.parts.requests.services.groups.group("readers")
    assert isinstance(group, Group)
    assert group.consumer is not None
    (member,) = group.consumer.members.values()
    assert (member.pattern, member.principal) == ("(^.*)", "User:alice")
    assert dict(group.consumer.patterns) == {"(^.*)": frozenset({"mine-1"})}
    admin = AdminClient(confluent_config(broker, "PLAIN", "admin", "of all"))
    theirs = acl(ResourceType.TOPIC, "theirs", ResourcePatternType.LITERAL, AclOperation.READ)
    admin.create_acls([theirs])[theirs].result(TIMEOUT_S)
    while has != {"mine-1", "theirs"}:
        consumer.poll(0.1)
        has = {each.topic for each in consumer.assignment()}
    consumer.close()


def failed_login(broker: Broker) -> None:
    """The audit log tells who could not log in, by the name that it claimed, and at which listener."""
    told: list[int] = []
    wrong = {**confluent_config(broker, "PLAIN", "mallory", "x"), "error_cb": lambda error: told.append(error.code())}
    client = confluent_kafka.Producer(wrong)
    while KafkaError._AUTHENTICATION not in told:
        client.poll(0.1)
    lines: list[dict[str, Any]] = []
    while not lines:
        text = (broker._config.data / "audit.log").read_text()
        found = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        lines = [line for line in found if line["event"] == "authentication"]
    assert (lines[0]["principal"], lines[0]["listener"]) == ("User:mallory", "SASL_PLAINTEXT")
    assert "of all" not in text


async def test_aiokafka(broker: Broker) -> None:
    common: dict[str, Any] = {
        "bootstrap_servers": str(broker.address),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": ALICE,
    }
    async with aiokafka.AIOKafkaProducer(**common) as producer:
        await producer.send_and_wait("mine-1", b"x")
        for topic in ("mine-secret", "theirs"):
            with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
                await producer.send_and_wait(topic, b"x")
    consumer = aiokafka.AIOKafkaConsumer("mine-1", group_id="readers", auto_offset_reset="earliest", **common)
    async with consumer:
        assert (await consumer.getone()).value == b"x"
        await consumer.commit()
    stranger = aiokafka.AIOKafkaConsumer("mine-1", group_id="others", **common)
    try:
        with pytest.raises(aiokafka.errors.GroupAuthorizationFailedError):
            await stranger.start()
    finally:
        await stranger.stop()


async def test_kafka_python(broker: Broker) -> None:
    await asyncio.to_thread(by_kafka_python, broker)


def by_kafka_python(broker: Broker) -> None:
    common: dict[str, Any] = {
        "bootstrap_servers": str(broker.address),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": ALICE,
    }
    producer = kafka.KafkaProducer(**common)
    producer.send("mine-1", b"x").get(TIMEOUT_S)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        producer.send("theirs", b"x").get(TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer("mine-1", group_id="others", **common)
    with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
        consumer.poll(int(TIMEOUT_S * 1000))
    consumer.close()
