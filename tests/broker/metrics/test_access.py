"""Metrics are for those who have the password or the token, over TLS where that is asked for."""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from tests.broker.metrics.test_metrics import LISTEN, port_of, running
from tests.certificates import Authority


def get(url: str, authorization: str | None, context: ssl.SSLContext | None = None) -> int:
    """The status. Metrics are told with 200 alone. Blocks."""
    request = urllib.request.Request(url)
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        answer = urllib.request.urlopen(request, context=context)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        is_told, status = b"kafka_server" in answer.read(), int(answer.status)
    assert is_told == (status == 200)
    return status


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("credentials", "right", "wrong"),
    [
        ("prometheus:of: all", basic("prometheus:of: all"), basic("prometheus:of")),
        ("Bearer abc.def", "bearer abc.def", "Bearer abc.de"),
    ],
)
async def test_who_does_not_know_the_secret_sees_nothing(
    tmp_path: Path, credentials: str, right: str, wrong: str
) -> None:
    async with running(tmp_path, **LISTEN, **{"metrics.credentials": credentials}) as (broker, _):
        url = f"http://127.0.0.1:{port_of(broker)}/metrics"
        for authorization in (None, "", wrong, right + "x"):
            assert await asyncio.to_thread(get, url, authorization) == 401
        assert await asyncio.to_thread(get, url, right) == 200


async def test_metrics_over_tls_with_a_certificate_that_is_changed(tmp_path: Path) -> None:
    authority, next_authority = (Authority.made(tmp_path / name) for name in ("ca", "next"))
    pem = authority.issue("127.0.0.1")
    configs = {"metrics.tls": "true", "listener.name.metrics.ssl.keystore.location": str(pem)}
    async with running(tmp_path, **LISTEN, **configs) as (broker, _):
        url = f"https://127.0.0.1:{port_of(broker)}/metrics"
        trusts = ssl.create_default_context(cafile=str(authority.trust))
        assert await asyncio.to_thread(get, url, None, trusts) == 200
        with pytest.raises(urllib.error.URLError):
            await asyncio.to_thread(get, url, None, ssl.create_default_context())
        pem.write_bytes(next_authority.issue("127.0.0.1").read_bytes())
        assert await asyncio.to_thread(broker.parts.requests.doors.certificates._tls[0].refresh)
        trusts = ssl.create_default_context(cafile=str(next_authority.trust))
        assert await asyncio.to_thread(get, url, None, trusts) == 200


async def test_metrics_beyond_loopback_need_a_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"set metrics\.credentials, or accept that with --insecure"):
        async with running(tmp_path, **{"metrics.listen": "0.0.0.0:0"}):
            pass
