"""Logins at an identity provider of others: a viewer's own token reaches the brokers, and their ACLs decide."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urljoin, urlsplit

import httpx2
import jwt
import pytest
from joserfc.jwk import KeySet
from structlog.testing import capture_logs

from headrace.base.errors import UsageError
from headrace.base.limits import CONSOLE_OIDC_LOGIN_MS_MAX
from headrace.console.application import application
from headrace.console.door import OLD_LOGIN, RETURN_COOKIE
from headrace.console.guarding import COOKIE
from headrace.console.login import NO_TOKENS, TOKEN_REFUSED, Login
from headrace.console.oidc import Begun, Provider, ProviderError, Registration
from headrace.console.returning import Returns
from headrace.console.serving import provider_of
from headrace.console.sessions import Sessions
from headrace.console.state import Settings
from tests.console.asking import HOST, Answer, Browser
from tests.console.test_login import GUARDED, IDLE_MS, Clock, Place
from tests.sasl_broker import sasl_broker
from tests.tiers import long_only
from tests.tokens import AUDIENCE, ISSUER, Issuer, key_set
from tools.oidc_provider import identity_provider, missing

SECRET: Final = "of-the-console-alone-0123456789abcdef"
RETURN: Final = f"http://{HOST}/login/oidc/done"
CLIENTS: Final = (
    {"client_id": "console", "client_secret": SECRET, "redirect_uris": [RETURN]},
    {"client_id": "public", "token_endpoint_auth_method": "none", "redirect_uris": [RETURN]},
)
RESOURCE: Final = (("resource", "urn:kafka"),)
TOKENS: Final = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
needs_provider: Final = pytest.mark.skipif(missing() is not None, reason=f"no identity provider: {missing()}")


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with identity_provider(CLIENTS) as found:
        yield found


def keys_of(issuer: str, directory: Path) -> str:
    """A file with its keys: a broker reads it before it starts."""
    path = directory / "keys.json"
    path.write_text(httpx2.get(f"{issuer}/jwks").raise_for_status().text)
    return f"file://{path}"


@asynccontextmanager
async def place(
    directory: Path, issuer: str, *, audience: str = "kafka", mechanisms: str = "PLAIN,OAUTHBEARER", **known: Any
) -> AsyncIterator[Place]:
    """A broker with ACLs that takes tokens of this issuer, and a console whose viewers log in there."""
    configs = {
        **GUARDED,
        "sasl.enabled.mechanisms": mechanisms,
        "sasl.oauthbearer.jwks.endpoint.url": await asyncio.to_thread(keys_of, issuer, directory),
        "sasl.oauthbearer.expected.issuer": issuer,
        "sasl.oauthbearer.expected.audience": audience,
    }
    clock = Clock()
    chosen = {"client_id": "console", "client_secret": SECRET, "parameters": RESOURCE, **known}
    provider = Provider(Registration(issuer=issuer, **chosen))
    async with asyncio.timeout(150), sasl_broker(directory, configs) as broker:
        login = Login.of(str(broker.address), TOKENS, takes_passwords=False, provider=provider)
        sessions = Sessions(login, Settings(), idle_ms=IDLE_MS, clock=clock)
        app = application(sessions, ["127.0.0.1"])
        async with app.router.lifespan_context(app):
            yield Place(broker, sessions, clock, Browser(app))


async def there(way: str, user: str) -> str:
    """Log in at the provider as a person would. Returns the console's path that the browser is sent to."""
    async with httpx2.AsyncClient() as client:
        answer = await client.get(way)
        for _ in range(20):
            if answer.is_redirect:
                place = urljoin(str(answer.url), answer.headers["location"])
                if place.startswith(f"http://{HOST}/"):
                    return place.removeprefix(f"http://{HOST}")
                answer = await client.get(place)
                continue
            answer.raise_for_status()
            action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            assert action is not None, answer.text
            assert prompt is not None, answer.text
            form = {"prompt": prompt[1], "login": user, "password": "any"}
            answer = await client.post(urljoin(str(answer.url), action[1]), data=form)
    raise AssertionError("the provider does not send the browser back")


async def log_in(browser: Browser, user: str, next_: str = "") -> Answer:
    begun = await browser.get(f"/login/oidc?next={quote(next_, safe='')}")
    assert begun.status == 303, begun.text
    return await browser.get(await there(begun.headers["location"], user))


