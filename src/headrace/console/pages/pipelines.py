"""Pipelines of a directory: how far each is, the newest commits of its table, and the last report with its pictures."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_FIRST_MS, CONSOLE_REPORTS_KEPT_MAX
from headrace.console.page import NotFoundError, Page, console_of
from headrace.console.state import Console
from headrace.metadata.access.acls import AclOperation
from headrace.net.client.access.own import operations
from headrace.operations.pipeline_reports import Plot, Run, plots_in, problems_in, runs_of
from headrace.operations.pipelines import PipelineState

WORDS: Final = {
    "materialise": "makes a table",
    "audit": "proves history",
    "compact": "merges history",
    "replay": "writes records again",
    "statistics": "counts records",
}
"""Kinds of pipelines, in words."""
NONE: Final = "The console knows of no pipelines: start it with 'headrace console --pipelines DIR'."


@dataclass(slots=True)
class More:
    """All that the page of one pipeline shows beside its state."""

    runs: list[Run] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Sentences of its last audit."""
    troubles: list[str] = field(default_factory=list)


async def visible(console: Console) -> list[PipelineState]:
    """The pipelines that the viewer may see: all, for those who may describe the cluster; else those that read topics
    which the viewer sees. Raises NotFoundError, HeadraceError.
    """
    known = console.pipelines.value
    if console.settings.pipelines is None or known is None:
        raise NotFoundError(NONE)
    if known.trouble:
        raise HeadraceError(known.trouble)
    await console.seen.settled(CONSOLE_FIRST_MS)
    found = [each for each in known.states if each.kind in WORDS or each.trouble]
    if not console.user or AclOperation.DESCRIBE in await operations(console.cluster):
        return found
    seen = console.seen.value
    topics = () if seen is None else seen.look.view.topics
    return [each for each in found if _reads(each) and all(topic in topics for topic in _reads(each))]


async def _visible_one(console: Console, request: Request) -> PipelineState:
    """The one that the path names. Raises NotFoundError, HeadraceError."""
    for each in await visible(console):
        if each.file.stem == request.path_params["id"]:
            return each
    raise NotFoundError("There is no pipeline of this name.")


def _reads(state: PipelineState) -> set[str]:
    named = {topic.strip() for topic in state.source.split(",") if topic.strip()}
    return named | {each.topic for each in state.reached}


def more_of(state: PipelineState) -> More:
    """Blocks."""
    found = More()
    try:
        if state.kind == "materialise" and state.steps:
            found.runs = runs_of(state.place)
        if state.page is not None:
            found.plots = plots_in(state.page)
        if state.problems:
            found.wrong = problems_in(Path(state.place))
    except (HeadraceError, OSError, ValueError) as error:
        found.troubles.append(f"{state.place} cannot be read: {error}.")
    return found


async def _more(console: Console, state: PipelineState) -> More:
    """That of this state. It is read once, and again where the state is another one, or there was trouble."""
    kept: OrderedDict[Path, tuple[PipelineState, More]] = console.reports
    if (known := kept.get(state.file)) is not None and known[0] == state:
        kept.move_to_end(state.file)
        return known[1]
    more = await asyncio.to_thread(more_of, state)
    kept.pop(state.file, None)
    if not more.troubles:
        kept[state.file] = (state, more)
    while len(kept) > CONSOLE_REPORTS_KEPT_MAX:
        kept.popitem(last=False)
    return more


async def values(console: Console, _: Request) -> dict[str, Any]:
    return {"states": await visible(console), "words": WORDS}


async def one(console: Console, request: Request) -> dict[str, Any]:
    found = await _visible_one(console, request)
    seen = console.seen.value
    return {
        "one": found,
        "more": await _more(console, found),
        "words": WORDS,
        "ends": {} if seen is None else seen.look.ends,
        "topics": {} if seen is None else seen.look.view.topics,
        "run": console.command("pipeline", "run", found.file.name),
    }


async def _plot(request: Request) -> Response:
    """A picture of the last report. It is no part of its page, which is sent again with each change."""
    console = console_of(request)
    await console.pipelines.settled(CONSOLE_FIRST_MS)
    try:
        more = await _more(console, await _visible_one(console, request))
    except (HeadraceError, OSError, TimeoutError):
        return Response(status_code=404)
    try:
        found = [plot.png for plot in more.plots if plot.digest == request.path_params["digest"]]
    except ValueError:  # it is no base64
        found = []
    if not found:
        return Response(status_code=404)
    return Response(found[0], media_type="image/png", headers={"cache-control": "private, max-age=3600"})


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.pipelines, console.seen)


ROUTES: Final = (Route("/pipelines/{id}/plots/{digest}", _plot, methods=["GET"]),)
PAGE: Final = Page(
    path="/pipelines",
    template="parts/pipelines.html",
    title=lambda _: "Pipelines",
    feeds=feeds,
    values=values,
)
ONE: Final = Page(
    path="/pipelines/{id}",
    template="parts/pipeline.html",
    title=lambda request: f"Pipeline {request.path_params['id']}",
    feeds=feeds,
    values=one,
)
