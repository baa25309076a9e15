"""Pipelines on Spark: what each does, and how far it has come."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from pydantic import Field

from headrace.base.errors import HeadraceError
from headrace.base.limits import MCP_ROWS, MCP_ROWS_MAX
from headrace.mcp.answers import Answer, Part, call, some
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.mcp.tools.topics import After, Limit, Query
from headrace.operations.pipelines import PipelineState, states


class Position(Part):
    """How far a pipeline has come in one partition."""

    topic: str
    partition: int
    next_offset: int


class PipelineRow(Part):
    """One pipeline."""

    name: str
    kind: str
    file: str
    source: str = Field(description="The topics that it reads.")
    place: str = Field(description="Its table, checkpoint or report.")
    at: str | None = Field(description="When it last got on; null: it has not begun, or nothing tells.")
    steps: int | None = Field(description="Commits of its table, or portions of its replay.")
    records: int | None = Field(description="Rows of its table.")
    reached: list[Position]
    problems: int | None = Field(description="Things that its last audit found wrong.")
    trouble: str = Field(description="Why its state cannot be told; empty: it can.")


class Pipelines(Answer):
    """Pipelines by name."""

    total: int
    pipelines: list[PipelineRow]
    after: str | None


class PipelineTools:
    """Tools for pipelines."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def pipeline_list(self, query: Query = "", after: After = "", limit: Limit = MCP_ROWS) -> Pipelines:
        """Pipelines on Spark: what each reads and makes, when it last got on, and how far it has come."""
        directory = self._desk.pipelines
        if directory is None:
            raise HeadraceError("This server knows no pipelines: a person starts it with --pipelines DIR.")
        found = await asyncio.to_thread(states, directory)
        shown, total, follows = some(found, lambda each: each.name, query=query, after=after, limit=limit)
        asks = [call("pipeline_list", after=follows)] if follows else []
        asks += [f"A person runs 'headrace pipeline run {shown[0].file}'."] if shown else []
        asks += [call("durable_list"), "The resource headrace://docs/PIPELINES.md says how pipelines work."]
        return Pipelines(total=total, pipelines=[_row(each) for each in shown], after=follows, next=asks)


def _row(each: PipelineState) -> PipelineRow:
    at = None if each.at_ms is None else datetime.fromtimestamp(each.at_ms / 1000, UTC).isoformat(timespec="seconds")
    return PipelineRow(
        name=plain(each.name),
        kind=plain(each.kind),
        file=plain(str(each.file)),
        source=plain(each.source),
        place=plain(each.place),
        at=at,
        steps=each.steps,
        records=each.records,
        reached=[
            Position(topic=plain(one.topic), partition=one.partition, next_offset=one.next_offset)
            for one in each.reached[:MCP_ROWS_MAX]
        ],
        problems=each.problems,
        trouble=plain(each.trouble, 500),
    )