@needs_provider
async def test_a_viewer_sees_what_the_acls_let_the_user_of_the_token(
    tmp_path: Path, issuer: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with place(tmp_path, issuer) as world:
        await world.make("orders", "payroll")
        await world.allow("topic:orders:READ", "topic:orders:DESCRIBE_CONFIGS")
        browser = world.browser
        form = await browser.get("/login?next=%2Ftopics")
        assert ('href="/login/oidc?next=%2Ftopics"' in form.body, "password" in form.body) == (True, False)
        before = browser.cookies[COOKIE]
        with capture_logs() as logs:
            done = await log_in(browser, "alice", "/topics?q=r")
        assert (done.status, 'content="0;url=/topics?q=r"' in done.body) == (200, True)
        assert browser.cookies[COOKIE] != before, "a cookie from before a login opens nothing"
        assert RETURN_COOKIE not in browser.cookies
        lines = [each for each in logs if each["event"] == "a viewer has logged in to the console"]
        assert [(each["user"], each["by"]) for each in lines] == [("alice", "127.0.0.1")]
        found = await browser.get("/topics")
        assert ([row[0] for row in found.rows], "alice Log out" in found.text) == (["orders"], True)
        assert "secret of orders" in (await browser.get("/topics/orders/records?at=oldest")).text
        assert (await browser.get("/topics/payroll")).status == 404
        assert (await browser.get("/access")).status == 403
        console = world.console_of(browser)
        told = "".join((done.body, found.body, repr(logs), caplog.text, repr(console.reach)))
        assert SECRET not in told
        assert "eyJ" not in told, "a token is in no page and no log"


@needs_provider
async def test_a_session_ends_with_its_token(tmp_path: Path, issuer: str) -> None:
    async with place(tmp_path, issuer) as world:
        await log_in(world.browser, "alice")
        assert (await world.browser.get("/search")).status == 200
        session = world.sessions.of(world.browser.cookies[COOKIE], uses=True)
        assert session is not None
        left_s = session.ends_s - world.clock.now
        assert 3_000 < left_s <= 3_600, "the provider gives tokens for an hour"
        while world.clock.now + IDLE_MS / 1000 < session.ends_s:
            world.clock.now += IDLE_MS / 1000
            assert (await world.browser.get("/search")).status == 200
        world.clock.now = session.ends_s
        assert (await world.browser.get("/search")).status == 303
        assert session.console.closing.is_set(), "its streams end, too"


@long_only
@needs_provider
async def test_id_tokens_are_passed_on_where_access_tokens_are_no_signed_ones(tmp_path: Path, issuer: str) -> None:
    known: dict[str, Any] = {"client_id": "public", "client_secret": "", "parameters": (), "audience": "public"}
    async with place(tmp_path, issuer, **known) as world:
        found = await log_in(world.browser, "alice")
        assert (found.status, "no signed ones (JWT)" in found.text) == (502, True)
        assert "--oidc-token id" in found.text
    (tmp_path / "again").mkdir()
    async with place(tmp_path / "again", issuer, passed="id", **known) as world:
        await log_in(world.browser, "bob")
        assert "bob Log out" in (await world.browser.get("/topics")).text


@needs_provider
async def test_brokers_that_take_no_token_or_not_this_one_are_told_in_one_sentence(tmp_path: Path, issuer: str) -> None:
    async with place(tmp_path, issuer, mechanisms="PLAIN") as world:
        found = await log_in(world.browser, "alice")
        assert (found.status, NO_TOKENS in found.text) == (502, True)
        assert (await world.browser.get("/topics")).status == 303
    (tmp_path / "again").mkdir()
    async with place(tmp_path / "again", issuer, audience="another") as world:
        found = await log_in(world.browser, "alice")
        assert (found.status, TOKEN_REFUSED in found.text) == (401, True)
        assert (await world.browser.get("/topics")).status == 303


@needs_provider
async def test_a_login_counts_once_and_only_in_the_browser_that_began_it(tmp_path: Path, issuer: str) -> None:
    async with place(tmp_path, issuer) as world:
        begun = await world.browser.get("/login/oidc")
        told = {each.strip() for each in begun.headers["set-cookie"].split(";")}
        assert {"HttpOnly", "SameSite=lax", "Path=/login/oidc"} <= told
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert (asked["code_challenge_method"], asked["response_type"]) == (["S256"], ["code"])
        back = await there(begun.headers["location"], "alice")
        victim = world.another()
        await victim.get("/login/oidc")
        stolen = await victim.get(back)
        assert (stolen.status, OLD_LOGIN in stolen.text) == (403, True)
        assert (await world.another().get(back)).status == 403
        cookie = dict(world.browser.cookies)
        assert (await world.browser.get(back)).status == 200
        replayed = Browser(world.browser.app, cookies=cookie)
        found = await replayed.get(back)
        assert (found.status, "gives no token (invalid_grant)" in found.text) == (502, True)
        refused = await world.another().get("/login/oidc")
        state = parse_qs(urlsplit(refused.headers["location"]).query)["state"][0]
        assert (await world.another().get(f"/login/oidc/done?state={state}&code=x")).status == 403


@needs_provider
async def test_a_provider_that_lets_nobody_in_and_one_that_is_away_are_told(tmp_path: Path, issuer: str) -> None:
    async with place(tmp_path, issuer) as world:
        begun = await world.browser.get("/login/oidc")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        found = await world.browser.get(f"/login/oidc/done?state={state}&error=access_denied&error_description=<b>")
        assert (found.status, "lets nobody in here (access_denied)" in found.text) == (401, True)
        assert "<b>" not in html.unescape(found.body.split("<main")[1])
    for wrong, says in (("http://127.0.0.1:1", "does not answer"), (f"{issuer}/", "calls itself")):
        provider = Provider(Registration(issuer=wrong, client_id="console"))
        with pytest.raises(ProviderError, match=says):
            await provider.way(RETURN, Begun("s", "n", "v" * 43))


def test_a_login_comes_back_to_its_page_until_it_is_too_old() -> None:
    clock = Clock()
    returns = Returns(clock)
    cookie, begun = returns.begin("/topics?q=ä")
    assert (len(begun.verifier), len(set(begun))) == (43, 3), "RFC 7636 wants 43 characters"
    assert returns.back(cookie, begun.state) == ("/topics?q=ä", begun)
    for other, state in ((cookie, begun.nonce), (f"{cookie}x", begun.state), ("", begun.state), (cookie, "")):
        assert returns.back(other, state) is None
    assert Returns(clock).back(cookie, begun.state) is None, "of another console"
    clock.now += CONSOLE_OIDC_LOGIN_MS_MAX / 1000
    assert returns.back(cookie, begun.state) is not None
    clock.now += 1
    assert returns.back(cookie, begun.state) is None


def checking(key: Issuer) -> Provider:
    """A provider whose keys are known."""
    provider = Provider(Registration(issuer=ISSUER, client_id=AUDIENCE))
    provider._keys = time.time(), KeySet.import_key_set(json.loads(key_set(key)))
    return provider


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384"])
async def test_an_id_token_counts_by_each_kind_of_key(algorithm: str) -> None:
    key = Issuer(algorithm)
    claims = await checking(key)._checked(key.token(nonce="n"), "access", "n")
    assert claims["sub"] == "alice"


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "other"},
        {"nonce": None},
        {"iss": "https://other.test"},
        {"aud": "other"},
        {"aud": ["other", "more"]},
        {"aud": None},
        {"sub": None},
        {"exp": None},
        {"exp": 1_000},
        {"iat": time.time() + 3_600},
        {"nbf": time.time() + 3_600},
        {"azp": "other"},
        {"at_hash": "AAAA"},
        {"aud": [AUDIENCE, "other"], "azp": None},
    ],
)
async def test_an_id_token_with_another_claim_does_not_count(changes: Mapping[str, Any]) -> None:
    key = Issuer()
    with pytest.raises(ProviderError, match="does not count"):
        await checking(key)._checked(key.token(**{"nonce": "n", **changes}), "access", "n")


