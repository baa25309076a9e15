"""Answers about very many things are small, and say how to go on."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.limits import MCP_ROWS, MCP_ROWS_MAX
from headrace.testing import BrokerThread
from tests.mcp.agents import Agent, agent_of
from tests.tiers import IS_LONG

TOPICS = 10_000 if IS_LONG else 600
AT_ONCE = 500


def make(bootstrap: str, names: list[str], **more: Any) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for first in range(0, len(names), AT_ONCE):
        made = [NewTopic(name, num_partitions=1, **more) for name in names[first : first + AT_ONCE]]
        for done in admin.create_topics(made, operation_timeout=120, request_timeout=120).values():
            done.result(150)


async def all_of(agent: Agent, tool: str, rows: str, name: str) -> list[str]:
    """The names of all pages."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        answer = await agent(tool, after=after, limit=MCP_ROWS_MAX)
        assert len(json.dumps(answer)) < 64 * 1024
        found += [each[name] for each in answer[rows]]
        after = answer["after"]
    return found


async def test_very_many_topics_come_in_pages() -> None:
    names = sorted(f"topic-{number:05}" for number in range(TOPICS))
    with BrokerThread() as broker:
        make(broker.bootstrap, names)
        async with agent_of(broker.bootstrap) as agent:
            first = await agent("topic_list")
            assert (first["total"], len(first["topics"])) == (TOPICS, MCP_ROWS)
            assert first["next"][0] == f"topic_list(after='topic-{MCP_ROWS - 1:05}', limit={MCP_ROWS})"
            assert await all_of(agent, "topic_list", "topics", "topic") == names
            found = await agent("topic_list", query="-00123")
            assert [each["topic"] for each in found["topics"]] == ["topic-00123"]
            assert len(json.dumps(await agent("top"))) < 64 * 1024
            assert (await agent("status"))["topics"] == TOPICS


async def test_very_many_partitions_come_in_pages() -> None:
    with BrokerThread() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("wide", 400)])["wide"].result(150)
        async with agent_of(broker.bootstrap) as agent:
            first = await agent("topic_describe", topic="wide", limit=MCP_ROWS_MAX)
            assert (first["partitions"], len(first["rows"]), first["more_from"]) == (400, MCP_ROWS_MAX, MCP_ROWS_MAX)
            last = await agent("topic_describe", topic="wide", first_partition=390)
            assert [each["partition"] for each in last["rows"]] == list(range(390, 400))
            assert last["more_from"] is None
            assert (await agent("topic_describe", topic="wide", first_partition=10**9))["rows"] == []
