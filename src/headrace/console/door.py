"""The door of the console: nobody passes without a session, and a login opens one.

Promises: a session begins with a new cookie. A password goes from the form to the client, and into nothing else. Each
login is a line of the log: who, from where, and whether it went well.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_LOGINS_MAX
from headrace.console.attempts import Attempts
from headrace.console.guarding import COOKIE, form_of
from headrace.console.page import SESSION, bare, tokens_of
from headrace.console.sessions import Viewers
from headrace.logs import get_logger
from headrace.net.client.errors import WrongCredentialsError

LOGIN: Final = "/login"
OPEN: Final = re.compile(r"/login|/static/.*|/favicon\.ico")
"""Paths for those who have no session."""
BY_ITSELF: Final = re.compile(r"/live/.*|/tail/.*|/charts/.*|/session|/history/.*/proof")
"""Paths that an open page asks for by itself: nobody need sit before it."""
_OWN_PATH: Final = re.compile(r"/(?![/\\])[^\x00-\x20\\]*")
NOT_LET_IN: Final = "The cluster does not let this user in: the name or the password is wrong."
OLD_FORM: Final = "This form is too old: try again."
_LOG: Final = get_logger("headrace.audit")


class Door:
    """Middleware of all requests."""

    def __init__(self, app: ASGIApp, viewers: Viewers) -> None:
        self._app = app
        self._viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, path = Request(scope), scope["path"]
        token = request.cookies.get(COOKIE, "")
        by_itself = request.method == "GET" and BY_ITSELF.fullmatch(path) is not None
        session = self._viewers.of(token, uses=not by_itself)
        app = self._app
        if session is not None:
            scope[SESSION] = session
        elif OPEN.fullmatch(path) is None:
            app = _turned_away(request)
        await app(scope, receive, send)


def _turned_away(request: Request) -> Response:
    """A person is led to the login; what a page asks for by itself is refused."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if BY_ITSELF.fullmatch(request.url.path) is not None:
        return PlainTextResponse("Your session is over: log in again.\n", 401)
    way = f"{LOGIN}?next={quote(wanted, safe='')}" if request.method == "GET" and wanted != "/" else LOGIN
    if request.headers.get("hx-request") == "true":
        return PlainTextResponse("", 401, headers={"hx-redirect": LOGIN})
    return RedirectResponse(way, 303)


class Entrance:
    """The pages of the door."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers
        self._attempts = Attempts()
        self._logins = asyncio.Semaphore(CONSOLE_LOGINS_MAX)

    @property
    def routes(self) -> tuple[Route, ...]:
        return (
            Route(LOGIN, self._form, methods=["GET"]),
            Route(LOGIN, self._enter, methods=["POST"]),
            Route("/logout", self._leave, methods=["POST"]),
            Route("/session", self._session, methods=["GET"]),
        )

    async def _form(self, request: Request) -> Response:
        if self._viewers.login is None or SESSION in request.scope:
            return RedirectResponse("/", 303)
        return _shown(request, next_=request.query_params.get("next", ""))

    async def _session(self, request: Request) -> Response:
        """Asked by an open page whose stream has ended."""
        return Response(status_code=204)

    async def _enter(self, request: Request) -> Response:
        form = await form_of(request)
        user, next_ = form.get("user", "").strip(), form.get("next", "")
        address = request.client.host if request.client else ""
        if self._viewers.login is None:
            return RedirectResponse("/", 303)
        if not tokens_of(request).is_own(request, form):
            return _shown(request, next_=next_, user=user, failed=OLD_FORM, status=403)
        if wait_s := self._attempts.begin(address, user):
            _LOG.warning("a login was not tried", user=user[:256], address=address, reason="too many have failed")
            text = f"Too many logins have failed: try again in {wait_s:.0f} seconds."
            answer = _shown(request, next_=next_, user=user, failed=text, status=429)
            answer.headers["retry-after"] = str(int(wait_s) + 1)
            return answer
        try:
            async with self._logins:
                token = await self._viewers.open(user, form.get("password", ""))
        except (HeadraceError, OSError, TimeoutError) as error:
            return self._refused(request, error, user, address, next_)
        self._attempts.succeeded(address, user)
        _LOG.info("a viewer has logged in to the console", user=user, address=address)
        self._viewers.close(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(next_ if _OWN_PATH.fullmatch(next_) else "/", 303)
        tokens_of(request).give(request, response, token)
        return response

    def _refused(self, request: Request, error: Exception, user: str, address: str, next_: str) -> Response:
        is_wrong = isinstance(error, WrongCredentialsError)
        if not is_wrong:  # the cluster, or this console, and not the viewer
            self._attempts.succeeded(address, user)
        text = NOT_LET_IN if is_wrong else str(error) or "No answer came in time."
        _LOG.warning("a login to the console has failed", user=user[:256], address=address, reason=text)
        return _shown(request, next_=next_, user=user, failed=text, status=401 if is_wrong else 502)

    async def _leave(self, request: Request) -> Response:
        if tokens_of(request).is_own(request, await form_of(request)):
            self._viewers.close(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response


def _shown(request: Request, *, next_: str, user: str = "", failed: str = "", status: int = 200) -> Response:
    values = {"title": "Log in", "next": next_, "user": user[:256], "failed": failed}
    return bare(request, "login.html", values, status)
