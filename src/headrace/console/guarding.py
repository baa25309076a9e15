"""The guard between the network and the pages.

Promises:
- A request for another host is refused, so that no page elsewhere can name this console its own (DNS rebinding).
- No script or style runs that is not a file of the console, and no other site frames it or gets a form's answer.
- A change comes from a page of this console: its token fits the browser's cookie, and the browser says no other origin.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.base.limits import CONSOLE_FORM_BYTES_MAX

COOKIE: Final = "headrace_console"
TOKEN: Final = "token"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Guard:
    """Middleware of all requests."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """`hosts`: names, without ports, by which browsers reach it; empty: any."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        app = self._app
        if self._hosts and _host(Headers(scope=scope).get("host", "")) not in self._hosts:
            app = PlainTextResponse(
                "This console is not reached by that name: start it with --listen, or --host NAME.\n", 421
            )
        await app(scope, receive, send_guarded)


def _host(header: str) -> str:
    """The host of a Host header, without its port."""
    host = header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]
    return host.lower().rstrip(".")


class Tokens:
    """Tokens of forms, each bound to one browser's cookie."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def token(self, session: str) -> str:
        """A token for one page. Each is another: a compressed page betrays nothing that stays."""
        salt = secrets.token_hex(8)
        return salt + self._proof(salt, session)

    def _proof(self, salt: str, session: str) -> str:
        return hmac.new(self._key, f"{salt} {session}".encode(), sha256).hexdigest()

    def session(self, request: Request) -> str:
        """The browser's session; a new one where it has none."""
        return request.cookies.get(COOKIE) or secrets.token_urlsafe(24)

    def keep(self, request: Request, response: Response, session: str) -> None:
        """Have the browser keep its session."""
        if request.cookies.get(COOKIE) != session:
            self.give(request, response, session)

    def give(self, request: Request, response: Response, session: str) -> None:
        """Have the browser keep this session."""
        response.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=is_over_tls(request), path="/")

    def is_own(self, request: Request, form: Mapping[str, str]) -> bool:
        """Whether this form was filled in on a page of this console, in this browser."""
        session = request.cookies.get(COOKIE, "")
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if not session or site not in (None, "same-origin"):
            return False
        if origin is not None and origin not in _own_origins(request):
            return False
        salt, proof = form.get(TOKEN, "")[:16], form.get(TOKEN, "")[16:]
        return hmac.compare_digest(proof.encode(), self._proof(salt, session).encode())


def is_over_tls(request: Request) -> bool:
    """Whether the browser speaks TLS: with the console, or with a proxy before it."""
    by_proxy = request.headers.get("x-forwarded-proto", "").strip().lower() == "https"
    return by_proxy or request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _own_origins(request: Request) -> tuple[str, ...]:
    """A proxy before the console may speak TLS where the console does not; never the other way round."""
    place = request.url.netloc
    return (f"https://{place}",) if request.url.scheme == "https" else (f"https://{place}", f"http://{place}")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; the last of equal names. Empty where it is too large, or no form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > CONSOLE_FORM_BYTES_MAX:
            return {}
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}
