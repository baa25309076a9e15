"""How a page is served: whole, as its changing part alone (to htmx), and as a stream of that part.

Promises: a page that is shown to many is made once for each change. A cluster that does not answer is told of in the
page, with what to do, and never by a blank one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace import __version__
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import CONSOLE_FIRST_MS, CONSOLE_FULL_RETRY_MS, CONSOLE_MORE_MS
from headrace.console.feeds import Feed, ForbiddenError, any_changed
from headrace.console.guarding import Tokens
from headrace.console.places import Viewer
from headrace.console.rendering import rendered
from headrace.console.sessions import Session
from headrace.console.state import Console
from headrace.net.client.cluster import UnknownTopicError
from headrace.net.client.errors import FORBIDDEN, RefusedError

SESSION: Final = "headrace.session"
"""The name of the session in a request's scope."""
ALIVE_S: Final = 15.0
"""A stream without news says that it lives."""
THEMES: Final = ("light", "dark")
NAVIGATION: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/transactions", "Transactions"),
    ("/moves", "Moves"),
    ("/history", "History"),
    ("/access", "Users"),
    ("/quotas", "Quotas"),
)
PIPELINES: Final = ("/pipelines", "Pipelines")
"""Only where the console knows of some."""


class NotFoundError(HeadraceError):
    """There is no such thing, or no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page. `template` is that of its changing part."""

    path: str
    template: str
    title: Callable[[Request], str]
    feeds: Callable[[Console], Sequence[Feed[Any]]]
    """Without the first of them there is nothing to show; the others may come later."""
    values: Callable[[Console, Request], Awaitable[dict[str, Any]]]
    name: str | None = None
    """By which others find its path."""
    frame: str = "page.html"
    """The template around it."""
    once: Callable[[Console, Request], Awaitable[dict[str, Any]]] | None = None
    """Values of the frame, which do not change while the page is open."""

    def routes(self) -> list[Route]:
        return [Route(self.path, self._whole, name=self.name), Route(f"/live{self.path}", self._live)]

    async def _whole(self, request: Request) -> Response:
        console = console_of(request)
        feeds = self.feeds(console)
        with ExitStack() as stack:
            for feed in feeds:
                stack.enter_context(feed.viewed())
            waits = [CONSOLE_FIRST_MS, *[CONSOLE_MORE_MS] * len(feeds)]
            await asyncio.gather(*(feed.settled(wait) for feed, wait in zip(feeds, waits, strict=False)))
            part, status = await self.part(console, request)
            live = live_path(request) if status in (200, 404, 503) else None
            if request.headers.get("hx-request") == "true":
                return HTMLResponse(rendered("part.html", {"part": part, "live": live}))
            once: dict[str, Any] = {}
            if self.once is not None and status == 200:
                try:
                    once = await self.once(console, request)
                except HeadraceError as error:
                    once = {"unknown": str(error)}
        frame = self.frame if status == 200 else "page.html"
        return framed(request, frame, {"title": self.title(request), "part": part, "live": live, **once}, status)

    async def part(self, console: Console, request: Request) -> tuple[str, int]:
        """The changing part, and the status of an answer with it."""
        feeds = self.feeds(console)
        key = (self.template, request.url.path.removeprefix("/live"), request.url.query)
        versions = tuple(feed.version for feed in feeds)
        return await session_of(request).renderings.get(key, versions, lambda: self._part(console, request, feeds))

    async def _part(self, console: Console, request: Request, feeds: Sequence[Feed[Any]]) -> tuple[str, int]:
        if is_forbidden(feeds[0].error):
            return rendered("parts/forbidden.html", {"text": feeds[0].trouble, "console": console}), 403
        if feeds[0].value is None:
            return rendered("parts/no_answer.html", {"trouble": feeds[0].trouble, "console": console}), 503
        stale = feeds[0] if feeds[0].trouble else None
        try:
            values = await self.values(console, request)
        except (NotFoundError, UnknownTopicError) as error:
            return rendered("parts/not_found.html", {"text": str(error)}), 404
        except UsageError as error:
            return rendered("parts/failed.html", {"text": str(error)}), 400
        except (HeadraceError, OSError, TimeoutError) as error:
            if is_forbidden(error):
                return rendered("parts/forbidden.html", {"text": str(error), "console": console}), 403
            return rendered("parts/failed.html", {"text": str(error) or "No answer came in time."}), 502
        common = {"console": console, "stale": stale, "request": request}
        return rendered(self.template, {**common, **values}), 200

    async def _live(self, request: Request) -> Response:
        stream = self._stream(console_of(request), request)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _stream(self, console: Console, request: Request) -> AsyncIterator[str]:
        feeds = self.feeds(console)
        with console.settings.streams.taken(viewer_of(request)) as problem:
            if problem:
                part, _ = await self.part(console, request)
                yield f"retry: {CONSOLE_FULL_RETRY_MS}\n" + event(not_live(problem, part))
                return
            with ExitStack() as stack:
                for feed in feeds:
                    stack.enter_context(feed.viewed())
                sent = ""
                while not console.closing.is_set():
                    versions = [feed.version for feed in feeds]
                    part, _ = await self.part(console, request)
                    if part != sent:
                        sent = part
                        yield event(part)
                    while versions == [feed.version for feed in feeds] and not console.closing.is_set():
                        if not await any_changed(feeds, ALIVE_S):
                            yield ": alive\n\n"


