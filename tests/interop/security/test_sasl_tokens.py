"""OAUTHBEARER: librdkafka, aiokafka, kafka-python and Kafka's own client are let in by an issuer's token. Its keys come
from a file, or over HTTP.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector

from headrace.base.errors import UsageError
from headrace.broker.boot import Broker
from tests.broker.group_broker import until
from tests.interop.support.secured import secured_java
from tests.sasl_broker import sasl_broker
from tests.tokens import AUDIENCE, ISSUER, Issuer, key_set

TIMEOUT_S: Final = 150.0
MINE: Final = Issuer()
OAUTH: Final = "sasl.oauthbearer."
JAVA: Final = "org.apache.kafka.common.security.oauthbearer."


def configs(url: str, **changes: str | None) -> dict[str, str]:
    """`changes`: configs of OAUTHBEARER, with underscores; None: without it."""
    usual: dict[str, str | None] = {
        "jwks_endpoint_url": url,
        "expected_audience": AUDIENCE,
        "expected_issuer": ISSUER,
        "jwks_endpoint_retry_backoff_max_ms": "1",
        **changes,
    }
    named = {OAUTH + key.replace("_", "."): value for key, value in usual.items() if value is not None}
    return {"sasl.enabled.mechanisms": "OAUTHBEARER", **named}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys with blanks.json"
    file.write_bytes(key_set(MINE))
    return file


@pytest.fixture
async def broker(tmp_path: Path, keys: Path) -> AsyncIterator[Broker]:
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs(keys.as_uri())) as broker:
        yield broker


def by_librdkafka(broker: Broker, token: Callable[[], str]) -> list[str]:
    """Produces a record; the errors that it was told of."""
    errors: list[str] = []
    refused = threading.Event()

    def on_error(error: Any) -> None:
        errors.append(str(error))
        if error.code() == confluent_kafka.KafkaError._AUTHENTICATION:
            refused.set()

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": str(broker.address),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token(), time.time() + 3_600),
            "error_cb": on_error,
        }
    )
    producer.produce("by-librdkafka", b"hello")
    while producer.flush(0.01):
        if refused.is_set():
            producer.purge()
            break
    return errors


async def by_aiokafka(broker: Broker, token: str) -> None:
    class Given(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]  # it has no types
        async def token(self) -> str:
            return token

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=str(broker.address),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Given(),
    )
    try:
        await producer.start()
        await producer.send_and_wait("by-aiokafka", b"hello")
    finally:
        await producer.stop()


def by_kafka_python(broker: Broker, token: str) -> bool:
    """Whether it was let in, and wrote a record."""

    class Given(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
        def token(self) -> str:
            return token

    try:
        producer = kafka.KafkaProducer(
            bootstrap_servers=str(broker.address),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Given(),
            bootstrap_timeout_ms=2_000,
        )
    except (kafka.errors.SaslAuthenticationFailedError, kafka.errors.KafkaTimeoutError):
        for each in gc.get_objects():  # it leaves its sockets open
            if isinstance(each, NetworkSelector):
                each.close()
        return False
    producer.send("by-kafka-python", b"hello").get(TIMEOUT_S)
    producer.close()
    return True


async def test_clients_with_a_token(broker: Broker) -> None:
    counts = broker.parts.requests.authentication.counts
    assert await asyncio.to_thread(by_librdkafka, broker, MINE.token) == []
    await by_aiokafka(broker, MINE.token())
    assert await asyncio.to_thread(by_kafka_python, broker, MINE.token())
    assert (counts.failed, counts.succeeded >= 3) == (0, True)
    while not counts.failed:  # kafka-python may give up before it has tried
        assert not await asyncio.to_thread(by_kafka_python, broker, MINE.token(aud="others"))


async def test_kafka_s_own_client_has_its_token_from_a_file(broker: Broker, tmp_path: Path) -> None:
    """Kafka checks the form of a token before it sends it; the broker checks whose it is."""
    file = tmp_path / "token"

    def wrote(token: str, topic: str) -> str:
        file.write_text(token)
        return outcome(
            topic,
            bootstrap_servers=str(broker.address),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_jaas_config=f"{JAVA}OAuthBearerLoginModule required;",
            sasl_login_callback_handler_class=f"{JAVA}OAuthBearerLoginCallbackHandler",
            sasl_oauthbearer_token_endpoint_url=file.as_uri(),
        )

    allowed = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{what}" for what in ("urls", "files"))
    with secured_java(
        tmp_path, f"{next(allowed)}={file.as_uri()}", f"{next(allowed)}={file}", is_bearer=True
    ) as outcome:
        assert await asyncio.to_thread(wrote, MINE.token(), "by-java") == "ok"
        assert broker.parts.requests.authentication.counts.failed == 0
        for token in (MINE.token(aud="others"), Issuer().token(), MINE.token(now=time.time() - 4_000)):
            assert "SaslAuthenticationException" in await asyncio.to_thread(wrote, token, "refused")
        assert "refused" not in broker.image.topics


async def test_a_token_that_does_not_count(broker: Broker) -> None:
    errors = await asyncio.to_thread(by_librdkafka, broker, lambda: MINE.token(aud="others"))
    assert any("Authentication failed: the token is for another audience" in each for each in errors), errors
    for bad in (Issuer().token(), MINE.token(now=time.time() - 4_000), "x"):
        with pytest.raises(aiokafka.errors.KafkaConnectionError):
            await by_aiokafka(broker, bad)
    assert not broker.image.topics


async def test_a_session_ends_with_its_token(broker: Broker) -> None:
    """librdkafka fetches another one before, and authenticates again."""
    counts = broker.parts.requests.authentication.counts

    def token() -> str:
        return MINE.token(exp=time.time() + 2)

    async with asyncio.timeout(150):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": str(broker.address),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (token(), time.time() + 2),
            }
        )
        await until(lambda: producer.poll(0) < 0 or counts.succeeded_again > 0)
        producer.produce("again", b"hello")
        assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0
        # Where the machine stalls a session ends. librdkafka calls that an error of authentication: the broker counts
        assert (counts.failed, counts.failed_again) == (0, 0)


async def test_keys_are_replaced_while_clients_come(broker: Broker, keys: Path) -> None:
    """A token of a new key has the keys read again; its client is let in at its next attempt."""
    following = Issuer("RS256", "two")
    keys.write_bytes(key_set(MINE, following))
    await until_let_in(broker, following.token())
    keys.write_bytes(b"{")
    await by_aiokafka(broker, MINE.token())


async def until_let_in(broker: Broker, token: str) -> None:
    """The test's own timeout ends it."""
    while True:
        try:
            await by_aiokafka(broker, token)
        except aiokafka.errors.KafkaConnectionError:
            continue
        return


