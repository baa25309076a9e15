"""Tokens from files and from an identity provider, which may be slow to trust, wrong or hostile."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from headrace.base.limits import OAUTH_ANSWER_BYTES_MAX
from headrace.net.client.errors import ClientError, ConnectionLostError
from headrace.net.client.security.tokens import TokenEndpoint, TokenError, TokenFile
from headrace.net.pem import PemStores
from tests.certificates import Authority
from tests.threads import joined

SECRET = "s3cret"


class Provider(ThreadingHTTPServer):
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: tuple[int, bytes] = (200, b"")
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        """The Authorization header, and the form."""
        self.scheme = "http"

    def gives(self, token: str, **more: Any) -> None:
        self.answer = (200, json.dumps({"access_token": token, "token_type": "Bearer", **more}).encode())

    def endpoint(self, **more: Any) -> TokenEndpoint:
        url = f"{self.scheme}://127.0.0.1:{self.server_port}/token"
        return TokenEndpoint(url=url, client_id="me", client_secret=SECRET, **more)


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.headers["Authorization"], form))
        status, body = self.server.answer
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 - the name is the library's

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield from served(made)


def served(made: Provider) -> Iterator[Provider]:
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), name="an identity provider")
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    joined(thread)


def test_a_token_is_asked_for_in_the_clients_name_and_used_for_most_of_its_life(provider: Provider) -> None:
    provider.gives("first", expires_in=3600)
    endpoint = provider.endpoint(scope="kafka all")
    assert endpoint() == "first"
    provider.gives("second", expires_in=3600)
    assert endpoint() == "first"
    assert provider.endpoint(scope="other")() == "second"  # another scope, another token
    (authorization, form), _ = provider.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"me:s3cret"
    assert parse_qs(form) == {"grant_type": ["client_credentials"], "scope": ["kafka all"]}
    assert SECRET not in repr(endpoint)


def test_a_token_of_unknown_life_is_used_once(provider: Provider) -> None:
    for name, life in (("first", {}), ("second", {"expires_in": "soon"}), ("third", {"expires_in": -5})):
        provider.gives(name, **life)
        assert provider.endpoint()() == name


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ((401, b'{"error":"invalid_client"}'), TokenError, "gives no token for client 'me' \\(401\\)"),
        ((503, b""), ConnectionLostError, "answers 503"),
        ((200, b"not json"), TokenError, "without an access token"),
        ((200, b"[" * 60_000), TokenError, "without an access token"),
        ((200, b'{"access_token": 7}'), TokenError, "without an access token"),
        ((200, b" " * (OAUTH_ANSWER_BYTES_MAX + 1)), TokenError, "without an access token"),
    ],
)
def test_answers_without_a_token_are_told(
    provider: Provider, answer: tuple[int, bytes], kind: type[ClientError], said: str
) -> None:
    provider.answer = answer
    with pytest.raises(kind, match=said) as refused:
        provider.endpoint()()
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_secret_is_sent_nowhere_else(provider: Provider) -> None:
    provider.answer, provider.headers = (307, b""), {"Location": f"http://127.0.0.1:{provider.server_port}/elsewhere"}
    with pytest.raises(TokenError, match="307"):
        provider.endpoint()()
    assert len(provider.asked) == 1


def test_a_provider_behind_tls_has_to_be_trusted(tmp_path: Path) -> None:
    authority, made = Authority.made(tmp_path / "authority"), Provider()
    made.scheme = "https"
    made.socket = authority.server_context("127.0.0.1").wrap_socket(made.socket, server_side=True)
    made.gives("a-token", expires_in=60)
    for provider in served(made):
        assert provider.endpoint(stores=PemStores(trust_file=str(authority.trust)))() == "a-token"
        with pytest.raises(ConnectionLostError, match=r"gives no token: .*CERTIFICATE_VERIFY_FAILED"):
            provider.endpoint()()


def test_a_provider_that_is_not_there_may_be_tried_again(provider: Provider) -> None:
    endpoint = TokenEndpoint(url="http://127.0.0.1:1/token", client_id="me", client_secret=SECRET)
    with pytest.raises(ConnectionLostError, match="refused"):
        endpoint()


def test_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = TokenFile(path)
    with pytest.raises(TokenError, match="cannot be read: No such file"):
        source()
    for token in ("a.b.c", "d.e.f"):
        path.write_text(f"{token}\n")
        assert source() == token
    path.write_bytes(b"x" * (OAUTH_ANSWER_BYTES_MAX + 1))
    with pytest.raises(TokenError, match="is no token"):
        source()
