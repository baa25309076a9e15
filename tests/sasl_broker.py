"""A broker whose first listener has SASL, in this process: PLAIN for two users, SCRAM for those who are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from tests.broker.group_broker import QUICK

PREFIX: Final = "listener.name.sasl_plaintext."
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL: Final = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "1",
    f"{PREFIX}plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_admin="of all" user_alice="wonder;land";',
}


@asynccontextmanager
async def sasl_broker(directory: Path, configs: Mapping[str, str] | None = None) -> AsyncIterator[Broker]:
    config = BrokerConfig(data=directory / "data", configs={**QUICK, **SASL, **(configs or {})})
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        yield broker


def confluent_config(broker: Broker, mechanism: str, user: str, password: str) -> dict[str, str]:
    """How librdkafka is told."""
    return {
        "bootstrap.servers": str(broker.address),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def make_users(broker: Broker, **passwords: str) -> None:
    """Set SCRAM credentials of both mechanisms, through librdkafka. Blocks."""
    admin = AdminClient(confluent_config(broker, "PLAIN", "admin", "of all"))
    for mechanism, iterations in ((ScramMechanism.SCRAM_SHA_256, 4_096), (ScramMechanism.SCRAM_SHA_512, 8_192)):
        wanted = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, iterations), password.encode())
            for user, password in passwords.items()
        ]
        for done in admin.alter_user_scram_credentials(wanted).values():
            done.result(60)
