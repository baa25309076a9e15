"""The points of charts, for the browser: it asks the console, and nobody else.

Promise: a chart of the whole cluster's past is for users with the right DESCRIBE on the cluster, whoever asks for it.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError
from headrace.console.charts.ranges import HOUR, SPANS, Past, Span
from headrace.console.page import console_of
from headrace.console.state import Console
from headrace.metadata.access.acls import AclOperation
from headrace.net.client.access.own import operations

NAMES: Final = ["written"]
BARRED: Final = "More is for users with the right DESCRIBE on the cluster"
UNKNOWN: Final = "The cluster does not say whether your user may see more"


async def spans_of(console: Console) -> tuple[Span, ...]:
    """The times that the overview's chart may show this viewer; empty: only what there is in memory. Raises
    HeadraceError.
    """
    if console.settings.prometheus is None or AclOperation.DESCRIBE not in await operations(console.cluster):
        return ()
    return (HOUR, *SPANS.values())


async def _throughput(request: Request) -> Response:
    console, span = console_of(request), SPANS.get(request.query_params.get("range", ""))
    if span is None or console.settings.prometheus is None:
        return JSONResponse(console.charts.throughput(_since(request)))
    found = await _past(console, span)
    if not found.missing:
        return JSONResponse({"names": NAMES, "data": found.data})
    return JSONResponse({**console.charts.throughput(0), "instead": f"{found.missing}, so this is {HOUR.told}."})


async def _past(console: Console, span: Span) -> Past:
    prometheus = console.settings.prometheus
    try:
        if prometheus is None or span not in await spans_of(console):
            return Past(missing=BARRED)
    except (HeadraceError, OSError, TimeoutError):
        return Past(missing=UNKNOWN)
    return await prometheus.written(span)


async def _lag(request: Request) -> Response:
    group = request.query_params.get("group", "")
    return JSONResponse(console_of(request).charts.lag(group, _since(request)))


def _since(request: Request) -> float:
    """The time, in seconds since 1970, whose later points are asked for."""
    try:
        return float(request.query_params.get("since", "0"))
    except ValueError:
        return 0.0


async def frame_values(console: Console, chosen: str) -> dict[str, Any]:
    """For the page around the overview's chart: the times that it offers, and the one that it shows."""
    offered = await spans_of(console)
    span = SPANS.get(chosen)
    return {"spans": offered, "span": span if span is not None and span in offered else HOUR}


ROUTES: Final = (Route("/charts/throughput", _throughput), Route("/charts/lag", _lag))
