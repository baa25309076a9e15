"""The sources of a client's OAUTHBEARER tokens: a file that somebody keeps fresh, or an identity provider. That is
asked in the client's own name (RFC 6749, 4.4).

Promises: a token that is asked for is used for most of its life, by all connections of the process. The client's
secret goes over TLS, or to this machine. No error and no repr shows it, or a token. Blocking: call in a thread.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlencode, urlsplit

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.limits import OAUTH_ANSWER_BYTES_MAX, OAUTH_TIMEOUT_MS, TLS_CONTEXTS_MAX
from headrace.net.client.errors import ClientError, ConnectionLostError
from headrace.net.pem import NO_STORES, PemStores

TokenSource: TypeAlias = Callable[[], str]
"""Returns a token that is valid now. May block."""
ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
USED: Final = 0.8
"""The part of a token's life for which it is given to new connections."""


class TokenError(ClientError):
    """There is no token. The identity provider refuses, or nothing is where it should be."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that holds one token. It is read for each login."""

    path: Path

    def __call__(self) -> str:
        """Raises TokenError."""
        try:
            with self.path.open("rb") as file:
                data = file.read(OAUTH_ANSWER_BYTES_MAX + 1)
        except OSError as error:
            raise TokenError(f"The token in {self.path} cannot be read: {error.strerror or error}.") from error
        if len(data) > OAUTH_ANSWER_BYTES_MAX:
            raise TokenError(f"{self.path} has more than {OAUTH_ANSWER_BYTES_MAX} bytes, and is no token.")
        return data.decode("ascii", "replace").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """An identity provider's token endpoint, asked with a client's id and secret."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    stores: PemStores = NO_STORES
    """Whom to trust besides those that the operating system trusts."""

    def __call__(self) -> str:
        """Raises TokenError, ConnectionLostError."""
        with _asking:
            known = _kept.get(self)
            if known is not None and time.monotonic() < known[1]:
                return known[0]
            token, seconds = self._ask()
            while len(_kept) >= TLS_CONTEXTS_MAX:
                del _kept[next(iter(_kept))]
            _kept[self] = token, time.monotonic() + USED * seconds
            return token

    def _ask(self) -> tuple[str, float]:
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

        class StaysThere(HTTPRedirectHandler):
            """A secret is for the endpoint alone."""

            def redirect_request(self, *_: object) -> None:
                return None

        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        proof = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {"Authorization": f"Basic {proof}", "Accept": "application/json"}
        request = Request(self.url, urlencode(form).encode(), headers)
        opener = build_opener(HTTPSHandler(context=self._context()), StaysThere)
        try:
            with opener.open(request, timeout=OAUTH_TIMEOUT_MS / 1000) as answer:
                data = answer.read(OAUTH_ANSWER_BYTES_MAX + 1)
        except HTTPError as error:
            error.close()
            if error.code >= 500:
                raise ConnectionLostError(f"{self.url} answers {error.code}.") from None
            raise TokenError(f"{self.url} gives no token for client '{self.client_id}' ({error.code}).") from None
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            raise ConnectionLostError(f"{self.url} gives no token: {reason}.") from None
        return self._token_in(data)

    def _token_in(self, data: bytes) -> tuple[str, float]:
        try:
            said: Any = json.loads(data) if len(data) <= OAUTH_ANSWER_BYTES_MAX else None
        except (ValueError, RecursionError):
            said = None
        token = said.get("access_token") if isinstance(said, dict) else None
        if not isinstance(token, str):
            raise TokenError(f"{self.url} answers without an access token.")
        seconds = said.get("expires_in", 0)
        return token, float(seconds) if type(seconds) in (int, float) and 0 < seconds < 1e9 else 0.0

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.stores.has_trust:
            self.stores.load_trust(context)
        return context


_asking: Final = threading.Lock()
_kept: dict[TokenEndpoint, tuple[str, float]] = {}


def source_of(properties: Mapping[str, str], login: Mapping[str, str], stores: PemStores, named: str) -> TokenSource:
    """Where these settings have tokens from. `login`: the options of the login module. Raises UsageError."""
    url = properties.get(ENDPOINT, "").strip()
    parts = urlsplit(url)
    if parts.scheme == "file":
        return TokenFile(Path(unquote(parts.path)))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{named}{ENDPOINT} is missing: name the identity provider's URL, or file:///PATH of a token.")
    if parts.scheme == "http" and not Address(parts.hostname, 0).is_loopback:
        raise UsageError(f"{named}{ENDPOINT} must be https beyond this machine: a secret goes there.")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{named}{ENDPOINT} has a user in it: give the client's id and secret by their settings.")

    def given(*names: str) -> str:
        return next((value for name in names if (value := properties.get(name, ""))), "")

    found = TokenEndpoint(
        url=url,
        client_id=given("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
        or login.get("clientId", ""),
        client_secret=given("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
        or login.get("clientSecret", ""),
        scope=given("sasl.oauthbearer.scope") or login.get("scope", ""),
        stores=stores,
    )
    if not found.client_id or not found.client_secret:
        raise UsageError(
            f"{named}{ENDPOINT} needs a client's id and secret: {named}sasl.oauthbearer.client.credentials.*."
        )
    return found
