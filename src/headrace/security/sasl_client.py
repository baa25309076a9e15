"""The client's side of SASL, one class for each mechanism. Sources: RFC 4616, RFC 7628, KIP-255.

Promises: each exchange ends after at most two answers. No repr shows a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Protocol

from headrace.base.errors import UsageError
from headrace.metadata.access.scram import ScramMechanism
from headrace.security.scram_client import Distrusted, ScramClient

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM: Final = {one.title: one for one in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)}
MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER)

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""RFC 6750. Nothing in it can end the field that it stands in."""


class Exchange(Protocol):
    """One authentication, from the client's side."""

    def first(self) -> bytes:
        """The first message."""

    def after(self, answer: bytes) -> bytes | None:
        """The next message; None: the broker's answer was the last. Raises Distrusted."""


class PlainExchange:
    """The name and the password, as they are: only behind TLS, or where nobody else listens."""

    def __init__(self, user: str, password: str) -> None:
        self._message = b"\0".join((b"", user.encode(), password.encode()))

    def first(self) -> bytes:
        return self._message

    def after(self, answer: bytes) -> bytes | None:
        return None


class ScramExchange:
    """See `security.scram_client`."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self._client = ScramClient(mechanism, user, password, nonce=nonce)
        self._is_proven = False

    def first(self) -> bytes:
        return self._client.first()

    def after(self, answer: bytes) -> bytes | None:
        if self._is_proven:
            self._client.check(answer)
            return None
        self._is_proven = True
        return self._client.final(answer)


class BearerExchange:
    """A token that somebody else has signed. A broker that refuses it says why, and is told that this was heard."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        """Raises UsageError for a token that is none."""
        if _TOKEN.fullmatch(token) is None:
            raise UsageError("The OAUTHBEARER token is empty, or has characters that no token has.")
        pairs = "".join(f"\x01{name}={value}" for name, value in extensions.items())
        self._message = f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()
        self._refusal = ""

    def first(self) -> bytes:
        return self._message

    def after(self, answer: bytes) -> bytes | None:
        if self._refusal:
            raise Distrusted(self._refusal)
        if not answer:
            return None
        self._refusal = f"it refuses the token ({_status(answer)})"
        return b"\x01"


def _status(answer: bytes) -> str:
    """The fault of the token, as the broker tells it (RFC 7628, 3.2.2)."""
    try:
        said = json.loads(answer)
        status = said["status"] if isinstance(said, dict) else None
    except (ValueError, KeyError, RecursionError):
        status = None
    return status if isinstance(status, str) and re.fullmatch(r"[a-z_]{1,40}", status) else "no reason is given"
