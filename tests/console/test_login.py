"""Logins: each viewer sees and does what the cluster lets its user, and nothing of another's session."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.routing import Route
from structlog.testing import capture_logs

from headrace.base.errors import UsageError
from headrace.base.limits import (
    CONSOLE_FAILED_LOGINS_MAX,
    CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX,
    CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX,
    CONSOLE_SESSION_MS_MAX,
    CONSOLE_SESSIONS_OF_A_USER_MAX,
)
from headrace.broker.boot import Broker
from headrace.console.application import application
from headrace.console.attempts import RETURN_S, Attempts
from headrace.console.guarding import COOKIE
from headrace.console.login import Login
from headrace.console.sessions import Sessions
from headrace.console.state import Console, Settings
from headrace.metadata.access.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.net.client.access import acls as access
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.net.client.security.settings import ClientSecurity
from tests.console.asking import Browser
from tests.sasl_broker import make_users, sasl_broker

GUARDED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
ADMIN: Final = ("admin", "of all")
ALICE: Final = ("alice", "wonder;land")
PLAIN: Final = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
IDLE_MS: Final = 60_000


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def as_(user: tuple[str, str]) -> ClientSecurity:
    return ClientSecurity.from_properties({**PLAIN, "sasl.username": user[0], "sasl.password": user[1]})


class Place:
    """A broker with ACLs, and a console before it."""

    def __init__(self, broker: Broker, sessions: Sessions, clock: Clock, browser: Browser) -> None:
        self.broker, self.sessions, self.clock, self.browser = broker, sessions, clock, browser
        self.bootstrap = str(broker.address)

    def another(self) -> Browser:
        """Somebody else's browser."""
        return Browser(self.browser.app)

    def console_of(self, browser: Browser) -> Console:
        """The console of this browser's session."""
        session = self.sessions.of(browser.cookies[COOKIE], uses=False)
        assert session is not None
        return session.console

    async def allow(self, *acls: str) -> None:
        """ACLs for alice, as `topic:orders:READ`."""
        made = []
        for each in acls:
            kind, name, operation = each.split(":")
            pattern = ResourcePattern(ResourceType[kind.upper()], PatternType.LITERAL, name)
            made.append(Acl(pattern, AclRule("User:alice", "*", AclOperation[operation], AclPermission.ALLOW)))
        async with Cluster(self.bootstrap, security=as_(ADMIN)) as cluster:
            await access.create(cluster, made)

    async def make(self, *topics: str) -> None:
        async with Cluster(self.bootstrap, security=as_(ADMIN)) as cluster:
            for name in topics:
                await Admin(cluster).create_topic(name, partitions=1, replication_factor=1)
                async with Producer(cluster) as producer:
                    await producer.send(name, value=b"secret of " + name.encode(), timestamp_ms=1)


@asynccontextmanager
async def place(directory: Path, *, properties: Mapping[str, str] = PLAIN, **settings: Any) -> AsyncIterator[Place]:
    clock = Clock()
    async with asyncio.timeout(150), sasl_broker(directory, GUARDED) as broker:
        login = Login.of(str(broker.address), properties)
        sessions = Sessions(login, Settings(**settings), idle_ms=IDLE_MS, clock=clock)
        app = application(sessions, ["127.0.0.1"])
        async with app.router.lifespan_context(app):
            yield Place(broker, sessions, clock, Browser(app))


async def test_nobody_passes_who_has_not_logged_in(tmp_path: Path) -> None:
    async with place(tmp_path, allows_changes=True) as world:
        await world.make("orders")
        for path in ("/", "/topics", "/topics/orders/records?at=oldest", "/nothing/here", "/quotas"):
            found = await world.browser.get(path)
            assert (found.status, found.headers["location"].startswith("/login")) == (303, True), path
        for path in ("/live/", "/live/topics", "/tail/topics/orders/records", "/charts/throughput", "/session"):
            found = await world.browser.get(path)
            assert (found.status, "orders" in found.body) == (401, False), path
        found = await world.browser.get("/topics", hx_request="true")
        assert (found.status, found.headers["hx-redirect"]) == (401, "/login")
        assert (await world.browser.post("/topic-delete", {"topic": "orders"})).status == 303
        assert (await world.browser.get("/export/topics/orders/records")).status == 303
        assert (await world.browser.get("/login")).status == 200


