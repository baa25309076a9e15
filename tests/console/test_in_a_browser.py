"""The console as a person uses it, in Debian's Chromium. Only in the long tier, and where there is one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.properties import parse_properties
from headrace.security.jaas import read_jaas
from headrace.testing.processes import ProcessCluster
from tests.console.browser import WHY_NOT, Browser, browser
from tests.console.test_oidc import keys_of, needs_provider
from tests.console.test_pipelines import fill as fill_pipelines
from tests.interop.support.mixed import mixed
from tests.sasl_broker import sasl_broker
from tests.tiers import long_only
from tools.oidc_provider import identity_provider

AXE = Path(__file__).resolve().parents[2] / ".venv" / "axe" / "axe.min.js"
"""`make console-shots` brings it."""
ENTER = "\ue007"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A picture of one pixel."""
PAGES = (
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/records",
    "/topics/bank/records?at=oldest",
    "/groups",
    "/groups/billing",
    "/transactions",
    "/moves",
    "/history",
    "/access",
    "/quotas",
    "/quota-set?user=bob&key=producer_byte_rate&value=1048576",
    "/topic-create?name=new",
    "/topic-delete?topic=ledger",
    "/topic-config?topic=orders&key=retention.ms&value=60000",
    "/group-reset?group=billing&to=earliest",
    "/record-produce?topic=orders",
    "/records-delete?topic=orders&partition=0&before=5",
    "/broker-drain?broker=1",
    "/user-set?name=bob",
    "/acl-add?principal=User:bob&permission=Allow&operation=Read&resource=Topic&name=orders",
    "/pipelines",
    "/pipelines/all",
    "/pipelines/orders",
    "/nothing",
)
pytestmark = [long_only, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(600)]


