"""OAUTHBEARER: a client is who a signed token says. Sources: RFC 7628, RFC 7519, RFC 8725, KIP-255, KIP-768.

Promises:
- A token counts if one of the given public keys signed it, by an algorithm of that key's kind. `none`, and algorithms
  with a shared secret, never count.
- Its issuer and audience are as configured. It has begun, has not expired, and says when it does.
- A refusal says what is wrong with the token, and shows nothing of it.

Keys and time are given: nothing is fetched here. Signatures and claims are PyJWT's part.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jwt
from jwt.api_jwk import PyJWK
from jwt.exceptions import (
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from headrace.base.limits import ACL_TEXT_CHARACTERS_MAX, OAUTH_KEYS_MAX, OAUTH_TOKEN_BYTES_MAX
from headrace.security.scram import AuthenticationFailed

ALGORITHMS: Final[Mapping[tuple[object, object], tuple[str, ...]]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""By the kind of a key, and the name of its curve."""
SEPARATOR: Final = b"\x01"
INVALID: Final = b'{"status":"invalid_token"}'
_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_.a-zA-Z0-9=]+)", re.IGNORECASE)


class _Refused(Exception):  # noqa: N818 - reads as a sentence
    """The token does not count. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The claims that a token has to have, by Kafka's configs `sasl.oauthbearer.*`."""

    audiences: tuple[str, ...]
    """At least one of them is among the token's; empty: any are."""
    issuer: str | None
    """None: any."""
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    """The claim with the user's name."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that counts."""

    user: str
    expires_at_ms: int


class IssuerKey(NamedTuple):
    """One public key."""

    id: object
    public: Any
    algorithms: tuple[str, ...]
    """The algorithms by which it may have signed."""