async def test_every_path_is_behind_the_door(tmp_path: Path) -> None:
    async with place(tmp_path, allows_changes=True) as world:
        routes = [route for route in world.browser.app.routes if isinstance(route, Route)]
        assert len(routes) > 60
        for route in routes:
            path = re.sub(r"{[^}]*}", "x", route.path)
            if path in ("/login", "/static/x/x", "/favicon.ico"):  # /login/oidc leads away where there is no provider
                continue
            for method in route.methods or ():
                asking = world.browser.post(path, {}) if method == "POST" else world.browser.get(path)
                assert (await asking).status in (303, 401), (method, path)


async def test_a_login_opens_the_page_that_was_asked_for_with_a_new_cookie(tmp_path: Path) -> None:
    async with place(tmp_path) as world:
        browser = world.browser
        await browser.get("/login")
        before = browser.cookies[COOKIE]
        done = await browser.log_in(*ADMIN, next_="/topics?q=o")
        assert (done.status, done.headers["location"]) == (303, "/topics?q=o")
        assert browser.cookies[COOKIE] != before, "a cookie from before a login opens nothing"
        told = {each.strip() for each in done.headers["set-cookie"].split(";")}
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= told
        assert "Secure" not in done.headers["set-cookie"]
        found = await browser.get("/topics")
        assert (found.status, "admin Log out" in found.text) == (200, True)
        assert ADMIN[1] not in found.body
        for away in ("//evil.example", "/\\evil.example", "https://evil.example/", "javascript:alert(1)", "/a\nb"):
            assert (await world.another().log_in(*ADMIN, next_=away)).headers["location"] == "/"
        secure = await world.another().log_in(*ADMIN, origin="https://127.0.0.1:8080")
        assert "Secure" in secure.headers["set-cookie"], "a proxy speaks TLS with the browser"


async def test_a_wrong_password_is_told_once_and_is_in_no_page_and_no_log(tmp_path: Path) -> None:
    async with place(tmp_path) as world:
        with capture_logs() as logs:
            found = await world.browser.log_in("alice", "not-it-at-all")
            assert (found.status, "does not let this user in" in found.text) == (401, True)
            nobody = await world.browser.log_in("nobody", "not-it-at-all")
            assert (nobody.status, nobody.text.replace("nobody", "alice")) == (401, found.text), "names are not told"
            for user, password in (("", "x"), ("alice", ""), ("a\0b", "x")):
                assert (await world.browser.log_in(user, password)).status == 401
            await world.browser.log_in(*ALICE)
        assert "not-it-at-all" not in found.body + repr(logs)
        assert ALICE[1] not in repr(logs)
        outcomes = [line["event"] for line in logs if line.get("user") == "alice" and "log" in line["event"]]
        assert outcomes[0] == "a login to the console has failed"
        assert outcomes[-1] == "a viewer has logged in to the console"
        form = {"user": "alice", "password": ALICE[1], "token": "x"}
        assert (await world.another().post("/login", form)).status == 403, "another site cannot log a browser in"


