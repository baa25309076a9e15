"""A starting broker knows SCRAM users by its own configs, at one listener, and not for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from headrace.broker.requests.own_users import OwnUsers
from headrace.metadata.access.scram import ScramMechanism
from headrace.metadata.image import EMPTY_IMAGE
from headrace.security.jaas import read_jaas
from headrace.security.scram import credential_of
from tests.sasl_broker import PREFIX, SCRAM_MODULE, confluent_config, sasl_broker

OWN = ScramMechanism.SCRAM_SHA_256
LOGIN = f'{SCRAM_MODULE} required username="broker" password="of brokers";'


def test_they_count_until_the_image_moves_on() -> None:
    now = SimpleNamespace(image=EMPTY_IMAGE.replay([], index=7))
    users = OwnUsers(lambda: now.image, Random(1))
    users.learn(OWN, None)
    assert users.find(OWN, "broker") is None
    users.learn(OWN, read_jaas(LOGIN))
    known = users.find(OWN, "broker")
    assert known is not None
    assert known == credential_of(OWN, "of brokers", salt=known.salt, iterations=known.iterations)
    assert users.find(ScramMechanism.SCRAM_SHA_512, "broker") is None
    assert users.find(OWN, "alice") is None
    now.image = now.image.replay([], index=8)
    assert users.find(OWN, "broker") is None
    now.image = EMPTY_IMAGE.replay([], index=7)
    assert users.find(OWN, "broker") is None, "they never come back"


@pytest.mark.parametrize("between_brokers", ["SASL_PLAINTEXT", "PLAINTEXT"])
async def test_nobody_comes_in_by_them_once_a_broker_serves(tmp_path: Path, between_brokers: str) -> None:
    configs = {
        f"{PREFIX}scram-sha-256.sasl.jaas.config": LOGIN,
        "inter.broker.listener.name": between_brokers,
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    }
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs) as broker:
        told: list[Any] = []
        config = confluent_config(broker, "SCRAM-SHA-256", "broker", "of brokers")
        producer = confluent_kafka.Producer({**config, "error_cb": told.append, "log_level": 0})
        while not told:
            await asyncio.to_thread(producer.poll, 0.1)
        assert told[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
        assert broker.parts.requests.authentication.counts.succeeded == 0
