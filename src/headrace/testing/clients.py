"""The settings by which clients of others reach a test's broker, secured or not: as each of them names these."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.base.values import Value

MECHANISM: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Login(Value):
    """A user of a secured broker."""

    user: str
    password: str = field(repr=False)
    ca: Path
    """The certificate that a client has to trust, in PEM."""
    properties: Path
    """All of this as a file of Kafka's client properties, for `--command-config` and Kafka's tools."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Clients(Value):
    """Settings to pass on: `Producer(clients.confluent)`, `KafkaProducer(**clients.kafka_python)`."""

    bootstrap: str
    login: Login | None
    """None: the broker lets everybody in."""

    @property
    def confluent(self) -> dict[str, Any]:
        """For confluent-kafka, and for all that is built on librdkafka."""
        at = {"bootstrap.servers": self.bootstrap}
        if self.login is None:
            return at
        return at | {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.login.ca),
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.login.user,
            "sasl.password": self.login.password,
        }

    @property
    def kafka_python(self) -> dict[str, Any]:
        if self.login is None:
            return {"bootstrap_servers": self.bootstrap}
        return {**self._by_python(self.login), "ssl_cafile": str(self.login.ca)}

    @property
    def aiokafka(self) -> dict[str, Any]:
        if self.login is None:
            return {"bootstrap_servers": self.bootstrap}
        trusting = ssl.create_default_context(cafile=str(self.login.ca))
        return {**self._by_python(self.login), "ssl_context": trusting}

    def _by_python(self, login: Login) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
