"""The configs of SASL listeners: one that does not fit is refused at the start. Changes hold for the next client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.broker.boot import Broker
from headrace.broker.requests import authentication
from headrace.controller.access.scram import ScramAlteration
from headrace.controller.asks.access import AlterScram
from headrace.metadata.access.scram import ScramMechanism
from headrace.security.scram import credential_of
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.group_broker import RawClient
from tests.sasl_broker import PLAIN_MODULE, PREFIX, sasl_broker

JAAS = f"{PREFIX}plain.sasl.jaas.config"


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI, which is not served"),
        ({"sasl.enabled.mechanisms": "PLAIN,plain"}, "plain, which is not served"),
        ({"sasl.enabled.mechanisms": ""}, "is empty"),
        ({JAAS: "hush"}, f"{JAAS} cannot be read"),
        ({JAAS: f"{PLAIN_MODULE} required user_a=hush"}, "semicolon"),
        ({JAAS: "org.other.Module required user_a=hush;"}, "needs its users"),
        ({f"{PREFIX}scram-sha-256.sasl.jaas.config": "org.other.Module required;"}, "is not org.apache.kafka"),
        ({"sasl.jaas.config": f"{PLAIN_MODULE} required user_a=hush;"}, "set it for a mechanism"),
        ({"listener.name.sasl_plaintext.sasl.jaas.config": "hush"}, "Unknown broker config"),
        ({"sasl.server.max.receive.size": "10"}, "between 1024"),
        ({f"{PREFIX}sasl.server.max.receive.size": "10"}, "between 1024"),
        ({"connection.failed.authentication.delay.ms": "-1"}, "between 0"),
    ],
)
async def test_configs_that_do_not_fit_are_refused_and_no_secret_is_shown(
    tmp_path: Path, configs: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        async with sasl_broker(tmp_path, configs):
            pass
    assert "hush" not in str(refused.value)


async def login(broker: Broker, mechanism: str = "PLAIN", message: bytes = b"\0alice\0wonder;land") -> Any:
    """The answer to the handshake, where it is an error; else that to the message."""
    async with RawClient(str(broker.address)) as client:
        told = await client.ask(1, SaslHandshakeRequest(mechanism=mechanism))
        return told if told.error_code else await client.ask(2, SaslAuthenticateRequest(auth_bytes=message))


async def test_the_nearest_config_holds(tmp_path: Path) -> None:
    configs = {
        "connections.max.reauth.ms": "3000",
        f"{PREFIX}connections.max.reauth.ms": "4000",
        f"{PREFIX}plain.connections.max.reauth.ms": "5000",
        f"{PREFIX}sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.sasl.enabled.mechanisms": "GSSAPI",
    }
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs) as broker:
        assert (await login(broker)).session_lifetime_ms == 5_000
        refused = await login(broker, "SCRAM-SHA-256")
        assert (refused.error_code, refused.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ("PLAIN",))


async def test_mechanisms_are_changed_while_the_broker_runs(tmp_path: Path) -> None:
    async with asyncio.timeout(150), sasl_broker(tmp_path) as broker, RawClient(str(broker.address)) as admin:
        await admin.ask(1, SaslHandshakeRequest(mechanism="PLAIN"))
        await admin.ask(2, SaslAuthenticateRequest(auth_bytes=b"\0admin\0of all"))

        async def alter(key: str, value: str) -> int:
            change = AlterableConfig(name=key, config_operation=0, value=value)
            resource = AlterConfigsResource(resource_type=4, resource_name="", configs=(change,))
            (told,) = (await admin.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))).responses
            return int(told.error_code)

        assert await alter("sasl.enabled.mechanisms", "SCRAM-SHA-512") == 0
        assert (await login(broker)).mechanisms == ("SCRAM-SHA-512",)
        assert await alter("sasl.enabled.mechanisms", "GSSAPI") == 0, "Kafka takes it, too"
        assert (await login(broker)).mechanisms == ("SCRAM-SHA-512",), "what cannot be is not adopted"
        assert await alter("sasl.enabled.mechanisms", "PLAIN") == 0
        assert (await login(broker)).error_code == 0
        for secret in (JAAS, "sasl.jaas.config"):
            assert await alter(secret, f"{PLAIN_MODULE} required user_a=b;") != 0
        assert "of all" not in repr(broker._config)


async def test_many_users_are_counted_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name has iterations as the users have them, as soon as they are counted."""
    monkeypatch.setattr(authentication, "SCRAM_USERS_COUNTED_AT_ONCE_MAX", 0)
    mechanism = ScramMechanism.SCRAM_SHA_256
    credential = credential_of(mechanism, "secret", salt=b"salt", iterations=5_000)
    async with asyncio.timeout(150), sasl_broker(tmp_path) as broker:
        wanted = (ScramAlteration("alice", mechanism, credential),)
        assert await broker.parts.control.submit(AlterScram(alterations=wanted, secret=b"s")) == (None,)
        while not (await login(broker, "SCRAM-SHA-256", b"n,,n=mallory,r=c")).auth_bytes.endswith(b",i=5000"):
            pass
        assert (await login(broker, "SCRAM-SHA-256", b"n,,n=alice,r=c")).auth_bytes.endswith(b"s=c2FsdA==,i=5000")