async def test_each_viewer_sees_what_the_acls_say_and_nothing_of_another(tmp_path: Path) -> None:
    async with place(tmp_path) as world:
        await world.make("orders", "payroll")
        await world.allow("topic:orders:READ", "topic:orders:DESCRIBE_CONFIGS")
        boss, alice = world.browser, world.another()
        await boss.log_in(*ADMIN)
        assert [row[0] for row in (await boss.get("/topics")).rows] == ["orders", "payroll"]
        await alice.log_in(*ALICE)
        assert [row[0] for row in (await alice.get("/topics")).rows] == ["orders"]
        assert "secret of orders" in (await alice.get("/topics/orders/records?at=oldest")).text
        assert "secret of payroll" in (await boss.get("/topics/payroll/records?at=oldest")).text
        for path in ("/topics/payroll", "/topics/payroll/records?at=oldest", "/export/topics/payroll/records"):
            assert (await alice.get(path)).status == 404, path
        assert "payroll" not in (await alice.get("/search?q=pay")).text.replace("“pay”", "")
        for path in ("/access", "/quotas", "/moves"):
            found = await alice.get(path)
            assert (found.status, "Your user may not see this" in found.text) == (403, True), path
            assert "logged in as alice" in found.text
            assert (await boss.get(path)).status == 200, path
        await world.console_of(alice).checked.settled(60_000)
        found = await alice.get("/")
        assert "Your user may not ask for the diagnosis" in found.text
        assert "1 topics" in found.text


async def test_a_change_needs_the_users_right_beside_the_consoles(tmp_path: Path) -> None:
    async with place(tmp_path, allows_changes=True) as world:
        await world.make("orders")
        await world.allow("topic:orders:DESCRIBE", "topic:orders:DESCRIBE_CONFIGS")
        boss, alice = world.browser, world.another()
        await boss.log_in(*ADMIN)
        await alice.log_in(*ALICE)
        refused = await alice.get("/topic-create?name=mine")
        assert (refused.status, "TOPIC_AUTHORIZATION_FAILED" in refused.text) == (403, True)
        form = await alice.form("/topic-delete?topic=orders", "Apply")
        with capture_logs() as logs:
            refused = await alice.post("/topic-delete", {**form, "typed": "orders"})
        assert (refused.status, "TOPIC_AUTHORIZATION_FAILED" in refused.text) == (403, True)
        (line,) = [each for each in logs if each["event"] == "a change by the console"]
        assert (line["user"], line["outcome"], line["plan"]) == ("alice", "forbidden", form["plan"])
        assert line["command"] == "headrace topic delete orders"
        form = await boss.form("/topic-delete?topic=orders", "Apply")
        stolen = await alice.post("/topic-delete", {**form, "typed": "orders"})
        assert stolen.status == 409, "a form counts in its own session"
        assert "Data go with this" in (await boss.post("/topic-delete", {**form, "typed": "order"})).text
        with capture_logs() as logs:
            assert (await boss.post("/topic-delete", {**form, "typed": "orders"})).status == 303
        assert [(each["user"], each["outcome"]) for each in logs if "outcome" in each] == [("admin", "done")]


async def test_sessions_end_by_themselves_by_their_viewer_and_with_their_streams(tmp_path: Path) -> None:
    async with place(tmp_path) as world:
        await world.make("orders")
        browser, other = world.browser, world.another()
        await browser.log_in(*ADMIN)
        await other.log_in(*ADMIN)
        async with browser.stream("/live/topics") as events:
            while "orders" not in await events.get():
                pass
            console = world.console_of(browser)
            assert (await browser.post("/logout", {"token": await token(browser)})).headers["location"] == "/login"
            assert console.closing.is_set(), "the stream ends"
        assert COOKIE not in browser.cookies
        assert (await browser.get("/topics")).status == 303
        assert (await other.get("/topics")).status == 200, "another session goes on"
        world.clock.now += IDLE_MS / 1000 - 1
        await other.get("/charts/throughput")  # an open page asks for that by itself
        world.clock.now += 2
        assert (await other.get("/topics")).status == 303, "it was not used"
        await other.log_in(*ADMIN)
        for _ in range(int(CONSOLE_SESSION_MS_MAX / IDLE_MS)):
            assert (await other.get("/search")).status == 200
            world.clock.now += IDLE_MS / 1000
        assert (await other.get("/session")).status == 204
        await other.get("/search")
        world.clock.now += 1
        assert (await other.get("/topics")).status == 303, "it was there for hours"


