"""Charts of more than an hour: a real Prometheus where there is one, and a server with its API."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import UsageError
from headrace.base.limits import CONSOLE_PAST_BYTES_MAX, CONSOLE_PAST_KEPT_MS
from headrace.cli.main import main
from headrace.console.charts.prometheus import WRITTEN, Prometheus, Source
from headrace.console.charts.ranges import SPANS
from headrace.console.charts.routes import BARRED
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.net.pem import PemStores
from headrace.testing import BrokerThread, RunningBroker
from tests.certificates import Authority
from tests.console.asking import Viewer, console_of, fresh
from tests.console.browser import WHY_NOT, browser
from tests.console.test_in_a_browser import check_page, console
from tests.console.test_login import ALICE, Clock, place
from tests.tiers import long_only
from tools.servers.server_process import port_held_for

NOW_S: Final = 2_000_000_000
SECRET: Final = "open-sesame"
DAY: Final = SPANS["24h"]
HOSTILE: Final = '"><script>alert(1)</script>'


class Server:
    """It takes range queries as Prometheus does, and keeps them. `answers` is the body of each next answer."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        """Paths with their queries, and headers."""
        self.status = 200
        self.body: bytes | None = None
        """None: what Prometheus would answer, a record for each second since the begin."""
        self.more_headers: dict[str, str] = {}
        self.came = threading.Event()
        """Set when somebody has asked."""
        self.speaks = threading.Event()
        """Where it is not set, nothing is answered."""
        self.speaks.set()
        known = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                known.came.set()
                known.speaks.wait(60)
                body = known.matrix(self.path) if known.body is None else known.body
                self.send_response(known.status)
                for name, value in {"content-length": str(len(body)), **known.more_headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.port = self._server.server_port

    @property
    def url(self) -> str:
        return f"http://reader:{SECRET}@127.0.0.1:{self.port}/behind/a/proxy/"

    def matrix(self, path: str) -> bytes:
        """A point in each step but the third, of which the fourth is no number."""
        asked = self.asked_for(path)
        start, end, step = (int(asked[name]) for name in ("start", "end", "step"))
        values = [[at, "NaN" if at == start + 3 * step else str(at - start)] for at in range(start, end + 1, step)]
        del values[2]
        result = [{"metric": {HOSTILE: HOSTILE}, "values": values}]
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    @staticmethod
    def asked_for(path: str) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}

    def close(self) -> None:
        self.speaks.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    try:
        yield made
    finally:
        made.close()


def at(url: str, clock: Clock | None = None, **more: Any) -> Prometheus:
    settings: dict[str, Any] = {} if clock is None else {"clock": clock}
    return Prometheus(Source.of(url, {"job": 'head"race'}), wall_clock=lambda: NOW_S + 0.5, **settings, **more)


async def chart(viewer: Viewer, query: str = "?range=24h") -> Any:
    found = await viewer.get(f"/charts/throughput{query}")
    assert found.status == 200
    return json.loads(found.body)


async def test_prometheus_is_asked_as_its_api_says_and_gaps_stay_gaps(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found = at(server.url)
    with capture_logs() as logs:
        past = await found.written(DAY)
    (path, headers) = server.asked[0]
    assert path.startswith("/behind/a/proxy/api/v1/query_range?")
    assert server.asked_for(path) == {
        "query": f'sum(rate({WRITTEN}{{job="head\\"race"}}[300s]))',
        "start": str(NOW_S - 86_400),
        "end": str(NOW_S),
        "step": "240",
    }
    assert headers["authorization"] == "Basic cmVhZGVyOm9wZW4tc2VzYW1l"
    times, values = past.data
    assert (len(times), times[0], times[-1]) == (361, NOW_S - 86_400, NOW_S)
    assert values[:6] == [0, 240, None, None, 960, 1200]
    assert values[-1] == 86_400
    everything = f"{found!r} {found._source!r} {vars(found)} {logs} {caplog.text}"
    assert (SECRET in everything, "reader" in everything, "cmVhZGVy" in everything) == (False, False, False)


async def test_all_who_look_cost_one_query_until_it_is_old(server: Server) -> None:
    clock = Clock()
    found = at(server.url, clock)
    server.speaks.clear()
    looks = [asyncio.create_task(found.written(DAY)) for _ in range(20)]
    assert await asyncio.to_thread(server.came.wait, 60)
    looks[0].cancel()  # its viewer has left, and the others wait on
    server.speaks.set()
    pasts = await asyncio.gather(*looks[1:])
    assert (len(server.asked), {id(past) for past in pasts}) == (1, {id(pasts[0])})
    clock.now += CONSOLE_PAST_KEPT_MS / 1000 - 1
    await found.written(DAY)
    assert len(server.asked) == 1
    await found.written(SPANS["7d"])
    assert len(server.asked) == 2
    clock.now += 1
    await found.written(DAY)
    assert len(server.asked) == 3


REFUSALS: Final = {
    "a login is wrong": (401, b"no", "Prometheus answers 401, and no figures"),
    "an error": (
        422,
        json.dumps({"status": "error", "errorType": HOSTILE, "error": HOSTILE}).encode(),
        "Prometheus answers 422, and no figures",
    ),
    "it is another server": (200, b"<html>", "Prometheus answers with something else than figures"),
    "too much": (200, b" " * (CONSOLE_PAST_BYTES_MAX + 1), "Prometheus answers with more than was asked for"),
    "no such series": (
        200,
        b'{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        f"Prometheus has no {WRITTEN} of this time (it has to scrape each metrics.listen)",
    ),
    "no sum": (
        200,
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "1"]}]}}',
        "Prometheus answers with something else than figures",
    ),
    "no list": (200, b"[" * 100_000, "Prometheus answers with something else than figures"),
    "wild numbers": (
        200,
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"values": [[1e999, "1"], [NaN, "1"]]}]}}',
        "Prometheus answers with something else than figures",
    ),
    "other times": (
        200,
        b'{"status": "success", "data": {"resultType": "matrix", "result": [{"values": [[1, "1"], [9e300, "1"]]}]}}',
        f"Prometheus has no {WRITTEN} of this time (it has to scrape each metrics.listen)",
    ),
}


async def test_one_sentence_says_what_is_wrong_with_prometheus_and_the_hour_stays(
    headrace_broker: RunningBroker, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    async with console_of(headrace_broker.bootstrap, prometheus=at(server.url, clock)) as viewer:
        await viewer.console.seen.settled(60_000)
        await fresh(viewer.console.seen)
        assert (await chart(viewer))["data"][1][-1] == 86_400
        assert "instead" not in await chart(viewer)
        for why, (status, body, says) in REFUSALS.items():
            server.status, server.body = status, body
            clock.now += CONSOLE_PAST_KEPT_MS
            told = await chart(viewer)
            assert told["instead"] == f"{says}, so this is the last hour.", why
            assert told["names"] == ["written", "committed by groups"], why
            assert len(told["data"][0]) >= 1, why
            assert (HOSTILE in str(told), SECRET in str(told)) == (False, False), why
        asked = len(server.asked)
        server.status, server.more_headers = 302, {"location": f"http://127.0.0.1:{server.port}/elsewhere"}
        clock.now += CONSOLE_PAST_KEPT_MS
        assert "answers 302" in (await chart(viewer))["instead"]
        assert len(server.asked) == asked + 1, "a password goes to nobody else"
        page = await viewer.get("/?range=24h")
        assert "Records per second, the last 24 hours" in page.text
        assert 'data-chart="/charts/throughput?range=24h"' in page.body
        assert (SECRET in page.body, str(server.port) in page.body) == (False, False)
    assert SECRET not in caplog.text


async def test_a_prometheus_that_is_silent_or_away_is_waited_for_no_longer_than_it_may(server: Server) -> None:
    server.speaks.clear()
    past = await at(server.url, ms_max=50).written(DAY)
    assert (past.data, past.missing) == ([], "Prometheus does not answer within 0.05 seconds")
    port = port_held_for(test_a_prometheus_that_is_silent_or_away_is_waited_for_no_longer_than_it_may)
    past = await at(f"http://127.0.0.1:{port}").written(DAY)
    assert past.missing == "Prometheus cannot be reached"


async def test_without_prometheus_there_is_the_hour_alone(headrace_broker: RunningBroker) -> None:
    async with console_of(headrace_broker.bootstrap) as viewer:
        await viewer.console.seen.settled(60_000)
        page = await viewer.get("/?range=24h")
        assert "Records per second, the last hour" in page.text
        assert ("range=24h#" in page.body, 'data-chart="/charts/throughput"' in page.body) == (False, True)
        assert (await chart(viewer))["names"] == ["written", "committed by groups"]


async def test_the_whole_cluster_is_shown_to_those_who_may_describe_it(tmp_path: Path, server: Server) -> None:
    async with place(tmp_path, prometheus=at(server.url)) as world:
        browser = world.browser
        for path in ("/charts/throughput?range=7d", "/?range=7d"):
            assert (await browser.get(path)).status in (303, 401)
        await browser.log_in(*ALICE)
        page = await browser.get("/?range=7d")
        assert ("range=6h" in page.body, "the last hour" in page.text) == (False, True)
        told = json.loads((await browser.get("/charts/throughput?range=7d")).body)
        assert (told["instead"], server.asked) == (f"{BARRED}, so this is the last hour.", [])
        await world.allow("cluster:kafka-cluster:DESCRIBE")
        page = await browser.get("/?range=7d")
        assert ("range=6h" in page.body, "Records per second, the last 7 days" in page.text) == (True, True)
        told = json.loads((await browser.get("/charts/throughput?range=7d")).body)
        assert ("instead" in told, told["names"], len(server.asked)) == (False, ["written"], 1)


async def test_prometheus_is_believed_by_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    authority = Authority.made(tmp_path / "authority")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.issue("127.0.0.1", common_name="prometheus"))
    server = Server(tls)
    try:
        url = f"https://127.0.0.1:{server.port}"
        trusting = Prometheus(Source.of(url, {}, PemStores(trust_file=str(authority.trust))))
        assert (await trusting.written(DAY)).missing == ""
        assert (await at(url).written(DAY)).missing == "Prometheus cannot be reached"
        assert len(server.asked) == 1
    finally:
        server.close()


@pytest.mark.parametrize(
    "url",
    [
        f"http://reader:{SECRET}@prometheus.test",
        f"ftp://reader:{SECRET}@127.0.0.1",
        f"https://reader:{SECRET}@",
        f"https://reader:{SECRET}@prometheus.test:port",
        f"https://reader:{SECRET}@prometheus.test/?query=x",
        f"https://reader:{SECRET}@[::1",
        SECRET,
    ],
)
def test_an_address_that_cannot_be_is_refused_and_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--listen", "127.0.0.1:0", "--prometheus", url]) == 2
    said = capsys.readouterr()
    assert ("--prometheus" in said.err, SECRET in said.err + said.out) == (True, False)


def test_labels_are_names_of_prometheus_and_go_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--listen", "127.0.0.1:0", "--prometheus-label", "job=headrace"]) == 2
    assert "--prometheus-label goes with --prometheus" in capsys.readouterr().err.replace("\n", " ")
    with pytest.raises(UsageError, match="is no label's name"):
        Source.of("https://prometheus.test", {'job="x"} or vector(1) #': "x"})
    made = Source.of("https://[::1]:9090/", {})
    assert (made.url, made.login) == ("https://[::1]:9090/api/v1/query_range", None)


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[str]:
    """Prometheus itself, which scrapes this target each second, and its address."""
    config = directory / "prometheus.yml"
    jobs = [{"job_name": 'head"race', "static_configs": [{"targets": [target]}]}]
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))  # JSON is YAML
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
    command += ["--web.listen-address=127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if '"Listening on"' in line:
                    break
            else:
                raise AssertionError("it ended before it listened")
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            yield f"http://{line.rpartition('address=')[2].strip()}"
        finally:
            process.terminate()
            process.wait(60)
            drain.join()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus here: Debian's package has it")
async def test_prometheus_itself_has_what_brokers_have_counted(tmp_path: Path) -> None:
    port = port_held_for(test_prometheus_itself_has_what_brokers_have_counted)
    target = f"127.0.0.1:{port}"
    with BrokerThread(configs={"metrics.listen": target}) as broker, prometheus(tmp_path, target) as url:
        clock = Clock()
        asked = Prometheus(Source.of(url, {"job": 'head"race'}), clock=clock)
        async with console_of(broker.bootstrap, prometheus=asked) as viewer:
            await viewer.console.seen.settled(60_000)
            assert "Prometheus has no" in (await chart(viewer, "?range=6h"))["instead"], "nothing was written"
            async with asyncio.timeout(120), Cluster(broker.bootstrap) as client, Producer(client) as producer:
                await Admin(client).create_topic("t", partitions=1, replication_factor=1)
                while True:  # a rate has to see two scrapes, and records between them
                    await producer.send("t", value=b"v", timestamp_ms=1)
                    clock.now += CONSOLE_PAST_KEPT_MS
                    told = await chart(viewer, "?range=6h")
                    if "instead" not in told and told["data"][1][-1]:
                        break
            assert (told["names"], len(told["data"][0])) == (["written"], 361)
            assert {after - before for before, after in pairwise(told["data"][0])} == {60.0}
            other = Prometheus(Source.of(url, {"job": "another"}))
            assert "Prometheus has no" in (await other.written(SPANS["6h"])).missing


@long_only
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_person_chooses_a_time_and_reads_why_it_is_not_there(headrace_broker: RunningBroker, server: Server) -> None:
    more = ("--prometheus", server.url, "--prometheus-label", "job=headrace")
    with console(headrace_broker.bootstrap, *more) as address, browser() as page:
        page.open(f"{address}/")
        page.until_says("committed by groups", "#throughput .u-legend")
        page.click('.spans a[href*="24h"]')
        page.until_says("written", "#throughput .u-legend")
        assert page.text("#throughput h2") == "Records per second, the last 24 hours"
        assert page.text(".spans [aria-current]") == "24h"
        assert (page.text("#throughput .note"), "committed" in page.text("#throughput .u-legend")) == ("", False)
        for width, scheme in ((1280, "dark"), (390, "light")):
            page.resize(width, 844)
            page.prefer(scheme)
            check_page(page)
        server.status, server.body = 503, HOSTILE.encode()
        page.open(f"{address}/?range=7d#throughput")
        page.until_says("Prometheus answers 503, and no figures, so this is the last hour.", "#throughput .note")
        page.until_says("committed by groups", "#throughput .u-legend")
        page.click(".spans a")
        page.until_says("Records per second, the last hour", "#throughput h2")
        assert page.complaints() == []
