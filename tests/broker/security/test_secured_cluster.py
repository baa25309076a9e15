"""Brokers reach each other over listeners that do not let everybody in: quorum, copies, forwarding, joining, moves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.cluster.lost_quorum import check_lost, examine, probe
from headrace.broker.config import BrokerConfig
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.consumer import Consumer
from headrace.net.client.errors import ClientError
from headrace.net.client.producer import Producer
from headrace.net.client.retry import Backoff
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.storage.disk import LocalDisk
from tests import loops
from tests.broker.clusters import Cluster, running
from tests.broker.group_broker import until
from tests.certificates import Authority

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = 'user_broker="of brokers" user_alice="s3cret"'


def by_password(password: str = "of brokers") -> dict[str, str]:
    """All brokers and clients log in at the one listener."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "connection.failed.authentication.delay.ms": "1",
        "listener.name.plaintext.plain.sasl.jaas.config": f'{MODULE} required username="broker" '
        f'password="{password}" {USERS};',
        "default.replication.factor": "2",
    }


def as_alice(password: str = "s3cret") -> ClientSecurity:
    return ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": password,
        }
    )


def by_certificate(authority: Authority, protocol: str = "SSL") -> dict[str, str]:
    """All brokers and clients show certificates, and log in where the protocol is SASL_SSL."""
    return {
        **(by_password() if protocol == "SASL_SSL" else {"default.replication.factor": "2"}),
        "listener.security.protocol.map": f"PLAINTEXT:{protocol}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("127.0.0.1", common_name="broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trust),
        "listener.name.plaintext.ssl.client.auth": "required",
    }


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


async def works(cluster: Cluster, security: ClientSecurity, topic: str) -> None:
    """A topic is made through each broker, and records are on all of its replicas when they are acknowledged."""
    for broker in cluster.brokers:
        name = f"{topic}-{broker}"
        async with Client(str(cluster.address(broker)), security=security) as client:
            await Admin(client).create_topic(name)
            await cluster.agree()
            async with Producer(client) as producer:
                await producer.send(name, value=b"a record", timestamp_ms=1)
            async with Consumer(client) as consumer:
                consumer.assign(name, partition=0, offset=0)
                (fetched,) = await consumer.poll()
                assert [record.value for record in fetched.records] == [b"a record"]


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL", "SASL_SSL"])
def test_brokers_let_each_other_in_and_one_more_joins(tmp_path: Path, protocol: str) -> None:
    configs, security = by_password(), as_alice()
    if protocol.endswith("SSL"):
        authority = Authority.made(tmp_path / "authority")
        configs = by_certificate(authority, protocol)
        own = {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(authority.trust),
            "ssl.keystore.location": str(authority.issue("alice.example", common_name="alice")),
        }
        over_tls = ClientSecurity.from_properties(own)
        security = over_tls if protocol == "SSL" else replace(security, tls=over_tls.tls)

    async def work() -> None:
        async with running(tmp_path, 3, configs) as cluster:
            await works(cluster, security, "first")
            leads = cluster.controller.core.node
            await cluster.stop(leads)
            await works(cluster, security, "second")
            await cluster.start(leads)
            await cluster.start(4, join=(cluster.address(1),))
            await cluster.agree()
            await works(cluster, security, "third")
            image = await cluster.agree()
            await until(lambda: all(len(part.isr) == 2 for _, part in image.all_partitions()))
            await cluster.stop(4)

    run(work())


def test_sessions_that_end_keep_nobody_out(tmp_path: Path) -> None:
    """Clients log in again (KIP-368); links between brokers are opened again."""

    async def work() -> None:
        short = {"listener.name.plaintext.plain.connections.max.reauth.ms": "300"}
        async with running(tmp_path, 3, {**by_password(), **short}) as cluster:
            leads, begun = cluster.controller.core.node, asyncio.get_running_loop().time()
            async with Client(cluster.bootstrap, security=as_alice()) as client:
                await Admin(client).create_topic("t")
                async with Producer(client) as producer:
                    sent = 0
                    while asyncio.get_running_loop().time() < begun + 1.5:
                        await producer.send("t", value=b"%d" % sent, timestamp_ms=1)
                        await producer.flush()
                        sent += 1
                async with Consumer(client) as consumer:
                    consumer.assign("t", partition=0, offset=0)
                    found = list[bytes | None]()
                    while len(found) < sent:
                        found += [record.value for fetched in await consumer.poll() for record in fetched.records]
            assert found == [b"%d" % number for number in range(sent)]
            assert cluster.controller.core.node == leads
            image = await cluster.agree()
            assert all(len(part.isr) == 2 for _, part in image.all_partitions())

    run(work())