async def token(browser: Browser) -> str:
    """The token of the form that logs out."""
    page = (await browser.get("/")).body
    found = re.search(r'action="/logout">\s*<input type="hidden" name="token" value="(\w+)"', page)
    assert found is not None
    return found[1]


async def test_a_user_has_boundedly_many_sessions_and_the_oldest_goes(tmp_path: Path) -> None:
    async with place(tmp_path) as world:
        browsers = [world.another() for _ in range(CONSOLE_SESSIONS_OF_A_USER_MAX + 1)]
        for browser in browsers:
            world.clock.now += 1
            await browser.log_in(*ADMIN)
        assert (await browsers[0].get("/search")).status == 303
        assert all([(await each.get("/search")).status == 200 for each in browsers[1:]])


async def test_users_of_scram_log_in_by_what_the_listener_offers(tmp_path: Path) -> None:
    async with place(tmp_path, properties={"security.protocol": "SASL_PLAINTEXT"}) as world:
        await asyncio.to_thread(make_users, world.broker, bob="builder")
        assert (await world.browser.log_in("bob", "builder")).status == 303
        assert (await world.another().log_in("bob", "wrong")).status == 401
        assert (await world.another().log_in(*ALICE)).status == 401, "PLAIN goes over TLS alone, or where it is named"


async def test_too_many_wrong_passwords_are_not_tried_any_more(tmp_path: Path) -> None:
    async with place(tmp_path) as world:
        for _ in range(CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX):
            assert (await world.browser.log_in("alice", "wrong")).status == 401
        found = await world.browser.log_in(*ALICE)
        assert (found.status, "Too many logins have failed" in found.text) == (429, True)
        assert int(found.headers["retry-after"]) > 0
        assert (await world.another().log_in(*ADMIN)).status == 303, "others come in"


def test_failed_logins_are_bounded_by_name_by_address_and_together() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX):
        assert attempts.begin("1.1.1.1", "a") == 0
    assert attempts.begin("1.1.1.1", "a") > 0
    for number in range(CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX - CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX):
        assert attempts.begin("1.1.1.1", f"n{number}") == 0
    assert attempts.begin("1.1.1.1", "another") > 0
    for number in range(CONSOLE_FAILED_LOGINS_MAX - CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX):
        assert attempts.begin(f"2.2.{number}.1", "a") == 0
    wait = attempts.begin("3.3.3.3", "a")
    assert 0 < wait < RETURN_S
    clock.now += wait
    assert attempts.begin("3.3.3.3", "a") == 0
    clock.now += RETURN_S
    for _ in range(3 * CONSOLE_FAILED_LOGINS_MAX):
        assert attempts.begin("1.1.1.1", "a") == 0
        attempts.succeeded("1.1.1.1", "a")


def test_names_without_end_are_not_kept() -> None:
    attempts = Attempts(Clock())
    tracemalloc.start()
    try:
        for number in range(CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX):
            assert attempts.begin("1.1.1.1", f"{number}" + "x" * 1_000_000) == 0
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({}, "security.protocol is PLAINTEXT"),
        ({"security.protocol": "SSL"}, "security.protocol is SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "takes names and passwords"),
        ({"security.protocol": "SASL_SSL", "ssl.truststore.location": "/no/file"}, ""),
    ],
)
def test_a_login_that_nobody_could_pass_is_refused_at_the_start(properties: Mapping[str, str], says: str) -> None:
    if says:
        with pytest.raises(UsageError, match=says):
            Login.of("127.0.0.1:9092", properties)
    else:
        assert Login.of("127.0.0.1:9092", properties).mechanism == ""


def test_the_users_own_password_in_the_file_is_no_part_of_the_login() -> None:
    given = {**PLAIN, "sasl.username": "admin", "sasl.password": "of all"}
    assert "of all" not in repr(Login.of("127.0.0.1:9092", given))
