"""A token counts only if the issuer signed it for us, and it is its time. Tokens are made by PyJWT and by hand."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any, Final

import jwt
import pytest
from aiokafka.conn import OAuthAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.limits import OAUTH_TOKEN_BYTES_MAX
from headrace.security.oauth import INVALID, Keys, OauthExchange, TokenRules, TokenVerifier
from headrace.security.scram import AuthenticationFailed
from tests.tiers import examples
from tests.tokens import AUDIENCE, ISSUER, Issuer, claims, key_set

NOW: Final = 1_800_000_000
MINE: Final = Issuer()
OTHER: Final = Issuer("ES256", "two")
RULES: Final = TokenRules(audiences=("other", AUDIENCE), issuer=ISSUER)


def verifier(*issuers: Issuer, rules: TokenRules = RULES) -> TokenVerifier:
    keys = Keys.read(key_set(*(issuers or (MINE, OTHER))))
    return TokenVerifier(rules, lambda: keys)


def refused(token: str, words: str, by: TokenVerifier | None = None) -> None:
    with pytest.raises(AuthenticationFailed, match=words) as refusal:
        (by or verifier()).verify(token, NOW * 1000)
    assert "alice" not in str(refusal.value)


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES256", "ES384", "EdDSA"])
def test_a_token_that_the_issuer_signed(algorithm: str) -> None:
    issuer = Issuer(algorithm)
    found = verifier(issuer).verify(issuer.token(now=NOW), NOW * 1000)
    assert (found.user, found.expires_at_ms) == ("alice", (NOW + 3_600) * 1000)
    without_id = jwt.encode(claims(NOW), issuer.private, algorithm=algorithm)
    assert verifier(issuer).verify(without_id, NOW * 1000).user == "alice"
    refused(without_id, "key is not known", verifier(issuer, OTHER))


def test_claims_with_other_names() -> None:
    rules = TokenRules(audiences=(), issuer=None, subject_claim="upn", scope_claim="scp")
    token = MINE.token(now=NOW, upn="bob", scp=["a", "b"], aud=["x", "y"], iss="whoever", sub=None)
    assert verifier(rules=rules).verify(token, NOW * 1000).user == "bob"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aud": "somebody-else"}, "another audience"),
        ({"aud": ["a", "b"]}, "another audience"),
        ({"aud": None}, "no claim aud"),
        ({"aud": ""}, "another audience|no claim aud"),
        ({"iss": "https://issuer.test.evil.test"}, "another issuer"),
        ({"iss": "https://issuer"}, "another issuer"),
        ({"iss": None}, "no claim iss"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": 1e300}, "no time"),
        ({"exp": float("inf")}, "no time"),
        ({"exp": float("nan")}, "no time"),
        ({"iat": None}, "no claim iat"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": [1]}, "no time"),
        ({"sub": None}, "claim sub is no name"),
        ({"sub": ""}, "claim sub is no name"),
        ({"sub": "  "}, "claim sub is no name"),
        ({"sub": ["alice"]}, "claim sub is no name"),
        ({"sub": "a" * 1_025}, "claim sub is no name"),
        ({"scope": 5}, "claim scope"),
        ({"scope": [5]}, "claim scope"),
    ],
)
def test_a_token_with_other_claims(changes: dict[str, Any], words: str) -> None:
    refused(MINE.token(now=NOW, **changes), words)


def test_clocks_may_differ_a_little() -> None:
    late: dict[str, Any] = {"exp": NOW - 29}
    for changes in (late, {"iat": NOW + 29}, {"nbf": NOW + 30}):
        assert verifier().verify(MINE.token(now=NOW, **changes), NOW * 1000).user == "alice"


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_token_that_nobody_signed() -> None:
    for name in ("none", "None", "NONE", "", None):
        refused(f"{part({'alg': name, 'kid': 'one'})}.{part(claims(NOW))}.", "algorithm")
    refused(f"{part({'kid': 'one'})}.{part(claims(NOW))}.", "algorithm")


def test_a_token_that_is_signed_with_the_public_key() -> None:
    """The public key as a shared secret, in the forms in which a careless verifier would take it."""
    issuer = Issuer("RS256")
    for secret in (json.dumps(issuer.public).encode(), b""):
        signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims(NOW))}"
        signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), "sha256")).rstrip(b"=").decode()
        refused(f"{signed}.{signature}", "algorithm", verifier(issuer))


def test_a_key_of_the_wrong_kind_or_of_somebody_else() -> None:
    stranger = Issuer("ES256", "one")
    refused(stranger.token(now=NOW), "signature is wrong")
    refused(MINE.token(now=NOW, headers={"kid": "two"}), "signature is wrong")
    refused(MINE.token(now=NOW, headers={"kid": "three"}), "key is not known")
    rsa = Issuer("PS256", "one")
    rsa.public["alg"] = "RS256"
    refused(rsa.token(now=NOW), "algorithm", verifier(rsa))


def test_a_key_in_the_token_counts_for_nothing() -> None:
    stranger = Issuer("ES256", "five")
    headers = {"jwk": stranger.public, "jku": "https://evil.test/keys", "x5u": "https://evil.test/x"}
    refused(stranger.token(now=NOW, headers=headers), "key is not known")
    refused(stranger.token(now=NOW, headers={**headers, "kid": "one"}), "signature is wrong")
    refused(MINE.token(now=NOW, headers={"crit": ["exp"]}), "extension|malformed")


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "é.b.c",
        f"{part([])}.{part({})}.",
        f"{part('x')}.{part({})}.",
        "[" * 100 + ".b.c",
        base64.urlsafe_b64encode(b"[" * 20_000).rstrip(b"=").decode() + ".e30.e30",
        base64.urlsafe_b64encode(b'{"alg":' + b"[" * 20_000).rstrip(b"=").decode() + ".e30.e30",
    ],
)
def test_a_malformed_token(token: str) -> None:
    refused(token, "malformed|algorithm|key is not known")


def test_a_signed_token_that_holds_nonsense() -> None:
    for payload in (b"[1]", b"null", b"\xff", b"{", b"[" * 15_000):
        token = jwt.PyJWS().encode(payload, MINE.private, algorithm="ES256", headers={"kid": "one"})
        refused(token, "malformed")


def test_a_token_is_as_long_as_it_may_be() -> None:
    refused("a" * (OAUTH_TOKEN_BYTES_MAX + 1), "too long")
    assert verifier().verify(MINE.token(now=NOW, groups=["g" * 100] * 150), NOW * 1000).user == "alice"


@settings(max_examples=examples(100))
@given(st.data())
def test_a_changed_token_counts_no_more(data: st.DataObject) -> None:
    token = MINE.token(now=NOW)
    at = data.draw(st.integers(0, len(token) - 1))
    changed = token[:at] + data.draw(st.sampled_from("abcXYZ019-_.")) + token[at + 1 :]
    if changed != token:
        with pytest.raises(AuthenticationFailed):
            verifier().verify(changed, NOW * 1000)


@given(st.text(max_size=80))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed):
        verifier().verify(text, NOW * 1000)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b'{"keys": 5}', b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b"[" * 9_999],
)
def test_keys_that_sign_nothing(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"it has no key|it is no JSON"):
        Keys.read(text)


def test_keys_for_other_uses_are_left_out() -> None:
    for changes in ({"use": "enc"}, {"kty": "oct", "k": "AAAA"}, {"kty": "what"}, {"x": "!"}, {"crv": "P-1"}):
        odd = Issuer("ES256", "odd")
        odd.public |= changes
        keys = Keys.read(key_set(odd, MINE))
        assert keys.of("odd") is None
        assert keys.of("one") is not None


def test_keys_that_are_not_known_yet_or_no_more() -> None:
    refused(MINE.token(now=NOW), "at the moment", TokenVerifier(RULES, lambda: None))
    missed: list[int] = []
    keys = Keys.read(key_set(OTHER))
    refused(MINE.token(now=NOW), "not known", TokenVerifier(RULES, lambda: keys, lambda: missed.append(1)))
    assert missed == [1]


def exchange() -> OauthExchange:
    return OauthExchange(verifier(), lambda: NOW * 1000)


class OfToken:
    """As aiokafka asks for it."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return {"traceId": "123"}


