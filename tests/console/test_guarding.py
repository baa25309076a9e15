"""The guard of the console: other hosts, other sites, and scripts of others get nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest
from starlette.requests import Request

from headrace.console.guarding import COOKIE, TOKEN, Tokens, form_of
from headrace.console.rendering import environment, lasted, number, parts, rate, size, static, when
from tests.console.asking import Viewer, console_of

TEMPLATES = sorted(environment().list_templates())


@pytest.fixture
async def viewer() -> AsyncIterator[Viewer]:
    async with console_of("127.0.0.1:1") as viewer:
        yield viewer


async def test_a_page_elsewhere_cannot_name_the_console_its_own(viewer: Viewer) -> None:
    assert (await viewer.get("/search", host="evil.example:8080")).status == 421
    assert (await viewer.get("/search", host="127.0.0.1.evil.example")).status == 421
    assert (await viewer.get("/search", host="127.0.0.1")).status == 200


async def test_every_answer_says_that_only_the_consoles_own_files_run(viewer: Viewer) -> None:
    for path in ("/search", "/nothing/here", static("console.js"), "/search/found?q=x"):
        policy = (await viewer.get(path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_has_a_script_a_style_or_a_handler_of_its_own(name: str) -> None:
    text = (files("headrace.console") / "templates" / name).read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:|https?://", text)


async def test_files_are_kept_for_ever_under_names_that_change_with_them(viewer: Viewer) -> None:
    found = await viewer.get(static("console.css"))
    assert (found.status, found.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in found.headers["cache-control"]
    assert (await viewer.get("/search")).headers["cache-control"] == "no-store"
    for path in ("/static/x/..%2fserving.py", "/static/x/.hidden", "/static/x/none.css", "/static/x/LICENSE"):
        assert (await viewer.get(path)).status == 404


async def test_a_file_that_there_is_not_is_refused_whatever_its_name(viewer: Viewer) -> None:
    for name in ("\0.css", "a" * 5_000, "a" * 5_000 + ".css", "é.js", ".."):
        assert (await viewer.get(f"/static/x/{name}")).status == 404, name[:10]


async def test_names_are_text_in_a_page(viewer: Viewer) -> None:
    found = await viewer.get("/search?q=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in found.body
    assert "<script>alert(1)</script>" in found.text


async def test_the_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(viewer: Viewer) -> None:
    cookie = (await viewer.get("/search")).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {each.strip() for each in cookie.split(";")}
    assert "set-cookie" not in (await viewer.get("/search")).headers


def asked(body: bytes = b"", **headers: str) -> Request:
    told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/", "query_string": b""}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({**scope, "server": ("127.0.0.1", 1), "headers": [(b"host", b"here:1"), *told]}, receive)


def test_a_form_counts_only_in_the_browser_and_on_the_page_that_it_was_made_for() -> None:
    tokens = Tokens()
    mine, other = tokens.token("mine"), Tokens().token("mine")
    cookie = f"{COOKIE}=mine"
    assert tokens.is_own(asked(cookie=cookie, origin="http://here:1", sec_fetch_site="same-origin"), {TOKEN: mine})
    assert tokens.is_own(asked(cookie=cookie), {TOKEN: mine})
    assert not tokens.is_own(asked(cookie=cookie), {TOKEN: other})
    assert not tokens.is_own(asked(cookie=cookie), {})
    assert not tokens.is_own(asked(), {TOKEN: mine})
    assert not tokens.is_own(asked(cookie=f"{COOKIE}=another"), {TOKEN: mine})
    assert not tokens.is_own(asked(cookie=cookie, origin="http://evil.example"), {TOKEN: mine})
    assert not tokens.is_own(asked(cookie=cookie, sec_fetch_site="cross-site"), {TOKEN: mine})


async def test_a_form_that_is_too_large_or_no_text_has_no_fields() -> None:
    assert await form_of(asked(b"a=1&b=&a=2")) == {"a": "2", "b": ""}
    assert await form_of(asked(b"a=" + b"1" * 100_000)) == {}
    assert await form_of(asked(b"a=\xff\xfe")) == {}


def test_figures_are_told_as_people_read_them() -> None:
    assert [size(each) for each in (None, 0, 999, 1000, 99_950, 1_234_567, 10**18)] == [
        "–",
        "0 B",
        "999 B",
        "1.0 KB",
        "100 KB",
        "1.2 MB",
        "1000 PB",
    ]
    assert [rate(each) for each in (None, 0.0, 0.42, 9.96, 12345.6)] == ["–", "0", "0.4", "10", "12,346"]
    assert (number(None), number(12345)) == ("–", "12,345")
    assert when(0) == '<time datetime="1970-01-01T00:00:00.000Z">1970-01-01 00:00:00 UTC</time>'
    assert (when(-1), when(10**18)) == ("–", str(10**18))
    assert lasted(0).endswith(" d")
    assert list(parts("do 'headrace up' now")) == [(False, "do "), (True, "headrace up"), (False, " now")]
