"""Our client at Apache Kafka: every mechanism, with TLS and without, and sessions that Kafka ends."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

import pytest

from benchmarks.load.kafka_peer import KafkaPeer
from headrace.base.addresses import Address
from headrace.broker.home.ports import HeldPorts
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import connect
from headrace.net.client.errors import AuthenticationError, TlsError, WrongCredentialsError
from headrace.net.client.security.settings import ClientSecurity
from tests.certificates import Authority
from tests.tiers import long_only
from tools import kafka_jars

pytestmark = [long_only, pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason="no Java, or no Maven")]
SESSION_MS = 2_000
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class SecuredKafka(KafkaPeer):
    """One broker with a listener for each way in. alice's password is s3cret."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        held = HeldPorts.free("127.0.0.1", 4, SystemRandom())
        self.ports = dict(zip(("IN", "OUT", "OVER", "CERT"), held.numbers, strict=True))
        server = authority.issue("127.0.0.1", common_name="broker")
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        super().__init__(directory, heap="512m")
        weakref.finalize(self, held.release)
        own = f"PLAINTEXT://127.0.0.1:{self._port}"
        protocols = "IN:SASL_PLAINTEXT,OVER:SASL_SSL,OUT:SSL,CERT:SSL,CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        pem = [f"ssl.keystore.location={server}", "ssl.keystore.type=PEM"]
        pem += [f"ssl.truststore.location={authority.trust}", "ssl.truststore.type=PEM"]
        self._settings = [
            f"listeners={own},{listeners},CONTROLLER://127.0.0.1:{self.controller_port}",
            f"advertised.listeners={own},{listeners}",
            f"listener.security.protocol.map={protocols}",
            *pem,
            "listener.name.cert.ssl.client.auth=required",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"connections.max.reauth.ms={SESSION_MS}",
        ]
        for name in ("in", "over"):
            begin = f"listener.name.{name}"
            self._settings += [
                f'{begin}.plain.sasl.jaas.config={PLAIN} required user_alice="s3cret";',
                f"{begin}.scram-sha-256.sasl.jaas.config={SCRAM} required;",
                f"{begin}.scram-sha-512.sasl.jaas.config={SCRAM} required;",
                f'{begin}.oauthbearer.sasl.jaas.config={BEARER} required unsecuredLoginStringClaim_sub="broker";',
            ]

    def address(self, listener: str) -> Address:
        return Address("127.0.0.1", self.ports[listener])

    def _format(self, config: Path) -> None:
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", "aGVhZHJhY2UtcGVlci1rYQ", "-c", str(config)]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            command += ["--add-scram", f"{mechanism}=[name=alice,password=s3cret]"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("kafka"), authority) as peer:
        yield peer


def unsecured_token(life_s: float = 60.0) -> str:
    """A token that nobody has signed, which Kafka believes unless it is told not to."""
    now = time.time()
    parts = [{"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + life_s}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts) + "."


def security(mechanism: str, authority: Authority, password: str = "s3cret", *, over_tls: bool) -> ClientSecurity:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    made = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_SSL" if over_tls else "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN" if mechanism == "OAUTHBEARER" else mechanism,
            "sasl.jaas.config": f'{module if mechanism != "OAUTHBEARER" else PLAIN} required username="alice" '
            f'password="{password}";',
            "ssl.truststore.location": str(authority.trust),
            "ssl.truststore.type": "PEM",
        }
    )
    return made if mechanism != "OAUTHBEARER" else ClientSecurity.bearer(unsecured_token, tls=made.tls)


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain text", "tls"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_alice_works_with_topics(
    kafka: SecuredKafka, authority: Authority, mechanism: str, *, over_tls: bool
) -> None:
    address, topic = kafka.address("OVER" if over_tls else "IN"), f"{mechanism}-{over_tls}".lower()
    async with Cluster([address], security=security(mechanism, authority, over_tls=over_tls)) as cluster:
        await Admin(cluster).create_topic(topic)
        assert (await cluster.retried(lambda: cluster.topic(topic, fresh=True))).name == topic


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_refused(kafka: SecuredKafka, authority: Authority, mechanism: str) -> None:
    wrong = security(mechanism, authority, "s3cre7", over_tls=False)
    with pytest.raises(WrongCredentialsError, match="does not let user 'alice' in") as refused:
        await connect(kafka.address("IN"), security=wrong)
    assert "s3cre7" not in str(refused.value)


async def test_a_token_that_is_over_is_refused(kafka: SecuredKafka) -> None:
    with pytest.raises(AuthenticationError):
        await connect(kafka.address("IN"), security=ClientSecurity.bearer(unsecured_token(-60)))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
async def test_a_connection_outlives_its_sessions(kafka: SecuredKafka, authority: Authority, mechanism: str) -> None:
    """Kafka ends a connection that asks anything after its session. So it does where the machine stands still for that
    long: then another one is tried."""
    async with Cluster([kafka.address("OVER")], security=security(mechanism, authority, over_tls=True)) as cluster:
        while not await outlives(cluster):
            pass


async def outlives(cluster: Cluster) -> bool:
    """Whether a connection on which much is asked is the same after two sessions."""
    connection = await cluster.any_connection()
    loop = asyncio.get_running_loop()
    until = loop.time() + 2.5 * SESSION_MS / 1000
    asked = 0
    while loop.time() < until:
        await cluster.metadata(())
        asked += 1
    return asked > 10 and await cluster.any_connection() is connection


async def test_tls_alone_and_with_a_certificate_of_the_clients(kafka: SecuredKafka, authority: Authority) -> None:
    trusting = {"security.protocol": "SSL", "ssl.truststore.location": str(authority.trust)}
    own = {"ssl.keystore.location": str(authority.issue("alice.example", common_name="alice"))}
    for listener, properties in (("OUT", trusting), ("CERT", {**trusting, **own})):
        connection = await connect(kafka.address(listener), security=ClientSecurity.from_properties(properties))
        await connection.close()
    with pytest.raises((TlsError, ConnectionError, AuthenticationError)):
        await connect(kafka.address("CERT"), security=ClientSecurity.from_properties(trusting))
