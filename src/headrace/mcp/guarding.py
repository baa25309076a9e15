"""The guard of the HTTP door: a token, where one is asked for.

Promises: without the token a request reaches nothing behind it. Tokens are compared in constant time, and are in no
answer and no log.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.errors import UsageError
from headrace.base.limits import MCP_TOKEN_BYTES_MAX, MCP_TOKEN_CHARS_MIN

SCHEME: Final = "bearer "
REFUSED: Final = "Give the token of this server: 'Authorization: Bearer TOKEN'."


class Guard:
    """Lets in who has the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_let_in(Headers(scope=scope).get("authorization", "")):
            answer = JSONResponse({"error": REFUSED}, 401, headers={"www-authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_let_in(self, given: str) -> bool:
        is_bearer = given[: len(SCHEME)].lower() == SCHEME
        return is_bearer and hmac.compare_digest(_digest(given[len(SCHEME) :].strip()), self._digest)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def read_token(path: Path) -> str:
    """The token in a file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            token = file.read(MCP_TOKEN_BYTES_MAX + 1).decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--token-file {path} is no ASCII text.") from error
    if not MCP_TOKEN_CHARS_MIN <= len(token) <= MCP_TOKEN_BYTES_MAX or not token.isprintable() or " " in token:
        raise UsageError(
            f"--token-file {path} has no token of {MCP_TOKEN_CHARS_MIN} characters or more: make one with "
            "'openssl rand -hex 32'."
        )
    return token