async def test_aiokafka_s_message() -> None:
    authenticator: Any = OAuthAuthenticator(sasl_oauth_token_provider=OfToken(MINE.token(now=NOW)))
    message, _ = await authenticator.step(None)
    ours = exchange()
    assert ours.step(message) == b""
    assert (ours.user, ours.expires_at_ms) == ("alice", (NOW + 3_600) * 1000)


def test_a_refusal_is_a_challenge_first() -> None:
    ours = exchange()
    assert ours.step(f"n,,\x01auth=Bearer {MINE.token(now=NOW, aud='x')}\x01\x01".encode()) == INVALID
    with pytest.raises(AuthenticationFailed, match="another audience"):
        ours.step(b"\x01")
    assert ours.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic TOKEN\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer TOKEN\x01",
        b"p=x,,\x01auth=Bearer TOKEN\x01\x01",
        b"n,a=bob,\x01auth=Bearer TOKEN\x01\x01",
        b"n,,\x01auth=Bearer TOKEN\xff\x01\x01",
        b"\x01",
    ],
)
def test_a_malformed_message(message: bytes) -> None:
    ours = exchange()
    with pytest.raises(AuthenticationFailed):
        ours.step(message.replace(b"TOKEN", MINE.token(now=NOW).encode()))
    assert ours.user is None
