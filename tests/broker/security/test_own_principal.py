"""A broker that relies on ACLs to be let in by others does not start: they know none before they are together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.listeners import INSECURE
from headrace.broker.own_principal import own_principal, super_users
from headrace.broker.system import SystemClock, system_random
from headrace.metadata.config_table import STANDARD_AUTHORIZER
from headrace.net.client.security.settings import ClientSecurity
from headrace.storage.disk import LocalDisk
from tests.broker.clusters import running
from tests.broker.security.test_secured_cluster import as_alice, by_certificate, by_password, run, works
from tests.certificates import Authority
from tests.tokens import AUDIENCE, ISSUER, Issuer, key_set

OTHERS = (Address("127.0.0.1", 1),)
AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER}
OAUTH = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    ),
}


def refused(configs: Mapping[str, str], join: tuple[Address, ...] = OTHERS) -> str:
    """The sentence; empty: it may start."""
    said = ""
    try:
        BrokerConfig(data=Path("data"), join=join, configs={**AUTHORIZER, **configs}).check_addresses()
    except UsageError as error:
        said = str(error)
    assert "\n" not in said
    return said


def test_a_password_names_the_broker() -> None:
    assert "This broker is User:broker to the others" in refused(by_password())
    assert "add the principal of every broker to super.users" in refused({**by_password(), "super.users": "User:alice"})
    assert refused({**by_password(), "super.users": "User:alice; User:broker"}) == ""


def test_a_scram_user_names_the_broker() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    scram = {
        **by_password(),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="of-scram" password="x";',
        "scram-sha-512.sasl.jaas.config": f'{module} required username="of-scram" password="x";',
    }
    assert "User:of-scram" in refused(scram)
    assert refused({**scram, "super.users": "User:of-scram"}) == ""


def test_a_certificate_names_the_broker_by_the_rules_of_its_listener(tmp_path: Path) -> None:
    configs = by_certificate(Authority.made(tmp_path))
    assert "OU=" in refused({**configs, "super.users": "User:broker"})
    rules = {"listener.name.plaintext.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/U"}
    assert refused({**configs, **rules, "super.users": "User:BROKER"}) == ""
    assert "No rule of ssl.principal.mapping.rules fits" in refused(
        {**configs, "ssl.principal.mapping.rules": "RULE:^UID=(.*)$/$1/"}
    )


def test_a_password_goes_before_a_certificate(tmp_path: Path) -> None:
    configs = by_certificate(Authority.made(tmp_path), "SASL_SSL")
    assert refused({**configs, "super.users": "User:broker"}) == ""


@pytest.mark.parametrize("changed", [{"listener.name.plaintext.ssl.client.auth": "none"}, None])
def test_a_broker_that_is_not_asked_is_anonymous(tmp_path: Path, changed: Mapping[str, str] | None) -> None:
    configs = {} if changed is None else {**by_certificate(Authority.made(tmp_path)), **changed}
    configs = {**configs, INSECURE: "true"}
    assert "asks nobody who it is" in refused({**configs, "super.users": "User:broker"})
    assert refused({**configs, "super.users": "User:ANONYMOUS"}) == ""


def test_a_token_names_the_broker_where_it_is_there_at_the_start(tmp_path: Path) -> None:
    token = tmp_path / "token"
    configs = {**OAUTH, "sasl.oauthbearer.token.endpoint.url": token.as_uri()}
    config = BrokerConfig(data=tmp_path, join=OTHERS, configs={**AUTHORIZER, **configs})
    caution = config.check_own_rights()
    assert caution is not None
    assert "see that the principal is in super.users of every broker" in caution
    token.write_text(Issuer().token(sub="broker", client="of-headrace"))
    assert "User:broker" in refused(configs)
    claim = {"listener.name.plaintext.oauthbearer.sasl.oauthbearer.sub.claim.name": "client"}
    assert refused({**configs, **claim, "super.users": "User:of-headrace"}) == ""
    token.write_text("no token")
    assert own_principal(configs, config.listeners().of_brokers, config.peer_security()) is None


def test_brokers_log_in_at_each_other_by_tokens(tmp_path: Path) -> None:
    issuer, token, keys = Issuer(), tmp_path / "token", tmp_path / "keys"
    token.write_text(issuer.token(sub="broker"))
    keys.write_bytes(key_set(issuer))
    configs = {
        **OAUTH,
        **AUTHORIZER,
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "super.users": "User:broker",
        "default.replication.factor": "2",
    }

    async def work() -> None:
        async with running(tmp_path, 3, configs) as cluster:
            await works(cluster, ClientSecurity.bearer(token.read_text()), "t")

    run(work())


def test_a_broker_without_others_may_be_anybody() -> None:
    assert refused({}, join=()) == ""
    assert refused({"authorizer.class.name": ""}) == ""


def test_super_users_are_principals() -> None:
    assert super_users(" User:CN=a,O=b ;;User:c:d") == {"User:CN=a,O=b", "User:c:d"}
    for bad in ("alice", "User:", "User:a;bob"):
        assert "write User:NAME for each" in refused({"super.users": bad}, join=())


def test_a_cluster_whose_brokers_rely_on_acls_does_not_start_again(tmp_path: Path) -> None:
    """Not even a lone one that once had others: it finds them in its metadata."""

    async def work() -> None:
        good = {**by_password(), **AUTHORIZER, "super.users": "User:alice;User:broker"}
        async with running(tmp_path, 1, good) as cluster:
            await cluster.start(2, join=(cluster.address(1),))
            await works(cluster, as_alice(), "t")
            await cluster.stop(2, 1)
            for broker in (1, 2):
                config = BrokerConfig(
                    data=cluster.data(broker),
                    host="127.0.0.1",
                    port=cluster.address(broker).port,
                    broker_id=broker,  # type: ignore[arg-type]  # an int does
                    configs={**cluster.configs, "super.users": "User:alice"},
                )
                again = Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk())
                with capture_logs() as logs, pytest.raises(UsageError, match="This broker is User:broker"):
                    await again.start()
                assert not any(line["event"] == "ready" for line in logs)
            await cluster.start(1, 2)
            await works(cluster, as_alice(), "again")

    run(work())
