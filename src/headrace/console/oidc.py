"""Has viewers log in at an identity provider: OpenID Connect, authorization code flow with PKCE.

Promises:
- An ID token counts if a key of the provider signed it, by an algorithm with a public key. It is of this issuer, for
  this client, for this login (nonce), and valid now.
- The provider's documents are read from its own addresses alone: bounded, over TLS or on this machine.
- No token, code or secret is in a repr, an error or a log.

Sources: OpenID Connect Core 1.0 and Discovery 1.0, RFC 6749, RFC 7636. The requests, claims and signatures are
Authlib's and joserfc's part.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jws, jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import (
    CONSOLE_OIDC_DOCUMENT_MS,
    CONSOLE_OIDC_KEYS_MS_MIN,
    CONSOLE_OIDC_SKEW_S,
    OAUTH_KEYS_BYTES_MAX,
    OAUTH_TIMEOUT_MS,
    OAUTH_TOKEN_BYTES_MAX,
)
from headrace.net.pem import NO_STORES, PemStores
from headrace.operations.web import is_safe, trusting

DOCUMENT: Final = "/.well-known/openid-configuration"
OPENID: Final = "openid"
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519"),
)
"""With a public key: nobody but the provider signs by them."""
ACCESS: Final = "access"
ID: Final = "id"
PASSED: Final = (ACCESS, ID)
OWN_PARAMETERS: Final = frozenset(
    ("client_id", "code_challenge", "code_challenge_method", "nonce", "redirect_uri", "response_mode")
) | {"request", "request_uri", "response_type", "scope", "state"}
"""Parameters of the first request that the console sets, or that would replace these."""
NAME_CHARS_MAX: Final = 256


class ProviderError(HeadraceError):
    """The identity provider does not answer, or its answer does not count."""


class Begun(NamedTuple):
    """The secrets of one login that has begun."""

    state: str
    nonce: str
    verifier: str
    """Of PKCE."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The token of a viewer who has logged in at the provider."""

    user: str
    token: str = field(repr=False)
    """It goes to the brokers."""
    expires_at_s: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The provider, and the console as its client."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty: the client is a public one, and PKCE has to do."""
    scopes: tuple[str, ...] = (OPENID,)
    passed: str = ACCESS
    """The token that brokers get."""
    parameters: tuple[tuple[str, str], ...] = ()
    """More of the request that begins a login."""
    user_claim: str = "sub"
    """The claim that brokers take the user's name from."""
    stores: PemStores = NO_STORES
    """Certificates to trust; none: those that the operating system trusts."""

    def check(self) -> None:
        """Raises UsageError."""
        _check_url(self.issuer, "--oidc-issuer")
        if not self.client_id:
            raise UsageError(
                "--oidc-issuer needs --oidc-client-id: the name under which the provider knows the console."
            )
        if self.passed not in PASSED:
            raise UsageError(f"--oidc-token '{self.passed:.40}' is unknown: choose {' or '.join(PASSED)}.")
        for name, _ in self.parameters:
            if name in OWN_PARAMETERS:
                raise UsageError(f"--oidc-parameter {name} is the console's own: leave it out.")

    @property
    def host(self) -> str:
        return urlsplit(self.issuer).hostname or self.issuer


class Document(NamedTuple):
    """The provider's addresses, by its discovery document."""

    authorization: str
    token: str
    keys: str
    methods: tuple[str, ...]
    """Ways in which a client proves its secret."""


