"""The server's side of SASL mechanisms, as Kafka has them: one object for each exchange. Sources: RFC 4422, 4616, 5802.

Promises:
- A client is authenticated only by what proves who it is. Nothing that it is told says whether a name is known.
- Passwords and proofs are compared in constant time.
- A message is never shown, nor is a part of it: it may be a password.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from headrace.security.scram import AuthenticationFailed, ScramServer

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SERVED: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
"""The mechanisms that there are here, by Kafka's names."""
WRONG_PASSWORD: Final = "Authentication failed: Invalid username or password"


class Exchange(Protocol):
    """One exchange with one client."""

    @property
    def user(self) -> str | None:
        """The user that was authenticated; None: none yet."""

    @property
    def claimed(self) -> str:
        """The name that the client gave. Nothing has to be true of it."""

    @property
    def expires_at_ms(self) -> int | None:
        """When what proved the user is no longer valid, in milliseconds since 1970; None: that has no end."""

    def step(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. Raises AuthenticationFailed; nothing follows after it."""


Begin: TypeAlias = Callable[[], Exchange]
"""Begins an exchange of one mechanism."""


class PlainExchange:
    """PLAIN: the name and the password in one message (RFC 4616), as Kafka's PlainSaslServer takes them."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """`passwords`: by user."""
        self._passwords = passwords
        self.user: str | None = None
        self.claimed = ""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes) -> bytes:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("Authentication failed: the PLAIN message is malformed.") from error
        if len(parts) != 3:
            raise AuthenticationFailed("Authentication failed: the PLAIN message is malformed.")
        authorization, self.claimed, password = parts
        if not self.claimed:
            raise AuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise AuthenticationFailed("Authentication failed: password not specified")
        known = self._passwords.get(self.claimed, "")
        is_right = hmac.compare_digest(_digest(known), _digest(password))
        if not (known and is_right):
            raise AuthenticationFailed(WRONG_PASSWORD)
        if authorization not in ("", self.claimed):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = self.claimed
        return b""


class ScramExchange:
    """SCRAM, in its two steps."""

    def __init__(self, server: ScramServer) -> None:
        self._server = server
        self._steps = [server.first, server.final]
        self.expires_at_ms: int | None = None

    @property
    def user(self) -> str | None:
        return self._server.user

    @property
    def claimed(self) -> str:
        return self._server.claimed

    def step(self, message: bytes) -> bytes:
        assert self._steps, "an exchange ends with its second step"
        return self._steps.pop(0)(message)


def _digest(password: str) -> bytes:
    """So that the time of a comparison does not tell how long a password is."""
    return hashlib.sha256(password.encode()).digest()
