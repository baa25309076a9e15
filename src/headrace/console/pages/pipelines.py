"""Pipelines of a directory: how far each is, the newest commits of its table, and the last report with its pictures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_FIRST_MS
from headrace.console.page import console_of, framed
from headrace.console.rendering import rendered
from headrace.console.state import Console
from headrace.metadata.access.acls import AclOperation
from headrace.net.client.access.own import operations
from headrace.operations.pipeline_reports import Plot, Run, plots_in, problems_in, runs_of
from headrace.operations.pipelines import PipelineState, states

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


async def visible(console: Console, directory: Path) -> list[PipelineState]:
    """The pipelines that the viewer may see: all, for those who may describe the cluster; else those that read topics
    which the viewer sees. Raises HeadraceError.
    """
    found = [each for each in await asyncio.to_thread(states, directory) if each.kind in WORDS or each.trouble]
    if not console.user or AclOperation.DESCRIBE in await operations(console.cluster):
        return found
    seen = console.seen.value
    topics = () if seen is None else seen.look.view.topics
    return [each for each in found if _reads(each) and all(topic in topics for topic in _reads(each))]


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


async def _list(request: Request) -> Response:
    console = console_of(request)
    if (directory := console.settings.pipelines) is None:
        return _told(request, "parts/not_found.html", NONE, 404)
    await console.seen.settled(CONSOLE_FIRST_MS)
    try:
        found = await visible(console, directory)
    except (HeadraceError, OSError, TimeoutError) as error:
        return _told(request, "parts/failed.html", str(error) or "No answer came in time.", 502)
    return framed(request, "pipelines.html", {"title": "Pipelines", "states": found, "words": WORDS})


async def _one(request: Request) -> Response:
    console = console_of(request)
    if (directory := console.settings.pipelines) is None:
        return _told(request, "parts/not_found.html", NONE, 404)
    await console.seen.settled(CONSOLE_FIRST_MS)
    try:
        found = [each for each in await visible(console, directory) if each.file.stem == request.path_params["id"]]
        if not found:
            return _told(request, "parts/not_found.html", "There is no pipeline of this name.", 404)
        more = await asyncio.to_thread(more_of, found[0])
    except (HeadraceError, OSError, TimeoutError) as error:
        return _told(request, "parts/failed.html", str(error) or "No answer came in time.", 502)
    seen = console.seen.value
    values = {
        "title": found[0].name,
        "one": found[0],
        "more": more,
        "words": WORDS,
        "ends": {} if seen is None else seen.look.ends,
        "topics": {} if seen is None else seen.look.view.topics,
        "run": console.command("pipeline", "run", found[0].file.name),
    }
    return framed(request, "pipeline.html", values)


def _told(request: Request, template: str, text: str, status: int) -> Response:
    part = rendered(template, {"text": text})
    return framed(request, "page.html", {"title": "Pipelines", "part": part}, status)


ROUTES: Final = (Route("/pipelines", _list), Route("/pipelines/{id}", _one))