class Keys:
    """The public keys of an issuer (JWKS)."""

    def __init__(self, keys: Sequence[IssuerKey]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, text: bytes) -> Keys:
        """Read a set of keys. Keys that sign nothing, and kinds that are not known, are left out. Raises ValueError
        where none is left."""
        try:
            given = json.loads(text)["keys"]
            candidates = [each for each in given[:OAUTH_KEYS_MAX] if isinstance(each, dict)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError("it is no JSON object with a list 'keys'") from error
        keys = [key for key in map(_key, candidates) if key is not None]
        if not keys:
            raise ValueError("it has no key that could have signed a token")
        return cls(keys)

    def of(self, key_id: object) -> IssuerKey | None:
        """The key with this id. A token without one is of the only key, where there is only one."""
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((each for each in self._keys if each.id == key_id), None)


def _key(given: dict[str, Any]) -> IssuerKey | None:
    kind, curve, own = given.get("kty"), given.get("crv"), given.get("alg")
    if not all(each is None or isinstance(each, str) for each in (kind, curve, own)):
        return None
    algorithms = ALGORITHMS.get((kind, curve), ())
    if own is not None:
        algorithms = tuple(each for each in algorithms if each == own)
    if given.get("use", "sig") != "sig" or not algorithms:
        return None
    try:
        return IssuerKey(given.get("kid"), PyJWK(given, algorithms[0]).key, algorithms)
    except (PyJWTError, ValueError, TypeError):
        return None


class TokenVerifier:
    """Decides on tokens."""

    def __init__(
        self, rules: TokenRules, keys: Callable[[], Keys | None], miss: Callable[[], None] = lambda: None
    ) -> None:
        """`keys`: those of the issuer; None: they are not known yet. `miss` is called where a token's key is not among
        them."""
        self._rules = rules
        self._keys = keys
        self._miss = miss

    def verify(self, token: str, now_ms: int) -> Token:
        """Return the token, where it counts. Raises AuthenticationFailed."""
        try:
            return self._verified(token, now_ms)
        except _Refused as refused:
            raise AuthenticationFailed(f"Authentication failed: {refused}.") from None

    def _verified(self, token: str, now_ms: int) -> Token:
        if len(token) > OAUTH_TOKEN_BYTES_MAX:
            raise _Refused("the token is too long")
        keys = self._keys()
        if keys is None:
            raise _Refused("tokens cannot be checked at the moment")
        try:
            header = jwt.get_unverified_header(token)
        except (PyJWTError, ValueError, RecursionError):
            raise _Refused("the token is malformed") from None
        if "crit" in header or "b64" in header:
            raise _Refused("the token needs an extension that is not known")
        key = keys.of(header.get("kid"))
        if key is None:
            self._miss()
            raise _Refused("the token's key is not known")
        if header.get("alg") not in key.algorithms:
            raise _Refused("the token's algorithm is not one of its key")
        return self._checked(self._claims(token, key, str(header["alg"])), now_ms)

    def _claims(self, token: str, key: IssuerKey, algorithm: str) -> dict[str, Any]:
        rules = self._rules
        options: Any = {
            "require": ["exp", "iat"],
            "verify_exp": False,  # these three by the given time
            "verify_nbf": False,
            "verify_iat": False,
            "verify_sub": False,
            "verify_jti": False,
            "verify_aud": bool(rules.audiences),
            "verify_iss": rules.issuer is not None,
        }
        try:
            return jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                options=options,
                audience=list(rules.audiences) or None,
                issuer=rules.issuer,
            )
        except InvalidSignatureError:
            raise _Refused("the token's signature is wrong") from None
        except InvalidAudienceError:
            raise _Refused("the token is for another audience") from None
        except InvalidIssuerError:
            raise _Refused("the token is of another issuer") from None
        except MissingRequiredClaimError as error:
            raise _Refused(f"the token has no claim {error.claim}") from None
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise _Refused("the token is malformed") from None

    def _checked(self, claims: Mapping[str, Any], now_ms: int) -> Token:
        rules = self._rules
        now, skew = now_ms / 1000, rules.clock_skew_s
        expires_at = _time(claims, "exp")
        if now >= expires_at + skew:
            raise _Refused("the token has expired")
        if max(_time(claims, "iat"), _time(claims, "nbf") if "nbf" in claims else 0.0) > now + skew:
            raise _Refused("the token is not valid yet")
        user = claims.get(rules.subject_claim)
        if not isinstance(user, str) or not user.strip() or len(user) > ACL_TEXT_CHARACTERS_MAX:
            raise _Refused(f"the token's claim {rules.subject_claim} is no name")
        scope = claims.get(rules.scope_claim, "")
        if not (isinstance(scope, str) or (isinstance(scope, list) and all(isinstance(each, str) for each in scope))):
            raise _Refused(f"the token's claim {rules.scope_claim} is no list of words")
        return Token(user, math.floor(expires_at * 1000))


def _time(claims: Mapping[str, Any], claim: str) -> float:
    value = claims[claim]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**40:
        raise _Refused(f"the token's claim {claim} is no time")
    return float(value)


class OauthExchange:
    """OAUTHBEARER: the token in one message. A refusal is told in a challenge, which the client answers (RFC 7628)."""

    def __init__(self, verifier: TokenVerifier, now_ms: Callable[[], int]) -> None:
        self._verifier = verifier
        self._now_ms = now_ms
        self._refusal: AuthenticationFailed | None = None
        self.user: str | None = None
        self.claimed = ""
        """A token that does not count has no name that one could show."""
        self.expires_at_ms: int | None = None

    def step(self, message: bytes) -> bytes:
        if self._refusal is not None:
            raise self._refusal
        authorization, token = _first(message)
        try:
            found = self._verifier.verify(token, self._now_ms())
        except AuthenticationFailed as refusal:
            self._refusal = refusal
            return INVALID
        if authorization not in (None, found.user):
            raise AuthenticationFailed("Authentication failed: a client may act for itself alone.")
        self.user = self.claimed = found.user
        self.expires_at_ms = found.expires_at_ms
        return b""


def _first(message: bytes) -> tuple[str | None, str]:
    """The authorization id, where there is one, and the token of a first message."""
    malformed = AuthenticationFailed("Authentication failed: the OAUTHBEARER message is malformed.")
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise malformed from None
    found = _FIRST.fullmatch(text)
    if found is None:
        raise malformed
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise malformed
    authorization = found["authorization"]
    if authorization is not None:
        authorization = authorization.replace("=2C", ",").replace("=3D", "=")
    return authorization, bearer["token"]