async def test_an_id_token_that_the_provider_has_not_signed_does_not_count() -> None:
    key, other = Issuer(), Issuer()
    header, body, signature = key.token(nonce="n").split(".")
    claims = jwt.decode(f"{header}.{body}.{signature}", options={"verify_signature": False})
    unsigned = jwt.encode(claims, "", algorithm="none", headers={"kid": "one"})
    shared = jwt.encode(claims, key.public["x"] * 2, algorithm="HS256", headers={"kid": "one"})
    provider = checking(key)
    for token in (other.token(nonce="n"), unsigned, shared, f"{header}.{body}.", f"{header}.{body}", "", "a.b.c"):
        with pytest.raises(ProviderError, match="does not count"):
            await provider._checked(token, "access", "n")
    unknown = Issuer(key_id="two")
    with pytest.raises(ProviderError, match="does not count"):
        await provider._checked(unknown.token(nonce="n"), "access", "n")


@pytest.mark.parametrize(
    ("properties", "known", "says"),
    [
        ({"security.protocol": "SSL"}, {}, "--oidc-issuer asks viewers .* security.protocol is SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, {}, "sasl.mechanism=PLAIN is not for these"),
        ({"security.protocol": "SASL_PLAINTEXT"}, {}, "in clear text by SASL_PLAINTEXT"),
        (TOKENS, {"issuer": "http://issuer.test"}, "--oidc-issuer has to be https"),
        (TOKENS, {"issuer": "https://user:secret@issuer.test"}, "--oidc-issuer has to be https"),
        (TOKENS, {"client_id": ""}, "needs --oidc-client-id"),
        (TOKENS, {"passed": "refresh"}, "--oidc-token 'refresh' is unknown"),
        (TOKENS, {"parameters": (("state", "x"),)}, "--oidc-parameter state is the console's own"),
    ],
)
def test_a_login_that_could_not_be_is_refused_at_the_start(
    properties: Mapping[str, str], known: Mapping[str, Any], says: str
) -> None:
    def begin() -> None:
        provider = Provider(Registration(**{"issuer": ISSUER, "client_id": "console", **known}))
        Login.of("127.0.0.1:9092", properties, takes_passwords=False, provider=provider)

    with pytest.raises(UsageError, match=says):
        begin()


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headrace.console.oidc")
    monkeypatch.setitem(sys.modules, "authlib.integrations.httpx_client", None)
    with pytest.raises(UsageError, match=r"needs the package authlib.* pip install 'headrace\[console\]'"):
        provider_of(ISSUER, "c", client_secret="", scopes=(), passed="id", parameters={}, properties={})