@pytest.fixture
def served() -> Iterator[tuple[str, list[bytes]]]:
    """An issuer's HTTP server: its URL, and what it answers; nothing: it refuses."""
    answers: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/elsewhere" or not answers:
                self.send_response(302 if answers else 503)
                self.send_header("Location", "/keys")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[-1])

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


async def test_keys_over_http_may_come_later(tmp_path: Path, served: tuple[str, list[bytes]]) -> None:
    url, answers = served
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs(f"{url}/keys")) as broker:
        for answer in (b"", b"x" * 2_000_000):
            answers += [answer] if answer else []
            with pytest.raises(aiokafka.errors.KafkaConnectionError):
                await by_aiokafka(broker, MINE.token())
        answers += [key_set(MINE)]
        await until_let_in(broker, MINE.token())


async def test_a_redirection_is_not_followed(tmp_path: Path, served: tuple[str, list[bytes]]) -> None:
    url, answers = served
    answers += [key_set(MINE)]
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs(f"{url}/elsewhere")) as broker:
        with pytest.raises(aiokafka.errors.KafkaConnectionError):
            await by_aiokafka(broker, MINE.token())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"jwks_endpoint_url": None}, r"needs sasl\.oauthbearer\.jwks\.endpoint\.url"),
        ({"jwks_endpoint_url": "http://issuer.test/keys"}, "has to be https"),
        ({"jwks_endpoint_url": "ftp://127.0.0.1/keys"}, "has to be https"),
        ({"jwks_endpoint_url": "file:///no/such/file"}, "cannot be read"),
        ({"jwks_endpoint_url": "file:///dev/null"}, "cannot be read"),
        ({"expected_audience": None}, r"needs sasl\.oauthbearer\.expected\.audience"),
        ({"expected_issuer": None}, r"needs sasl\.oauthbearer\.expected\.issuer"),
    ],
)
async def test_configs_that_would_let_in_too_many(
    tmp_path: Path, keys: Path, changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        async with sasl_broker(tmp_path, configs(keys.as_uri(), **changes)):
            pass
