"""Binds a login at an identity provider to the browser that began it, so that nobody comes back with another's.

Promises:
- The secrets of a login (state, nonce and PKCE's verifier) come from this console's key and a cookie of chance. A code
  that another browser has got is of no use here, and nothing is kept of logins that do not come back.
- A login that began too long ago does not count.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from headrace.base.limits import CONSOLE_OIDC_LOGIN_MS_MAX, CONSOLE_OIDC_NEXT_CHARS_MAX
from headrace.base.reading import natural
from headrace.console.oidc import Begun

_AT_MAX: Final = 2**40


class Returns:
    """The logins that may come back to this console."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def begin(self, next_: str) -> tuple[str, Begun]:
        """The cookie of a new login, and its secrets. `next_`: where its viewer wants to go then."""
        path = next_.encode() if len(next_) <= CONSOLE_OIDC_NEXT_CHARS_MAX else b""
        place = base64.urlsafe_b64encode(path).decode().rstrip("=")
        cookie = f"{secrets.token_urlsafe(24)}.{int(self._clock())}.{place}"
        return cookie, self._begun(cookie)

    def back(self, cookie: str, state: str) -> tuple[str, Begun] | None:
        """Where the viewer of this login wants to go, and its secrets; None: it did not begin here, or is too old."""
        begun = self._begun(cookie)
        if not hmac.compare_digest(begun.state.encode(), state.encode()):
            return None
        _, at, place = cookie.split(".")  # it is ours, by its state
        age_s = self._clock() - natural(at, _AT_MAX)
        if age_s > CONSOLE_OIDC_LOGIN_MS_MAX / 1000:
            return None
        return base64.urlsafe_b64decode(place + "=" * (-len(place) % 4)).decode(), begun

    def _begun(self, cookie: str) -> Begun:
        return Begun(*(self._secret(purpose, cookie) for purpose in Begun._fields))

    def _secret(self, purpose: str, cookie: str) -> str:
        """43 characters, as PKCE wants them."""
        made = hmac.new(self._key, f"{purpose} {cookie}".encode(), sha256).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")
