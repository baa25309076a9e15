"""Tokens of a real OpenID provider (zitadel, in Go), which librdkafka and Kafka's own client fetch. They expire while
records are written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from headrace.broker.boot import Broker
from tests.broker.group_broker import until
from tests.interop.support.secured import secured_java
from tests.sasl_broker import sasl_broker
from tests.tiers import IS_LONG, of_tier

PROGRAM: Final = Path(__file__).with_name("oidc")
CLIENT: Final = "sid1"
JAVA: Final = "org.apache.kafka.common.security.oauthbearer."
MODULE: Final = f"{JAVA}OAuthBearerLoginModule"
JAVA_LOGIN: Final = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_login_callback_handler_class": f"{JAVA}OAuthBearerLoginCallbackHandler",
}
TOKEN_S: Final = 4
TIMEOUT_S: Final = 150.0

pytestmark = pytest.mark.skipif(
    shutil.which("go") is None, reason="there is no go on the PATH to build the provider with"
)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the provider. In the short tier it is built from modules that are there already."""
    program = tmp_path_factory.mktemp("oidc") / "provider"
    environment = os.environ | ({} if IS_LONG else {"GOPROXY": "off"})
    built = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=PROGRAM,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"the provider cannot be built: {built.stderr[-200:]}")
    with subprocess.Popen(
        [str(program), str(TOKEN_S)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def configs(issuer: str) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer}keys",
        "sasl.oauthbearer.expected.issuer": issuer,
        "sasl.oauthbearer.expected.audience": CLIENT,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }


async def has_keys(broker: Broker) -> None:
    await until(lambda: broker.parts.requests.authentication._keys["SASL_PLAINTEXT"].keys is not None)


def records(broker: Broker, topic: str) -> int:
    return sum(each.log.log_end_offset for each in broker.parts.partitions.replicas if each.topic == topic)


async def test_tokens_expire_while_a_client_produces(issuer: str, tmp_path: Path) -> None:
    """A client begins again where the machine stood still for longer than a session."""
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs(issuer)) as broker:
        counts = broker.parts.requests.authentication.counts
        await has_keys(broker)
        sent, expired, errors = 0, -1, list[Any]()
        while counts.expired != expired:
            expired, again, errors = counts.expired, counts.succeeded_again, []
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": str(broker.address),
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "OAUTHBEARER",
                    "sasl.oauthbearer.method": "oidc",
                    "sasl.oauthbearer.client.id": CLIENT,
                    "sasl.oauthbearer.client.secret": "verysecret",
                    "sasl.oauthbearer.token.endpoint.url": f"{issuer}oauth/token",
                    "sasl.oauthbearer.scope": "openid",
                    "error_cb": errors.append,
                }
            )
            while counts.succeeded_again < again + of_tier(short=1, long=5):
                producer.produce("t", b"hello")
                sent += 1
                assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0
        assert (errors, counts.failed, counts.failed_again) == ([], 0, 0)
        assert records(broker, "t") == sent


async def test_tokens_expire_while_kafka_s_own_client_produces(issuer: str, tmp_path: Path) -> None:
    """By the client credentials of KIP-768. It logs in again before its session ends (KIP-368). Another one is tried
    where the machine stood still for longer than a session."""
    url = f"{issuer}oauth/token"

    def wrote(secret: str, topic: str) -> str:
        return outcome(
            topic,
            **JAVA_LOGIN,
            bootstrap_servers=str(broker.address),
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_jaas_config=f'{MODULE} required clientId="{CLIENT}" clientSecret="{secret}" scope="openid";',
            headrace_lasts_ms=str(of_tier(short=2, long=5) * 1_000 * TOKEN_S),
            sasl_login_refresh_min_period_seconds="0",
            sasl_login_refresh_buffer_seconds="0",
        )

    with secured_java(tmp_path, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}", is_bearer=True) as outcome:
        async with asyncio.timeout(150), sasl_broker(tmp_path, configs(issuer)) as broker:
            counts = broker.parts.requests.authentication.counts
            await has_keys(broker)
            assert "invalid_client" in await asyncio.to_thread(wrote, "wrong", "refused")
            assert counts.succeeded == 0
            expired, again = -1, 0
            while counts.expired != expired:
                expired, again = counts.expired, counts.succeeded_again
                assert await asyncio.to_thread(wrote, "verysecret", "t") == "ok"
            assert (counts.failed, counts.failed_again) == (0, 0)
            assert counts.succeeded_again - again >= of_tier(short=1, long=3)
            assert records(broker, "t") > 0
            assert not records(broker, "refused")