class Provider:
    """One provider. Its document and keys are kept, and read again now and then."""

    def __init__(self, registration: Registration, *, clock: Callable[[], float] = time.time) -> None:
        """Raises UsageError."""
        registration.check()
        self.registration = registration
        self._clock = clock
        self._document: tuple[float, Document] | None = None
        self._keys: tuple[float, KeySet] | None = None

    async def way(self, redirect_uri: str, begun: Begun) -> str:
        """The address at the provider where a browser begins. Raises ProviderError."""
        document = await self._known()
        async with self._client(document, redirect_uri) as client:
            url, _ = client.create_authorization_url(
                document.authorization,
                state=begun.state,
                nonce=begun.nonce,
                code_verifier=begun.verifier,
                **dict(self.registration.parameters),
            )
        return str(url)

    async def redeem(self, code: str, redirect_uri: str, begun: Begun) -> Ticket:
        """The token for this code. Raises ProviderError."""
        document = await self._known()
        async with self._client(document, redirect_uri) as client:
            try:
                answer: Mapping[str, Any] = await client.fetch_token(
                    document.token,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=begun.verifier,
                    redirect_uri=redirect_uri,
                )
            except OAuthError as error:
                raise ProviderError(f"{self._named} gives no token ({_word(error.error)}): log in again.") from None
            except ValueError:
                raise ProviderError(f"{self._named} answers without a token.") from None
        access, id_token = answer.get("access_token"), answer.get("id_token")
        if not isinstance(id_token, str) or not isinstance(access, str):
            raise ProviderError(f"{self._named} answers without an ID token: its client needs the scope {OPENID}.")
        own = await self._checked(id_token, access, begun.nonce)
        if self.registration.passed == ID:
            return self._ticket(id_token, own)
        return self._ticket(access, _unproven(access))

    async def _checked(self, token: str, access: str, nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token that counts. Raises ProviderError."""
        try:
            try:
                found = jwt.decode(token, await self._known_keys(), algorithms=ALGORITHMS)
            except InvalidKeyIdError:
                found = jwt.decode(token, await self._newer_keys(), algorithms=ALGORITHMS)
            rules = {
                "iss": {"essential": True, "values": [self.registration.issuer]},
                "aud": {"essential": True, "values": [self.registration.client_id]},
            }
            login = {"nonce": nonce, "client_id": self.registration.client_id, "access_token": access}
            claims = CodeIDToken(found.claims, found.header, rules, login)
            claims.validate(now=int(self._clock()), leeway=CONSOLE_OIDC_SKEW_S)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            reason = _word(getattr(error, "error", "") or type(error).__name__)
            claim = _word(getattr(error, "claim", "") or "")
            about = f"{reason}, {claim}" if claim else reason
            raise ProviderError(f"The ID token of {self.registration.host} does not count ({about}).") from None
        return dict(claims)

    def _ticket(self, token: str, claims: Mapping[str, Any]) -> Ticket:
        """Raises ProviderError."""
        if not claims or len(token) > OAUTH_TOKEN_BYTES_MAX:
            raise ProviderError(
                f"The access tokens of {self.registration.host} are no signed ones (JWT), which brokers need: have it "
                f"issue such tokens for the brokers (--oidc-parameter), or pass ID tokens on by --oidc-token {ID}."
            )
        user, expires_at = claims.get(self.registration.user_claim), claims.get("exp")
        if not isinstance(user, str) or not 0 < len(user) <= NAME_CHARS_MAX or not user.isprintable():
            claim = self.registration.user_claim
            raise ProviderError(
                f"The token of {self.registration.host} has no name in its claim '{claim}': say by "
                "sasl.oauthbearer.sub.claim.name in the file of --command-config which claim brokers read."
            )
        if isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)) or expires_at <= self._clock():
            raise ProviderError(f"The token of {self.registration.host} has expired, or does not say when it does.")
        return Ticket(user, token, float(expires_at))

    # the documents of the provider

    @property
    def _named(self) -> str:
        return f"The identity provider at {self.registration.host}"

    async def _known(self) -> Document:
        """Raises ProviderError."""
        if self._document is not None and self._clock() - self._document[0] < CONSOLE_OIDC_DOCUMENT_MS / 1000:
            return self._document[1]
        issuer = self.registration.issuer
        said = await self._read(issuer.rstrip("/") + DOCUMENT)
        if said.get("issuer") != issuer:
            theirs = str(said.get("issuer"))[:200]
            raise ProviderError(f"{self._named} calls itself {theirs!r}: give just that by --oidc-issuer.")
        places = [said.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        for place in places:
            try:
                _check_url(place if isinstance(place, str) else "", "Each of its addresses")
            except UsageError as error:
                raise ProviderError(f"{self._named} cannot be used: {error}") from None
        told = said.get("token_endpoint_auth_methods_supported")
        methods = tuple(each for each in told if isinstance(each, str)) if isinstance(told, list) else ()
        authorization, token, keys = map(str, places)
        found = Document(authorization, token, keys, methods)
        self._document = self._clock(), found
        return found

    async def _known_keys(self) -> KeySet:
        """Raises ProviderError."""
        if self._keys is not None and self._clock() - self._keys[0] < CONSOLE_OIDC_DOCUMENT_MS / 1000:
            return self._keys[1]
        return await self._newer_keys()

    async def _newer_keys(self) -> KeySet:
        """A token may have a key that is newer than those that are known. Raises ProviderError."""
        now = self._clock()
        if self._keys is not None and now - self._keys[0] < CONSOLE_OIDC_KEYS_MS_MIN / 1000:
            return self._keys[1]
        said = await self._read((await self._known()).keys)
        given = said.get("keys")
        found = []
        for each in given if isinstance(given, list) else ():
            try:
                found += KeySet.import_key_set({"keys": [each]}).keys
            except (JoseError, ValueError, TypeError, KeyError):
                continue  # a kind that is not known here
        if not found:
            raise ProviderError(f"{self._named} has no key that could have signed a token.")
        self._keys = now, KeySet(found)
        return self._keys[1]

    async def _read(self, url: str) -> Mapping[str, Any]:
        """A document of the provider. Raises ProviderError."""
        async with self._client() as client, client.stream("GET", url, withhold_token=True) as answer:
            if answer.status_code != 200:
                raise ProviderError(f"{self._named} answers {answer.status_code} for {url}.")
            data = b""
            async for chunk in answer.aiter_bytes():
                data += chunk
                if len(data) > OAUTH_KEYS_BYTES_MAX:
                    break
        try:
            said = json.loads(data) if len(data) <= OAUTH_KEYS_BYTES_MAX else None
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise ProviderError(f"{self._named} has no JSON object at {url}.")
        return said

    @asynccontextmanager
    async def _client(
        self, document: Document | None = None, redirect_uri: str = ""
    ) -> AsyncIterator[AsyncOAuth2Client]:
        """A client for some requests. Failures within the block raise ProviderError."""
        known = self.registration
        try:
            async with AsyncOAuth2Client(
                client_id=known.client_id,
                client_secret=known.client_secret or None,
                token_endpoint_auth_method=_method(known, document),
                scope=" ".join(known.scopes),
                redirect_uri=redirect_uri,
                code_challenge_method="S256",
                verify=trusting(known.stores),
                timeout=OAUTH_TIMEOUT_MS / 1000,
                follow_redirects=False,
            ) as client:
                yield client
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ProviderError(f"{self._named} does not answer: {reason.rstrip('.')}.") from None


def _method(known: Registration, document: Document | None) -> str:
    """How the client proves its secret."""
    if not known.client_secret:
        return "none"
    methods = document.methods if document is not None else ()
    is_posted = "client_secret_post" in methods and "client_secret_basic" not in methods
    return "client_secret_post" if is_posted else "client_secret_basic"


def _check_url(url: str, named: str) -> None:
    """Raises UsageError."""
    parts = urlsplit(url)
    if not is_safe(url) or not parts.hostname or parts.username is not None or parts.fragment:
        raise UsageError(f"{named} has to be https://HOST/..., or http:// on this machine, and is '{url:.200}'.")


def _unproven(token: str) -> Mapping[str, Any]:
    """The claims of a signed token whose signature the brokers check; empty where it is none."""
    try:
        claims = json.loads(jws.extract_compact(token.encode()).payload)
    except (JoseError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _word(text: str) -> str:
    """A code of others, fit for a sentence."""
    return "".join(one for one in str(text)[:60] if one.isascii() and (one.isalnum() or one in "_-. "))
