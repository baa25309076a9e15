"""Kafka's client properties become the security of a connection, or are refused by name."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.net.client.security.settings import PLAIN, ClientSasl, ClientSecurity
from headrace.net.client.security.tokens import TokenEndpoint, TokenFile

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="s3cret";'
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}
BEARER = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'clientId="me" clientSecret="s3cret" scope="kafka" extension_tenant="one";',
    "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
}


def parsed(properties: Mapping[str, str]) -> ClientSecurity:
    return ClientSecurity.from_properties(properties)


def test_a_file_without_security_is_plain() -> None:
    assert parsed({"bootstrap.servers": "a:1", "acks": "all", "group.id": "g"}) == PLAIN
    assert PLAIN.is_plain
    assert PLAIN.protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    "given",
    [
        SCRAM,
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "scram-sha-512",
            "sasl.username": "alice",
            "sasl.password": "s3cret",
        },
    ],
    ids=["java", "librdkafka"],
)
def test_both_spellings_of_a_password_are_read(given: Mapping[str, str]) -> None:
    security = parsed(given)
    assert security.protocol == "SASL_SSL"
    assert security.sasl == ClientSasl(mechanism="SCRAM-SHA-512", user="alice", password="s3cret")
    assert pickle.loads(pickle.dumps(security)) == security


def test_tokens_come_from_an_identity_provider_or_a_file(tmp_path: Path) -> None:
    sasl = parsed(BEARER).sasl
    assert sasl is not None
    assert isinstance(sasl.token, TokenEndpoint)
    assert (sasl.token.client_id, sasl.token.client_secret, sasl.token.scope) == ("me", "s3cret", "kafka")
    assert sasl.extensions == (("tenant", "one"),)
    path = tmp_path / "a token"
    path.write_text("a.b.c\n")
    of_file = parsed({**BEARER, "sasl.oauthbearer.token.endpoint.url": path.as_uri()}).sasl
    assert of_file is not None
    assert isinstance(of_file.token, TokenFile)
    assert of_file.token() == "a.b.c"


@pytest.mark.parametrize(
    "given", [SCRAM, BEARER, {**SCRAM, "ssl.keystore.key": "s3cret", "ssl.key.password": "s3cret"}]
)
def test_no_secret_is_shown(given: Mapping[str, str]) -> None:
    if "ssl.keystore.key" in given:
        given = {**given, "ssl.keystore.certificate.chain": "a chain"}
    assert "s3cret" not in repr(parsed(given))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"security.protocol": "TLS"}, "security.protocol must be one of"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism 'GSSAPI' is not known here"),
        ({**SCRAM, "sasl.mechanism": ""}, "sasl.mechanism is missing"),
        ({**SCRAM, "sasl.mechanism": "PLAIN"}, "is for ScramLoginModule, which does not do PLAIN"),
        ({**SCRAM, "sasl.username": "alice"}, "contradict each other"),
        ({**SCRAM, "sasl.jaas.config": JAAS.replace(' username="alice"', "")}, "lacks username or password"),
        ({**SCRAM, "sasl.jaas.config": JAAS.replace(";", ' tokenauth="true";')}, "delegation tokens"),
        ({**SCRAM, "sasl.jaas.config": JAAS.replace(";", "")}, "sasl.jaas.config is malformed"),
        ({**SCRAM, "ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols must be of"),
        ({**SCRAM, "ssl.endpoint.identification.algorithm": "ldap"}, "algorithm must be https"),
        ({**SCRAM, "enable.ssl.certificate.verification": "false"}, "must be true"),
        ({**SCRAM, "ssl.cipher.suites": "X"}, "ssl.cipher.suites is not known here"),
        ({"ssl.engine.factory.class": "x.Y"}, "ssl.engine.factory.class is not known here"),
        ({**SCRAM, "sasl.client.callback.handler.class": "x.Y"}, "is not known here"),
        ({**BEARER, "sasl.login.callback.handler.class": "x.Y"}, "is not known here"),
        ({**SCRAM, "ssl.truststore.location": "a.jks", "ssl.truststore.type": "JKS"}, "keytool"),
        ({**SCRAM, "ssl.truststore.type": "BCFKS"}, "ssl.truststore.type must be PEM"),
        ({**SCRAM, "ssl.ca.location": "a", "ssl.ca.pem": "b"}, "contradict each other"),
        ({**SCRAM, "ssl.keystore.key": "k"}, "come together"),
        ({**SCRAM, "ssl.key.location": "k"}, "come together"),
        ({**BEARER, "sasl.oauthbearer.token.endpoint.url": ""}, "token.endpoint.url is missing"),
        ({**BEARER, "sasl.oauthbearer.token.endpoint.url": "http://id.example/"}, "must be https"),
        ({**BEARER, "sasl.oauthbearer.token.endpoint.url": "https://a:s3cret@id.example/"}, "has a user in it"),
        ({**BEARER, "sasl.jaas.config": BEARER["sasl.jaas.config"].replace("clientId", "x")}, "id and secret"),
        ({**BEARER, "sasl.jaas.config": BEARER["sasl.jaas.config"].replace("tenant", "auth")}, "extension 'auth'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(given: Mapping[str, str], named: str) -> None:
    for prefix in ("", "kafka."):
        with pytest.raises(UsageError, match=named) as refused:
            ClientSecurity.from_properties({prefix + name: value for name, value in given.items()}, prefix=prefix)
        assert "s3cret" not in str(refused.value)
        assert f"{prefix}s" in str(refused.value) or f"{prefix}enable" in str(refused.value)


def test_settings_without_the_prefix_are_another_ones() -> None:
    assert ClientSecurity.from_properties(SCRAM, prefix="kafka.") == PLAIN
