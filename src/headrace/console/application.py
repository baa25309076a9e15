"""The console as an ASGI application: its paths, and the feeds that live as long as it does."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from headrace.console.changes import Change
from headrace.console.guarding import Guard, Tokens
from headrace.console.page import Renderings, console_of, framed
from headrace.console.pages import (
    creating,
    groups,
    history,
    moves,
    overview,
    records,
    resetting,
    search,
    settings,
    topic,
    topics,
)
from headrace.console.rendering import STATIC, rendered, static
from headrace.console.state import Console

CHANGES: Final[tuple[Change[Any], ...]] = (resetting.CHANGE, moves.CHANGE, settings.CHANGE, creating.CHANGE)
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
)


def application(console: Console, hosts: Collection[str] = ()) -> Starlette:
    """The application. `hosts`: names by which browsers may reach it; empty: any."""

    @asynccontextmanager
    async def alive(_: Starlette) -> AsyncIterator[None]:
        asking = [asyncio.create_task(feed.run()) for feed in console.feeds]
        try:
            yield
        finally:
            console.close()
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    made = Starlette(
        routes=[
            *(route for page in PAGES for route in page.routes()),
            *search.ROUTES,
            *records.ROUTES,
            *(route for change in CHANGES for route in change.routes()),
            Route("/charts/throughput", _throughput),
            Route("/charts/lag", _lag),
            Route("/static/{digest}/{name}", _static),
            Route("/favicon.ico", lambda _: RedirectResponse(static("icon.svg"))),
        ],
        middleware=[Middleware(Guard, hosts=hosts), Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4)],
        exception_handlers={404: _not_found, Exception: _bug},
        lifespan=alive,
    )
    made.state.console = console
    made.state.renderings = Renderings()
    made.state.tokens = Tokens()
    return made


async def _not_found(request: Request, _: Exception) -> Response:
    part = rendered("parts/not_found.html", {"text": f"The console has no page at {request.url.path}."})
    return framed(request, "page.html", {"title": "Not found", "part": part}, 404)


async def _bug(request: Request, error: Exception) -> Response:
    text = f"This is a bug in Headrace ({type(error).__name__}); the console's log shows where, please report it."
    part = rendered("parts/failed.html", {"text": text})
    return framed(request, "page.html", {"title": "A bug", "part": part}, 500)


async def _throughput(request: Request) -> Response:
    return JSONResponse(console_of(request).charts.throughput(_since(request)))


async def _lag(request: Request) -> Response:
    group = request.query_params.get("group", "")
    return JSONResponse(console_of(request).charts.lag(group, _since(request)))


def _since(request: Request) -> float:
    """The time, in seconds since 1970, whose later points are asked for."""
    try:
        return float(request.query_params.get("since", "0"))
    except ValueError:
        return 0.0


@cache
def _file(name: str) -> tuple[bytes, bytes] | None:
    """A file, and the same compressed; None where there is none."""
    if "/" in name or name.startswith("."):
        return None
    try:
        plain = STATIC.joinpath(name).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return None
    return plain, gzip.compress(plain, 9, mtime=0)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    found = _file(name)
    kind = KINDS.get(name.rpartition(".")[2])
    if found is None or kind is None:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    plain, packed = found
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"cache-control": FOREVER, "vary": "accept-encoding"}
    if is_packed:
        headers["content-encoding"] = "gzip"
    return Response(packed if is_packed else plain, media_type=kind, headers=headers)
