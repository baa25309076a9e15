"""`make bench`: Headrace and Apache Kafka side by side on this machine, with Kafka's own tools as the load.

Prints each run as it ends, then a table of medians with the ratio, and appends the figures to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.load import results
from benchmarks.load.cases import CASES
from benchmarks.load.contest import Outcome, Run, contest
from benchmarks.load.rivals import rivals
from tools import kafka_jars


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description="Headrace beside Apache Kafka.")
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this case; may be given more than once")
    parser.add_argument("--pairs", type=int, default=5, help="measured runs of each broker, after the warm-up")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data (default: a temporary directory)")
    parser.add_argument("--dry-run", action="store_true", help="keep no results")
    options = parser.parse_args()
    console = Console(highlight=False)
    if (why := kafka_jars.missing_tool()) is not None:
        console.print(f"The benchmark needs Java and Maven, and {why}.")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both brokers are stopped
    wanted = [case for case in CASES if case.name in (options.case or names)]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.dir) as directory, ExitStack() as running:
        ours, theirs = rivals(Path(directory))
        for rival in (ours, theirs):
            with console.status(f"starting {rival.name}"):
                rival.start()
            running.callback(rival.stop)
        for case in wanted:
            console.print(f"\n[bold]{case.title}[/bold]")
            outcome = contest(
                case, ours, theirs, pairs=options.pairs, report=lambda run, warm: show(console, run, warm)
            )
            console.print(table(outcome))
            if not options.dry_run:
                console.print(f"kept in {results.append(case.name, outcome.as_data())}")
    return 0


def show(console: Console, run: Run, warm_up: bool) -> None:
    kind = "warm-up" if warm_up else f"pair {run.turn + 1}"
    console.print(f"  {kind:8} {run.rival:9} {run.rate:8.1f}   cpu {run.cpu_s:6.2f} s   p99 {_p99(run):7.1f} ms")


def table(outcome: Outcome) -> Table:
    shown = Table(title=f"medians; ratio {outcome.ratio:.2f} (Headrace by Kafka)")
    for column in ("broker", "acknowledged after", outcome.case.unit, "p99 ms", "CPU s", "memory MB"):
        shown.add_column(column, justify="left" if column in ("broker", "acknowledged after") else "right")
    for rival in (outcome.ours, outcome.theirs):
        figures = [outcome.median(rival), outcome.median(rival, _p99)]
        figures += [outcome.median(rival, lambda run: run.cpu_s), outcome.median(rival, lambda run: run.memory_mb)]
        shown.add_row(f"{rival.name} {rival.version}", rival.durability, *(f"{figure:,.1f}" for figure in figures))
    return shown


def _p99(run: Run) -> float:
    return run.others.get("latency_p99_ms", float("nan"))


if __name__ == "__main__":
    sys.exit(main())
