"""The console as an ASGI application: its paths, and the feeds that live as long as it does."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from headrace.console.changes import Change
from headrace.console.charts import routes as charts
from headrace.console.door import Door, Entrance
from headrace.console.guarding import HEADERS, Guard, Tokens
from headrace.console.page import SESSION, framed
from headrace.console.pages import (
    access,
    creating,
    deleting,
    groups,
    history,
    leaving,
    moves,
    overview,
    pipelines,
    producing,
    quotas,
    records,
    resetting,
    search,
    settings,
    topic,
    topics,
    transactions,
    trimming,
)
from headrace.console.rendering import STATIC, rendered, static
from headrace.console.sent import Sent
from headrace.console.sessions import Viewers

CHANGES: Final[tuple[Change[Any], ...]] = (
    resetting.CHANGE,
    moves.CHANGE,
    leaving.CANCEL,
    leaving.DRAIN,
    settings.CHANGE,
    creating.CHANGE,
    deleting.CHANGE,
    trimming.CHANGE,
    producing.CHANGE,
    transactions.CHANGE,
    quotas.CHANGE,
    *access.CHANGES,
)
KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
FOREVER: Final = "public, max-age=31536000, immutable"
PAGES: Final = (
    overview.PAGE,
    topics.PAGE,
    topic.PAGE,
    groups.PAGE,
    groups.ONE,
    moves.PAGE,
    history.PAGE,
    history.ONE,
    transactions.PAGE,
    transactions.ONE,
    access.PAGE,
    quotas.PAGE,
    pipelines.PAGE,
    pipelines.ONE,
)


def application(viewers: Viewers, hosts: Collection[str] = ()) -> Starlette:
    """The application. `hosts`: names by which browsers may reach it; empty: any."""

    @asynccontextmanager
    async def alive(_: Starlette) -> AsyncIterator[None]:
        async with viewers.alive():
            yield

    made = Starlette(
        routes=[
            *Entrance(viewers).routes,
            *(route for page in PAGES for route in page.routes()),
            *search.ROUTES,
            *records.ROUTES,
            *history.ROUTES,
            *pipelines.ROUTES,
            *(route for change in CHANGES for route in change.routes()),
            *charts.ROUTES,
            Route("/static/{digest}/{name}", _static),
            Route("/favicon.ico", lambda _: RedirectResponse(static("icon.svg"))),
        ],
        middleware=[
            Middleware(Guard, hosts=hosts),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4),
            Middleware(Door, viewers=viewers),
        ],
        exception_handlers={404: _not_found, Exception: _bug},
        lifespan=alive,
    )
    made.state.tokens = Tokens()
    made.state.sent = Sent()
    return made


async def _not_found(request: Request, _: Exception) -> Response:
    if SESSION not in request.scope:
        return PlainTextResponse("The console has no such page.\n", 404)
    part = rendered("parts/not_found.html", {"text": f"The console has no page at {request.url.path}."})
    return framed(request, "page.html", {"title": "Not found", "part": part}, 404)


async def _bug(request: Request, error: Exception) -> Response:
    text = f"This is a bug in Headrace ({type(error).__name__}); the console's log shows where, please report it."
    if SESSION not in request.scope:
        return PlainTextResponse(f"{text}\n", 500, headers=HEADERS)
    part = rendered("parts/failed.html", {"text": text})
    answer = framed(request, "page.html", {"title": "A bug", "part": part}, 500)
    answer.headers.update(HEADERS)  # it goes past the guard
    return answer


@cache
def _names() -> frozenset[str]:
    """The names of the files that browsers get. Others are not looked for, and not kept."""
    return frozenset(each.name for each in STATIC.iterdir() if each.name.rpartition(".")[2] in KINDS)


@cache
def _file(name: str) -> tuple[bytes, bytes]:
    """A file, and the same compressed."""
    plain = STATIC.joinpath(name).read_bytes()
    return plain, gzip.compress(plain, 9, mtime=0)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _names():
        return Response("There is no such file.\n", 404, media_type="text/plain")
    plain, packed = _file(name)
    kind = KINDS[name.rpartition(".")[2]]
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": FOREVER, "vary": "accept-encoding"}
    if is_packed:
        headers["content-encoding"] = "gzip"
    return Response(packed if is_packed else plain, media_type=kind, headers=headers)
