"""Figures of one broker, as it serves them for Prometheus."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.base.limits import MCP_ROWS, MCP_ROWS_MAX
from headrace.mcp.answers import Answer, Part, bounded, call
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.mcp.tools.topics import Limit, Query
from headrace.operations.metrics import samples_of


class Sample(Part):
    """One figure."""

    name: str
    labels: dict[str, str]
    value: float | None = Field(description="Null: it is no number.")


class Metrics(Answer):
    """Figures of a broker."""

    broker: int
    total: int
    samples: list[Sample]
    left_out: int
    names: list[str] = Field(description="Names of all figures that match.")


class MetricTools:
    """Tools for brokers' metrics."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def metrics(
        self,
        broker: Annotated[int, Field(description="The broker's number; broker_list() has all.", ge=0)],
        query: Query = "",
        limit: Limit = MCP_ROWS,
    ) -> Metrics:
        """Figures of one broker by name, as it serves them for Prometheus (its config metrics.listen)."""
        found = await samples_of(self._desk.cluster, broker, self._desk.metrics_credentials)
        wanted = [each for each in found if query.lower() in each.name.lower()]
        shown = wanted[: bounded(limit, MCP_ROWS_MAX)]
        names = sorted({each.name for each in wanted})[:MCP_ROWS_MAX]
        return Metrics(
            broker=broker,
            total=len(wanted),
            samples=[
                Sample(
                    name=each.name,
                    labels={plain(name): plain(value) for name, value in each.labels.items()},
                    value=each.value if abs(each.value) != float("inf") and each.value == each.value else None,
                )
                for each in shown
            ],
            left_out=len(wanted) - len(shown),
            names=names,
            next=[call("metrics", broker=broker, query=names[0])] if len(names) > 1 else [call("top"), call("doctor")],
        )
