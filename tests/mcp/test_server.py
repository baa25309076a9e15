"""The server: each failure is one sentence, each call has bounds, and the log has no secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from headrace.mcp import server
from headrace.mcp.auditing import HIDDEN, told
from headrace.mcp.server import ToolServer
from mcp import Client
from tests.mcp.agents import Agent, RefusalError, desk_of


@pytest.fixture
async def tools() -> AsyncIterator[ToolServer]:
    """Of a cluster that is away: these tests ask it nothing."""
    async with desk_of("127.0.0.1:1") as desk:
        yield ToolServer(desk)


def add(tools: ToolServer, work: Any) -> None:
    async def added(count: int = 0) -> dict[str, str]:
        found: dict[str, str] = await work(count)
        return found

    tools.add_tool(added, name="added", structured_output=True)


async def test_a_bug_is_named_without_what_it_says(tools: ToolServer) -> None:
    async def work(_: int) -> dict[str, str]:
        raise KeyError("a secret")

    add(tools, work)
    with structlog.testing.capture_logs() as logs:
        async with Client(tools) as client:
            with pytest.raises(RefusalError, match=r"This is a bug in Headrace \(KeyError\)") as failed:
                await Agent(client)("added")
    assert "a secret" not in str(failed.value)
    assert [line["log_level"] for line in logs] == ["error", "warning"]


async def test_what_takes_too_long_or_is_too_large_is_refused(
    tools: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(count: int) -> dict[str, str]:
        if not count:
            await asyncio.Event().wait()
        return {"next": "x" * count}

    add(tools, work)
    monkeypatch.setattr(server, "MCP_CALL_MS_MAX", 50)
    async with Client(tools) as client:
        agent = Agent(client)
        with pytest.raises(RefusalError, match="No answer came within"):
            await agent("added")
        with pytest.raises(RefusalError, match="The answer would be too large"):
            await agent("added", count=1_000_000)
        assert await agent("added", count=3) == {"next": "xxx"}


async def test_more_calls_than_may_be_are_refused(tools: ToolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def work(_: int) -> dict[str, str]:
        begun.set()
        await over.wait()
        return {"next": "done"}

    add(tools, work)
    monkeypatch.setattr(server, "MCP_CALLS_MAX", 1)
    async with Client(tools) as client:
        agent = Agent(client)
        first = asyncio.ensure_future(agent("added"))
        await begun.wait()
        with pytest.raises(RefusalError, match="Too many calls are under way"):
            await agent("added")
        over.set()
        assert await first == {"next": "done"}


async def test_a_call_that_its_client_gives_up_is_in_the_log(tools: ToolServer) -> None:
    begun = asyncio.Event()

    async def work(_: int) -> dict[str, str]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    add(tools, work)
    with structlog.testing.capture_logs() as logs:
        call = asyncio.ensure_future(tools.call_tool("added", {}))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert [(line["tool"], line["outcome"]) for line in logs] == [("added", "left")]


async def test_arguments_that_are_wrong_are_named(tools: ToolServer) -> None:
    async with Client(tools) as client:
        agent = Agent(client)
        for tool, arguments, sentence in (
            ("consume", {}, "The arguments of consume are not right .topic: Field required"),
            ("topic_list", {"limit": 100_000}, "limit: Input should be less than or equal to 200"),
            (
                "consume",
                {"topic": "t", "at": "somewhere"},
                "at: Input should be 'newest', 'oldest', 'offset' or 'time'",
            ),
        ):
            with pytest.raises(RefusalError, match=sentence):
                await agent(tool, **arguments)


def test_the_log_has_no_secret_and_is_bounded() -> None:
    assert told("consume", {"topic": "t", "key": "4111"}) == {"topic": "t", "key": HIDDEN}
    assert told("plan_config_set", {"topic": "t", "key": "retention.ms", "value": "1"})["value"] == "1"
    assert told("plan_config_set", {"topic": "t", "key": "ssl.key.password", "value": "1"})["value"] == HIDDEN
    assert told("plan_config_set", {"topic": "t", "value": "1"})["value"] == HIDDEN
    found = told("plan_topic_create", {"configs": {"sasl.jaas.config": "x", "cleanup.policy": "compact"}})
    assert found == {"configs": {"sasl.jaas.config": HIDDEN, "cleanup.policy": "compact"}}
    assert told("any", {"password": "x", "token": {"deep": "x"}}) == {"password": HIDDEN, "token": HIDDEN}
    long = told("any", {f"name{number}": "x" * 10_000 for number in range(100)})
    assert len(str(long)) < 10_000
