"""The door of the console: nobody passes without a session, and a login opens one.

Promises: a session begins with a new cookie. A password goes from the form to the client, and into nothing else, and so
does a token of an identity provider. Each login is a line of the log: who, from where, and whether it went well.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_LOGINS_MAX, CONSOLE_OIDC_LOGIN_MS_MAX
from headrace.console.attempts import Attempts
from headrace.console.guarding import COOKIE, form_of, is_over_tls
from headrace.console.login import Login
from headrace.console.page import SESSION, bare, tokens_of
from headrace.console.sessions import Viewers
from headrace.logs import get_logger
from headrace.net.client.errors import WrongCredentialsError

if TYPE_CHECKING:
    from headrace.console.oidc import Provider
    from headrace.console.returning import Returns

LOGIN: Final = "/login"
BY_PROVIDER: Final = "/login/oidc"
RETURN: Final = "/login/oidc/done"
"""The address that the identity provider sends browsers back to; it knows it beforehand."""
OPEN: Final = re.compile(r"/login(/oidc(/done)?)?|/static/.*|/favicon\.ico")
"""Paths for those who have no session."""
BY_ITSELF: Final = re.compile(r"/live/.*|/tail/.*|/charts/.*|/session|/history/.*/proof|/pipelines/.*/plots/.*")
"""Paths that an open page asks for by itself: nobody need sit before it."""
_OWN_PATH: Final = re.compile(r"/(?![/\\])[^\x00-\x20\\]*")
NOT_LET_IN: Final = "The cluster does not let this user in: the name or the password is wrong."
RETURN_COOKIE: Final = "headrace_console_login"
OLD_FORM: Final = "This form is too old: try again."
OLD_LOGIN: Final = "This login did not begin in this browser, or is too old: log in again."
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
        self._attempts = Attempts(viewers.clock)
        self._logins = asyncio.Semaphore(CONSOLE_LOGINS_MAX)
        self._returns = None if self._provider is None else _returns()

    @property
    def _provider(self) -> Provider | None:
        return None if self._viewers.login is None else self._viewers.login.provider

    @property
    def routes(self) -> tuple[Route, ...]:
        return (
            Route(LOGIN, self._form, methods=["GET"]),
            Route(LOGIN, self._enter, methods=["POST"]),
            Route(BY_PROVIDER, self._lead, methods=["GET"]),
            Route(RETURN, self._back, methods=["GET"]),
            Route("/logout", self._leave, methods=["POST"]),
            Route("/session", self._session, methods=["GET"]),
        )

    async def _form(self, request: Request) -> Response:
        if self._viewers.login is None or SESSION in request.scope:
            return RedirectResponse("/", 303)
        return self._shown(request, next_=request.query_params.get("next", ""))

    async def _session(self, request: Request) -> Response:
        """Asked by an open page whose stream has ended."""
        return Response(status_code=204)

    async def _enter(self, request: Request) -> Response:
        form = await form_of(request)
        user, next_ = form.get("user", "").strip(), form.get("next", "")
        address = _address(request)
        login = self._viewers.login
        if login is None or not login.takes_passwords:
            return RedirectResponse(LOGIN, 303)
        if not tokens_of(request).is_own(request, form):
            return self._shown(request, next_=next_, user=user, failed=OLD_FORM, status=403)
        if wait_s := self._attempts.begin(address, user):
            _LOG.warning("a login was not tried", user=user[:256], address=address, reason="too many have failed")
            text = f"Too many logins have failed: try again in {wait_s:.0f} seconds."
            answer = self._shown(request, next_=next_, user=user, failed=text, status=429)
            answer.headers["retry-after"] = str(int(wait_s) + 1)
            return answer
        try:
            async with self._logins:
                admission = await login.by_password(user, form.get("password", ""))
            token = self._viewers.open(admission)
        except (HeadraceError, OSError, TimeoutError) as error:
            is_wrong = isinstance(error, WrongCredentialsError)
            if not is_wrong:  # the cluster, or this console, and not the viewer
                self._attempts.succeeded(address, user)
            text = NOT_LET_IN if is_wrong else _reason(error)
            _LOG.warning("a login to the console has failed", user=user[:256], address=address, reason=text)
            return self._shown(request, next_=next_, user=user, failed=text, status=401 if is_wrong else 502)
        self._attempts.succeeded(address, user)
        _LOG.info("a viewer has logged in to the console", user=user, address=address)
        self._viewers.close(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(_own(next_), 303)
        tokens_of(request).give(request, response, token)
        return response

    async def _lead(self, request: Request) -> Response:
        """Lead a browser to the identity provider."""
        next_ = _own(request.query_params.get("next", ""))
        if self._provider is None or self._returns is None or SESSION in request.scope:
            return RedirectResponse(next_ if SESSION in request.scope else LOGIN, 303)
        cookie, begun = self._returns.begin(next_)
        try:
            async with self._logins:
                way = await self._provider.way(_return_address(request), begun)
        except HeadraceError as error:
            _LOG.warning("a login to the console has failed", address=_address(request), reason=str(error))
            return self._shown(request, next_=next_, failed=str(error), status=502)
        response = RedirectResponse(way, 303)
        response.set_cookie(
            RETURN_COOKIE,
            cookie,
            max_age=CONSOLE_OIDC_LOGIN_MS_MAX // 1000,
            httponly=True,
            samesite="lax",  # the browser comes back from another site
            secure=is_over_tls(request),
            path=BY_PROVIDER,
        )
        return response

    async def _back(self, request: Request) -> Response:
        """A browser comes back from the identity provider, with a code or a reason why there is none."""
        if self._provider is None or self._returns is None:
            return RedirectResponse(LOGIN, 303)
        asked = request.query_params
        found = self._returns.back(request.cookies.get(RETURN_COOKIE, ""), asked.get("state", ""))
        if found is None:
            return self._not_admitted(request, OLD_LOGIN, status=403)
        next_, begun = found
        if not asked.get("code"):
            text = f"The identity provider lets nobody in here ({_code(asked.get('error', ''))}): log in again."
            return self._not_admitted(request, text, next_)
        address = _address(request)
        if wait_s := self._attempts.begin(address, begun.state):
            text = f"Too many logins have failed: try again in {wait_s:.0f} seconds."
            return self._not_admitted(request, text, next_, status=429)
        user = ""
        try:
            async with self._logins:
                ticket = await self._provider.redeem(asked["code"], _return_address(request), begun)
                user = ticket.user
                admission = await self._login.by_token(ticket)
            token = self._viewers.open(admission)
        except (HeadraceError, OSError, TimeoutError) as error:
            status = 401 if isinstance(error, WrongCredentialsError) else 502
            return self._not_admitted(request, _reason(error), next_, user=user, status=status)
        self._attempts.succeeded(address, begun.state)
        _LOG.info(
            "a viewer has logged in to the console", user=user, address=address, by=self._provider.registration.host
        )
        self._viewers.close(request.cookies.get(COOKIE, ""))
        # A redirection would still count as one from the other site, and the cookie would stay at home.
        response = bare(request, "entered.html", {"title": "Logged in", "next": _own(next_)}, own_cookie=False)
        tokens_of(request).give(request, response, token)
        _forget_login(response)
        return response

    @property
    def _login(self) -> Login:
        assert self._viewers.login is not None, "it has a provider"
        return self._viewers.login

    def _not_admitted(
        self, request: Request, text: str, next_: str = "", *, user: str = "", status: int = 401
    ) -> Response:
        _LOG.warning("a login to the console has failed", user=user, address=_address(request), reason=text)
        response = self._shown(request, next_=next_, failed=text, status=status)
        _forget_login(response)
        return response

    async def _leave(self, request: Request) -> Response:
        if tokens_of(request).is_own(request, await form_of(request)):
            self._viewers.close(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    def _shown(self, request: Request, *, next_: str, user: str = "", failed: str = "", status: int = 200) -> Response:
        """The page with the form."""
        provider = self._provider
        values = {
            "title": "Log in",
            "next": next_,
            "user": user[:256],
            "failed": failed,
            "takes_passwords": self._viewers.login is not None and self._viewers.login.takes_passwords,
            "provider": None if provider is None else provider.registration.host,
            "way": f"{BY_PROVIDER}?next={quote(next_, safe='')}" if next_ else BY_PROVIDER,
        }
        return bare(request, "login.html", values, status)


def _returns() -> Returns:
    from headrace.console.returning import Returns  # and with it the libraries of OpenID Connect

    return Returns()


def _forget_login(response: Response) -> None:
    response.delete_cookie(RETURN_COOKIE, path=BY_PROVIDER, httponly=True, samesite="lax")


def _return_address(request: Request) -> str:
    scheme = "https" if is_over_tls(request) else "http"
    return f"{scheme}://{request.headers.get('host', '')}{RETURN}"


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _own(path: str) -> str:
    """A path of this console, whatever is asked for."""
    return path if _OWN_PATH.fullmatch(path) else "/"


def _reason(error: Exception) -> str:
    return str(error) or "No answer came in time."


def _code(text: str) -> str:
    """The error that a provider names, fit for a sentence."""
    return text[:60] if re.fullmatch(r"[a-z_]+", text[:60]) else "no reason is given"
