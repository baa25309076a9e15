"""Agents: the SDK's own client, of a server in this process or of one that is a process, over each of its doors."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent

from headrace.mcp.desk import Desk
from headrace.mcp.server import ToolServer
from headrace.mcp.serving import PATIENCE
from headrace.net.client.cluster import Cluster
from headrace.operations.masking import masks_of
from mcp import Client, StdioServerParameters

COMMAND = (sys.executable, "-m", "headrace.cli.main", "mcp")


class RefusalError(Exception):
    """A tool's answer that is an error: its sentence."""


@dataclass(slots=True)
class Agent:
    """A session of one client."""

    client: Client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The tool's answer. Raises RefusalError."""
        answer = await self.client.call_tool(tool, arguments)
        (text,) = [each.text for each in answer.content if isinstance(each, TextContent)]
        if answer.is_error:
            assert "\n" not in text, "it is one sentence"
            raise RefusalError(text)
        found = answer.structured_content
        assert isinstance(found, dict)
        assert found["next"], f"{tool} says what to ask next"
        return found

    async def raw(self, tool: str, **arguments: Any) -> CallToolResult:
        return await self.client.call_tool(tool, arguments)

    async def tools(self) -> dict[str, Any]:
        """All tools by name."""
        return {each.name: each for each in (await self.client.list_tools()).tools}


@asynccontextmanager
async def desk_of(
    bootstrap: str, *, allows_changes: bool = False, masks: Sequence[str] = (), **more: Any
) -> AsyncIterator[Desk]:
    """`more`: of the desk."""
    reach = partial(Cluster, bootstrap)
    async with reach(backoff=PATIENCE) as cluster:
        yield Desk(reach=reach, cluster=cluster, allows_changes=allows_changes, masks=masks_of(masks, None), **more)


@asynccontextmanager
async def agent_of(bootstrap: str, **more: Any) -> AsyncIterator[Agent]:
    """An agent of a server in this process."""
    async with desk_of(bootstrap, **more) as desk, Client(ToolServer(desk)) as client:
        yield Agent(client)


@asynccontextmanager
async def by_input(*options: str, log: Path) -> AsyncIterator[Agent]:
    """An agent that starts the command, and speaks over its standard input and output."""
    with log.open("w") as errors:
        command, *words = COMMAND
        started = StdioServerParameters(command=command, args=[*words, *options], env=dict(os.environ))
        from mcp.client.stdio import stdio_client

        async with Client(stdio_client(started, errlog=errors)) as client:
            yield Agent(client)


@asynccontextmanager
async def over_http(*options: str, log: Path, token: str | None = None) -> AsyncIterator[Agent]:
    """An agent of a command that listens."""
    async with listening(*options, log=log) as url:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with (
            create_mcp_http_client(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield Agent(client)


@asynccontextmanager
async def listening(*options: str, log: Path) -> AsyncIterator[str]:
    """The URL of a command that listens."""
    with log.open("w") as errors:
        process = await anyio.open_process([*COMMAND, "--listen", "127.0.0.1:0", *options], stderr=errors)
        try:
            assert process.stdout is not None
            told = b""
            while not told.endswith(b"\n"):
                told += await process.stdout.receive()
            word, url = told.decode().split()
            assert word == "ready"
            yield url
        finally:
            process.terminate()
            await process.wait()
            await process.aclose()