@contextmanager
def console(bootstrap: str, *more: str) -> Iterator[str]:
    """A console that may change things, and its address."""
    command = [sys.executable, "-m", "headrace.cli.main", "console", "--allow-changes", *more]
    command += ["--listen", "127.0.0.1:0", "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1].rstrip("/")
        finally:
            process.terminate()


def fill(bootstrap: str) -> None:
    """Two topics, and a group that has read one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("orders", 6), NewTopic("ledger", 1, 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(500):
        producer.produce("orders", f'{{"number": {number}}}', key=f"key-{number % 50}")
    for number in range(20):
        producer.produce("ledger", b"%d" % number)
    producer.flush(60)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    read = 0
    while read < 500:
        read += len(consumer.consume(100, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()


def check_page(page: Browser) -> None:
    """It fits its width, and axe-core has nothing to say, where it is there."""
    wide = page.run("return document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{page.address} is {wide} pixels too wide"
    if AXE.exists():
        page.run(AXE.read_text(encoding="utf-8"))
        found = page.run_async(
            "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then((result) => "
            "arguments[0](result.violations.map((one) => `${one.id}: ${one.nodes[0].html}`)))"
        )
        assert found == [], page.address


def test_a_person_finds_resets_moves_and_sees_a_broker_die(tmp_path: Path) -> None:
    store = {"durable.url": f"file://{tmp_path}/store"}
    with ProcessCluster(3, configs=store, data=tmp_path / "brokers") as cluster:
        fill(cluster.bootstrap)
        pipelines = tmp_path / "pipelines"
        pipelines.mkdir()
        fill_pipelines(pipelines)
        (pipelines / "a.html").write_text(f'<img alt="Records a day" src="data:image/png;base64,{DOT}">')
        with console(cluster.bootstrap, "--pipelines", str(pipelines)) as address, browser() as page:
            with mixed(cluster.bootstrap, "bank"):
                page.open(f"{address}/topics")
                page.until_says("bank")
                for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
                    page.resize(width, 844)
                    page.prefer(scheme)
                    for path in PAGES:
                        page.open(address + path)
                        check_page(page)
                page.open(f"{address}/topics/bank/records?at=oldest")
                for state in ("committed", "aborted", "open"):
                    page.until_says(state, f"summary .tag.{state}")
            page.resize(1280, 844)
            page.open(f"{address}/")
            page.until_says("Live", "#state")
            page.until_says("3 of 3 live")
            page.press("/")
            page.type("#find", "orde")
            page.until_says("orders", "#found")
            page.press(ENTER)
            page.until_says("Where its records lie")
            page.open(f"{address}/topics/orders/records?key=key-7&at=oldest")
            page.click("details.record summary")
            page.until_says('"number": 7', "details[open]")
            page.open(f"{address}/topic-create?name=brand-new&partitions=2")
            page.click("button.danger")
            page.until_says("brand-new", "h1")
            page.open(f"{address}/group-reset?group=billing&to=earliest")
            page.type("input[name=typed]", "billing")
            page.click("button.danger")
            page.until_says("Lag", "main")
            page.until("return document.querySelector('main').innerText.includes('500 records')")
            page.open(f"{address}/pipelines")
            page.until_says("audit of all", "tbody")
            page.click("a[href='/pipelines/all']")
            page.until_says("orders-0: a gap")
            page.until("return document.querySelector('main img')?.naturalWidth > 0")
            target = move_target(page, address)
            page.open(f"{address}/move?topic=ledger&to={target}")
            page.click("button.danger")
            page.until_says("Writes waited")
            page.open(f"{address}/history")
            page.until_says("ledger-0")
            page.open(f"{address}/history/ledger/0")
            page.click("#proof button")
            page.until_says("All is as its catalog says")
            check_page(page)
            page.open(f"{address}/records-delete?topic=ledger&partition=0&before=5")
            page.type("input[name=typed]", "ledger")
            page.click("button.danger")
            page.until("return document.querySelector('#p0 td:nth-of-type(4)')?.innerText === '5'")
            page.open(f"{address}/")
            page.until_says("3 of 3 live")
            cluster.kill(3)
            page.until_says("2 of 3 live")
            page.until_says("broker down")
            check_page(page)
            severe = [each for each in page.complaints() if "favicon" not in each and "/nothing" not in each]
            assert severe == []


def move_target(page: Browser, address: str) -> int:
    """A broker that does not lead the topic."""
    page.open(f"{address}/topics/ledger")
    leader = int(page.text("tbody tr td"))
    return next(each for each in (1, 2) if each != leader)


def test_a_viewer_logs_in_and_may_do_what_its_user_may(tmp_path: Path) -> None:
    with secured(tmp_path) as (bootstrap, client):
        admin = password_in(client)
        options = ("--login", "--command-config", str(client))
        with console(bootstrap, *options) as address, browser() as page:
            for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
                page.resize(width, 844)
                page.prefer(scheme)
                page.open(f"{address}/login")
                check_page(page)
            page.open(f"{address}/topics")
            assert page.address.startswith(f"{address}/login")
            log_in(page, "admin", "wrong")
            page.until_says("does not let this user in")
            log_in(page, "admin", admin)
            page.until_says("Log out", ".who")
            assert page.address == f"{address}/topics"
            for width in (760, 1000, 1110, 1280, 390):
                page.resize(width, 844)
                check_page(page)
            page.open(f"{address}/user-set?name=bob&mechanism=SCRAM-SHA-512")
            page.type("input[name=password]", "builder")
            page.click("button.danger")
            page.until_says("bob", "tbody")
            page.open(f"{address}/topic-create?name=orders&partitions=1")
            page.click("button.danger")
            page.until_says("orders", "h1")
            acl = "principal=User:bob&permission=Allow&operation=Describe&resource=Topic&name=orders"
            page.open(f"{address}/acl-add?{acl}")
            page.click("button.danger")
            page.until_says("User:bob")
            check_page(page)
            page.click(".who button")
            page.until_says("Log in")
            log_in(page, "bob", "builder")
            page.until_says("bob", ".who")
            page.open(f"{address}/topic-delete?topic=orders")
            page.type("input[name=typed]", "orders")
            page.click("button.danger")
            page.until_says("TOPIC_AUTHORIZATION_FAILED")
            check_page(page)
            page.open(f"{address}/access")
            page.until_says("Your user may not see this")
            check_page(page)


@needs_provider
async def test_a_viewer_comes_back_from_a_provider_of_another_site(tmp_path: Path) -> None:
    back = "http://localhost/login/oidc/done"  # of a native client: at any port (RFC 8252)
    client = {"client_id": "console", "token_endpoint_auth_method": "none", "redirect_uris": [back]}
    with identity_provider([{**client, "application_type": "native"}]) as issuer:
        configs = {
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": await asyncio.to_thread(keys_of, issuer, tmp_path),
            "sasl.oauthbearer.expected.issuer": issuer,
            "sasl.oauthbearer.expected.audience": "kafka",
        }
        (tmp_path / "client").write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n")
        async with sasl_broker(tmp_path, configs) as broker:
            await asyncio.to_thread(come_back, str(broker.address), issuer, tmp_path / "client")


def come_back(bootstrap: str, issuer: str, client: Path) -> None:
    options = ["--oidc-issuer", issuer, "--oidc-client-id", "console", "--oidc-parameter", "resource=urn:kafka"]
    with console(bootstrap, *options, "--command-config", str(client)) as address, browser() as page:
        named = address.replace("127.0.0.1", "localhost")  # another site than the provider's
        page.resize(1280, 844)
        page.open(f"{named}/topics")
        check_page(page)
        page.click("a.primary")
        page.until_says("Sign-in")
        page.type("input[name=login]", "alice")
        page.type("input[name=password]", "any")
        page.click("button[type=submit]")
        page.until_says("Authorize")
        page.click("button[type=submit]")
        page.until_says("Log out", ".who")
        assert (page.address, "alice" in page.text(".who")) == (f"{named}/topics", True)
        assert page.run("return document.cookie") in ("", "theme="), "no script sees the session"
        page.click(".who button")
        page.until_says("Log in at 127.0.0.1")
        assert [each for each in page.complaints() if each.startswith(named) and "favicon" not in each] == []


def log_in(page: Browser, user: str, password: str) -> None:
    page.run("document.querySelector('input[name=user]').value = ''")
    page.type("input[name=user]", user)
    page.type("input[name=password]", password)
    page.click("form.login button")


def password_in(client: Path) -> str:
    """The administrator's."""
    found = parse_properties(client.read_text())
    return str(read_jaas(found["sasl.jaas.config"]).options["password"])


@contextmanager
def secured(directory: Path) -> Iterator[tuple[str, Path]]:
    """A broker of `headrace up --secure`: its address, and the administrator's client file."""
    command = [sys.executable, "-m", "headrace.cli.main", "up", "--secure", "--data", str(directory / "data")]
    command += ["--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            told = dict(process.stdout.readline().strip().split(" ", 1) for _ in range(2))
            yield told["ready"], Path(told["client"])
        finally:
            process.terminate()
