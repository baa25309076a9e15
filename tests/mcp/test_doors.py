"""The doors: a token over HTTP, hosts that are named, and nothing but the protocol on standard output."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.base.errors import UsageError
from headrace.cli.main import main
from headrace.mcp.guarding import read_token
from headrace.testing import RunningBroker
from tests.certificates import Authority
from tests.mcp.agents import COMMAND, listening, over_http

TOKEN: Final = "0123456789abcdef0123456789abcdef"
CLOSED: Final = 0
"""The server has closed the connection before all was sent."""
LISTED: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


async def posted(
    url: str, body: Any = LISTED, trusting: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str]:
    """The status and the text of an answer."""
    told = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {**told, **named})

    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except urllib.error.URLError as error:
            if not isinstance(error.reason, (BrokenPipeError, ConnectionResetError)):
                raise
            return CLOSED, ""

    return await asyncio.to_thread(ask)


async def test_pages_elsewhere_cannot_reach_it_by_a_name_of_their_own(tmp_path: Path) -> None:
    async with listening("--bootstrap", "127.0.0.1:1", "--host", "tools.example", log=tmp_path / "log") as url:
        assert (await posted(url))[0] == 200
        assert (await posted(url, host="tools.example"))[0] == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "tools.example.evil"):
            assert (await posted(url, host=host))[0] == 421
        assert (await posted(url, origin="http://evil.example"))[0] == 403
        assert (await posted(url, origin="https://tools.example"))[0] == 200
        assert (await posted(url, b"x" * 1_000_000))[0] in (413, CLOSED)
        assert (await posted(url, b"{"))[0] == 400


async def test_only_who_has_the_token_is_let_in(headrace_broker: RunningBroker, tmp_path: Path) -> None:
    file, log = tmp_path / "token", tmp_path / "log"
    file.write_text(f"{TOKEN}\n")
    options = ("--bootstrap", headrace_broker.bootstrap, "--token-file", str(file))
    async with listening(*options, log=log) as url:
        for authorization in ("", f"Bearer {TOKEN[1:]}", f"Basic {TOKEN}", f"Bearer  {TOKEN}x"):
            status, text = await posted(url, authorization=authorization)
            assert status == 401
            assert TOKEN[1:] not in text
        assert (await posted(url, authorization=f"Bearer {TOKEN}"))[0] == 200
    async with over_http(*options, log=log, token=TOKEN) as agent:
        assert (await agent("status"))["live"] == 1
    assert TOKEN not in log.read_text()


async def test_it_speaks_tls_with_its_certificate(tmp_path: Path) -> None:
    authority = Authority.made(tmp_path / "ca")
    file = str(authority.issue("127.0.0.1"))
    options = ("--bootstrap", "127.0.0.1:1", "--tls-certificate", file, "--tls-key", file)
    async with listening(*options, log=tmp_path / "log") as url:
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(authority.trust))
        assert (await posted(url, trusting=trusting))[0] == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            await posted(url, trusting=ssl.create_default_context())


@pytest.mark.parametrize("text", ["short", "x y" * 20, "ż" * 40, "x" * 5_000])
def test_a_token_is_long_and_of_letters(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(UsageError):
        read_token(tmp_path / "token")


async def test_standard_output_has_the_protocol_alone(headrace_broker: RunningBroker, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--bootstrap", headrace_broker.bootstrap, "--log-level", "debug",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "topic_list", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "no_such", "arguments": {}}},
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    answers: dict[int, dict[str, Any]] = {}
    for each in asked:
        process.stdin.write(json.dumps(each).encode() + b"\n")
        if "id" in each:
            answer = json.loads(await process.stdout.readline())
            answers[answer["id"]] = answer["result"]
    process.stdin.close()
    assert await process.stdout.read() == b""
    assert await process.wait() == 0
    assert answers[1]["serverInfo"]["name"] == "headrace"
    assert answers[2]["structuredContent"]["total"] == 0
    assert answers[3]["isError"]
    assert answers[3]["content"][0]["text"] == "There is no tool 'no_such': tools/list has all."
    assert process.stderr is not None
    lines = [json.loads(line) for line in (await process.stderr.read()).splitlines()]
    assert [line["outcome"] for line in lines if "tool" in line] == ["answered", "refused"]


async def test_a_cluster_that_is_away_is_told_and_an_interruption_ends_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--bootstrap", "127.0.0.1:1",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    for number, (method, params) in enumerate(
        (("initialize", hello), ("tools/call", {"name": "topic_list", "arguments": {}})), 1
    ):
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        answer = json.loads(await process.stdout.readline())["result"]
    assert "No broker answers at 127.0.0.1:1" in answer["content"][0]["text"]
    process.send_signal(signal.SIGINT)
    assert await process.wait() == -signal.SIGINT


def test_strangers_are_let_in_by_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = str(tmp_path / "token")
    for options, sentence in (
        (("--listen", "0.0.0.0:0"), "say by --token-file who"),
        (("--listen", "10.0.0.1:0", "--token-file", token), "in clear text"),
        (("--listen", "0.0.0.0:0", "--token-file", token, "--insecure"), "--host NAME"),
        (("--token-file", token), "go with --listen"),
        (("--listen", "127.0.0.1:0", "--tls-key", token), "go together"),
        (("--pipelines", str(tmp_path / "away")), "is no directory"),
    ):
        assert main(["mcp", *options]) == 2
        assert sentence in capsys.readouterr().err


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("headrace.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main(["mcp"]) == 2
    assert "pip install 'headrace[mcp]'" in capsys.readouterr().err