def is_forbidden(error: BaseException | None) -> bool:
    """Whether the viewer lacks a right."""
    while error is not None:
        if isinstance(error, ForbiddenError) or (isinstance(error, RefusedError) and error.code in FORBIDDEN):
            return True
        error = error.__cause__
    return False


def event(html: str) -> str:
    """One event of a stream."""
    return "".join(f"data: {line}\n" for line in html.splitlines()) + "\n"


def not_live(problem: str, part: str = "") -> str:
    """A part that says why it is not kept up to date. htmx would show any other answer in place of the page."""
    return rendered("parts/not_live.html", {"text": problem, "part": part})


def viewer_of(request: Request) -> Viewer:
    """The one whose open pages are counted."""
    session = session_of(request)
    return Viewer(session, True) if session.user else Viewer(request.client.host if request.client else "", False)


def session_of(request: Request) -> Session:
    """The session of whoever asks. The door lets nobody in who has none."""
    session: Session = request.scope[SESSION]
    return session


def console_of(request: Request) -> Console:
    return session_of(request).console


def tokens_of(request: Request) -> Tokens:
    tokens: Tokens = request.app.state.tokens
    return tokens


def live_path(request: Request) -> str:
    """The stream of this page, with its query."""
    query = f"?{request.url.query}" if request.url.query else ""
    return f"/live{request.url.path}{query}"


def linked(request: Request, **changes: str | None) -> str:
    """This page with other settings in its query; None leaves one out."""
    settings = {**request.query_params, **changes}
    query = urlencode({name: value for name, value in settings.items() if value})
    path = request.url.path.removeprefix("/live")
    return f"{path}?{query}" if query else path


def framed(request: Request, template: str, values: dict[str, Any], status: int = 200) -> Response:
    """A whole page."""
    console = console_of(request)
    seen = console.seen.value
    pipelines = () if console.settings.pipelines is None else (PIPELINES,)
    common = {
        "console": console,
        "navigation": (*NAVIGATION, *pipelines),
        "here": request.url.path,
        "cluster": "" if seen is None else seen.look.view.cluster_id or "",
        "live": None,
    }
    return bare(request, template, {**common, **values}, status)


def bare(
    request: Request, template: str, values: dict[str, Any], status: int = 200, *, own_cookie: bool = True
) -> Response:
    """A page that knows of no session. `own_cookie`: the browser gets a cookie with it, where it has none."""
    tokens = tokens_of(request)
    browser = tokens.session(request)
    theme = request.cookies.get("theme", "")
    common = {
        "request": request,
        "theme": theme if theme in THEMES else "",
        "version": __version__,
        "token": tokens.token(browser),
    }
    response = HTMLResponse(rendered(template, {**common, **values}), status)
    if own_cookie:
        tokens.keep(request, response, browser)
    return response
