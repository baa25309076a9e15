"""A starting broker knows SCRAM users by its own configs, at one listener, and not for long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import pytest

from headrace.base.ids import BrokerEpoch
from headrace.broker.core import Incarnation
from headrace.broker.requests.authentication import Authentication
from headrace.broker.requests.own_users import OwnUsers
from headrace.metadata.access.scram import ScramMechanism
from headrace.metadata.image import EMPTY_IMAGE
from headrace.security.jaas import read_jaas
from headrace.security.sasl_client import ScramExchange
from headrace.security.scram import AuthenticationFailed, credential_of
from tests.sasl_broker import PREFIX, SCRAM_MODULE, confluent_config, sasl_broker

OWN = ScramMechanism.SCRAM_SHA_256
LOGIN = f'{SCRAM_MODULE} required username="broker" password="of brokers";'


def test_they_count_until_the_broker_is_registered() -> None:
    now = SimpleNamespace(is_registered=False)
    users = OwnUsers(lambda: now.is_registered, Random(1))
    users.learn(OWN, None)
    assert users.find(OWN, "broker") is None
    users.learn(OWN, read_jaas(LOGIN))
    known = users.find(OWN, "broker")
    assert known is not None
    assert known == credential_of(OWN, "of brokers", salt=known.salt, iterations=known.iterations)
    assert users.find(ScramMechanism.SCRAM_SHA_512, "broker") is None
    assert users.find(OWN, "alice") is None
    now.is_registered = True
    assert users.find(OWN, "broker") is None
    now.is_registered = False
    assert users.find(OWN, "broker") is None, "they never come back"
    users.learn(OWN, read_jaas(LOGIN.replace("of brokers", "of others")))
    assert users.find(OWN, "broker") is None, "not by changed configs either"


def log_in(authentication: Authentication) -> str | None:
    """Return whom SCRAM-SHA-256 lets in at the listener between brokers by the broker's own name and password."""
    gatekeeper: Any = authentication.greet("SASL_PLAINTEXT")
    server = gatekeeper.__self__.rules.mechanisms["SCRAM-SHA-256"]()
    client = ScramExchange(OWN, "broker", "of brokers", nonce="once")
    message: bytes | None = client.first()
    while message is not None:
        message = client.after(server.step(message))
    return cast("str | None", server.user)


async def test_they_count_while_the_image_still_lacks_credentials(tmp_path: Path) -> None:
    """The log is replayed in steps. An image that has moved on may lack what was committed before the start."""
    configs = {
        f"{PREFIX}scram-sha-256.sasl.jaas.config": LOGIN,
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    }
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs) as broker:
        image = broker.parts.core.image()
        starting = Incarnation(broker.parts.core.incarnation.id, BrokerEpoch(-1))
        now = SimpleNamespace(image=EMPTY_IMAGE)
        core = replace(broker.parts.core, incarnation=starting, image=lambda: now.image)
        authentication = Authentication(core, None)
        assert log_in(authentication) == "broker"
        now.image = image
        assert image.index > EMPTY_IMAGE.index
        assert log_in(authentication) == "broker"
        starting.epoch = broker.parts.core.broker_epoch()
        with pytest.raises(AuthenticationFailed):
            log_in(authentication)


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
