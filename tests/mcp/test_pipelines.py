"""Pipelines, as agents see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mcp.agents import RefusalError, agent_of
from tests.operations.test_pipelines import AUDIT, TABLE


async def test_pipelines_of_a_directory_are_listed_and_no_secret_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(TABLE.format(place=tmp_path / "lake"))
    (tmp_path / "audit.toml").write_text(AUDIT)
    async with agent_of("127.0.0.1:1", pipelines=tmp_path) as agent:
        answer = await agent.raw("pipeline_list")
        assert "a secret" not in answer.model_dump_json()
        found = await agent("pipeline_list")
        assert [(each["name"], each["kind"]) for each in found["pipelines"]] == [
            ("all history", "audit"),
            ("orders", "materialise"),
        ]
        assert (await agent("pipeline_list", query="ord"))["total"] == 1
    async with agent_of("127.0.0.1:1") as agent:
        with pytest.raises(RefusalError, match="a person starts it with --pipelines DIR"):
            await agent("pipeline_list")