def test_a_broker_with_a_wrong_password_does_not_join_and_says_so_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 1, by_password()) as cluster:
            cluster.configs = by_password("of another cluster")
            with capture_logs() as logs:
                joining = asyncio.create_task(cluster.start(2, join=(cluster.address(1),)))
                await until(lambda: any("let each other in" in line["event"] for line in logs))
                await asyncio.sleep(0)
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
            (told,) = [line for line in logs if "let each other in" in line["event"]]
            assert "does not let user 'broker' in" in told["reason"]
            assert not any("of another cluster" in str(line) for line in logs)
            assert set(cluster.image(1).brokers) == {1}

    run(work())


def test_a_broker_that_lets_in_nobody_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """`quorum recover` without a password must not go on beside brokers that live."""

    async def work() -> None:
        async with running(tmp_path, 3, by_password()) as cluster:
            await cluster.stop(1)
            one = examine(LocalDisk(), cluster.data(1))
            living, silent = await probe(one, security=as_alice())
            assert (set(living), silent) == ({2, 3}, [])
            for security in (PLAIN, as_alice("wrong")):
                living, silent = await probe(one, security=security)
                assert (living, set(silent)) == ({}, {cluster.address(2), cluster.address(3)})
                with pytest.raises(UsageError, match="give --command-config"):
                    check_lost(one, [one], living, silent)

    run(work())


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_nor_is_one_that_speaks_tls_where_this_side_does_not_or_the_reverse(tmp_path: Path, speaks_tls: bool) -> None:
    authority, foreign = Authority.made(tmp_path / "ca"), Authority.made(tmp_path / "foreign")
    trusting = ("security.protocol=SSL", f"ssl.truststore.location={foreign.trust}")
    distrustful = ClientSecurity.from_properties(dict(each.split("=") for each in trusting))

    async def work() -> None:
        async with running(tmp_path, 3, by_certificate(authority) if speaks_tls else {}) as cluster:
            await cluster.stop(1)
            one = examine(LocalDisk(), cluster.data(1))
            for security in (PLAIN, distrustful) if speaks_tls else (distrustful,):
                living, silent = await probe(one, security=security)
                assert (living, set(silent)) == ({}, {cluster.address(2), cluster.address(3)})

    run(work())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sasl.mechanism.inter.broker.protocol": ""}, r"sasl\.mechanism\.inter\.broker\.protocol is missing"),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "GSSAPI"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, r"scram-sha-256\.sasl\.jaas\.config is missing"),
        (
            {"listener.name.plaintext.plain.sasl.jaas.config": f"{MODULE} required {USERS};"},
            "lacks username or password",
        ),
    ],
)
def test_a_broker_that_no_other_would_let_in_does_not_start(
    tmp_path: Path, changed: Mapping[str, str], said: str
) -> None:
    others = (Address("127.0.0.1", 1),)
    config = BrokerConfig(data=tmp_path, join=others, configs={**by_password(), **changed})
    with pytest.raises(UsageError, match=said) as refused:
        config.check_addresses()
    assert "s3cret" not in str(refused.value)


def test_a_plain_broker_opens_plain_connections(tmp_path: Path) -> None:
    config = BrokerConfig(data=tmp_path)
    assert config.peer_security() == PLAIN
    assert replace(config, configs=by_password()).peer_security().protocol == "SASL_PLAINTEXT"


def test_a_client_without_a_password_learns_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        once = Backoff(attempts_max=1)
        async with running(tmp_path, 1, by_password()) as cluster, Client(cluster.bootstrap, backoff=once) as client:
            with pytest.raises(ClientError):
                await Admin(client).topics()

    run(work())


def test_a_broker_with_a_certificate_of_another_authority_is_not_trusted_and_does_not_join(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 1, by_certificate(Authority.made(tmp_path / "authority"))) as cluster:
            cluster.configs = by_certificate(Authority.made(tmp_path / "stranger"))
            with capture_logs() as logs:
                joining = asyncio.create_task(cluster.start(2, join=(cluster.address(1),)))
                await until(lambda: any("let each other in" in line["event"] for line in logs))
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
            assert any("is not accepted" in str(line.get("reason")) for line in logs)
            assert set(cluster.image(1).brokers) == {1}

    run(work())
