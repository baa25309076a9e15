"""Runs the Spark job as a process of its own and shows its output. Never imports PySpark."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.cli.demo.screen import Meter, Screen

SPARK_SECONDS_MAX = 300.0
CARRIERS_SHOWN = 16
STAGES = {"session": "Spark starts", "read": "reads the store", "parquet": "writes Parquet", "report": "reports"}


@dataclass(slots=True)
class SparkReport:
    """The job's events."""

    partitions: list[dict[str, Any]] = field(default_factory=list)
    carriers: list[dict[str, Any]] = field(default_factory=list)
    months: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    picture: str | None = None
    parquet: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


def run_spark(
    *, store_url: str, topic: str, out: Path, expect: Path, picture: Path, log: Path, screen: Screen
) -> SparkReport:
    """Run `headrace.cli.demo.job` over the store to its end. Raises HeadraceError where it does not report."""
    command = [sys.executable, "-m", "headrace.cli.demo.job", "--store", store_url, "--topic", topic]
    command += ["--out", str(out), "--expect", str(expect), "--picture", str(picture)]
    report = SparkReport()
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        impatient = threading.Timer(SPARK_SECONDS_MAX, process.kill)
        impatient.start()
        try:
            assert process.stdout is not None
            follow(events_of(process.stdout), report, screen, log)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            impatient.cancel()
    if not report.result:
        raise HeadraceError(f"The Spark job ended with exit code {code} and no result; its log is {log}.")
    return report


def events_of(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines that the job prints. Java may print there too."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def follow(events: Iterator[dict[str, Any]], report: SparkReport, screen: Screen, log: Path) -> None:
    """Add each event to the report, and show the stages as they come. Raises HeadraceError on an error event."""
    with ExitStack() as stack:
        meter: Meter | None = None
        for event in events:
            match event.get("event"):
                case "stage" if event["state"] == "start":
                    stack.close()
                    meter = stack.enter_context(screen.meter(STAGES.get(event["stage"], event["stage"]), None))
                case "stage":
                    report.stages.append(event)
                    if meter is not None:
                        rows = event.get("rows")
                        meter.update(rows if rows else 1, rows if rows else 1)
                    stack.close()
                    meter = None
                case "progress" if meter is not None:
                    meter.update(event["done"], event["total"])
                case "partition":
                    report.partitions.append(event)
                case "carrier":
                    report.carriers.append(event)
                case "month":
                    report.months.append(event)
                case "picture":
                    report.picture = event["path"]
                case "parquet":
                    report.parquet = event
                case "result":
                    report.result = event
                case "error":
                    raise HeadraceError(f"The Spark job failed: {event['message'].rstrip('.')}; its log is {log}.")


def show_report(report: SparkReport, screen: Screen) -> None:
    """Show the tables of a report, or its events where JSON was requested."""
    _show_partitions(report, screen)
    screen.say("")
    _show_carriers(report, screen)
    screen.say("")
    _show_stages(report, screen)
    for kind, events in (
        ("partition", report.partitions),
        ("carrier", report.carriers),
        ("month", report.months),
        ("spark_stage", report.stages),
    ):
        for event in events:
            screen.event(kind, **{name: value for name, value in event.items() if name not in ("event", "state")})


def _show_partitions(report: SparkReport, screen: Screen) -> None:
    rows = [
        (
            str(one["partition"]),
            f"{one['rows']:,}",
            f"{one['start']} to {one['end'] - 1}" if one["rows"] else "none",
            "yes" if one["contiguous"] else "NO",
            one["checksum"],
        )
        for one in sorted(report.partitions, key=lambda one: one["partition"])
    ]
    headings = {"partition": True, "rows": True, "offsets": False, "no gap": False, "checksum": False}
    screen.table(headings, rows)


def _show_carriers(report: SparkReport, screen: Screen) -> None:
    rows = []
    for one in sorted(report.carriers, key=lambda one: -one["flights"])[:CARRIERS_SHOWN]:
        mean = one["mean_delay_minutes"]
        rows.append((one["carrier"], f"{one['flights']:,}", "all cancelled" if mean is None else f"{mean:.1f} min"))
    screen.table({"carrier": False, "flights": True, "mean delay": True}, rows)


def _show_stages(report: SparkReport, screen: Screen) -> None:
    rows = []
    for one in report.stages:
        rate = one.get("rows_per_second")
        rows.append((STAGES.get(one["stage"], one["stage"]), f"{one['seconds']:.1f}", f"{rate:,.0f}" if rate else ""))
    screen.table({"stage": False, "seconds": True, "rows/s": True}, rows)
