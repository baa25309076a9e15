"""`make bench`: Headrace and Apache Kafka side by side on this machine, with Kafka's own tools as the load.

Prints each run as it ends, then a table of medians with the ratio, and appends the figures to benchmarks/results/. With
`--profile` each case runs once more on Headrace, uncounted, for a flame graph (benchmarks/load/profiles.py).
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.load import results
from benchmarks.load.cases import Better, Case, delete_topics
from benchmarks.load.catalog import CASES, FAILOVERS, MOVES
from benchmarks.load.clusters import CLUSTERS, KAFKA_CLUSTER
from benchmarks.load.contest import Outcome, Run, contest
from benchmarks.load.floor import FLOOR, FLOOR_CLUSTER, FLOORS
from benchmarks.load.groups import GROUP_RIVALS, GROUPS, KAFKA_AT_ONCE, KAFKA_DELAYED
from benchmarks.load.native_road import NATIVE, NATIVE_RIVALS
from benchmarks.load.profiles import NoProfile, hottest, profile
from benchmarks.load.rivals import HEADRACE, KAFKA, WITHOUT_JOURNAL, Rival, Rivals
from benchmarks.load.roads import ROADS
from benchmarks.load.secured import GUARDED, HEADRACE_WITH_LOGIN, KAFKA_SECURED, SECURED
from benchmarks.load.transactions import TRANSACTIONS
from tools import kafka_jars

SMOKE_SCALE: Final = 0.01
HOTTEST_SHOWN: Final = 10
NAME_WIDTH: Final = max(
    map(len, (HEADRACE, KAFKA, WITHOUT_JOURNAL, *CLUSTERS, *GROUP_RIVALS, *GUARDED, *NATIVE_RIVALS))
)
LABELS: Final = {
    KAFKA: "Kafka",
    HEADRACE: "pure Python",
    FLOOR: "the floor",
    FLOOR_CLUSTER: "the floor of three",
    WITHOUT_JOURNAL: "without its journal",
    KAFKA_CLUSTER: "Kafka",
    KAFKA_AT_ONCE: "Kafka",
    KAFKA_DELAYED: "Kafka",
    KAFKA_SECURED: "Kafka",
    HEADRACE_WITH_LOGIN: "without ACLs",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description="Headrace beside Apache Kafka.")
    known = (*CASES, *FAILOVERS, *MOVES, *GROUPS, *TRANSACTIONS, *SECURED, *NATIVE, *ROADS)
    names = [case.about.name for case in known]
    parser.add_argument("--case", action="append", choices=names, help="only this case; may be given more than once")
    parser.add_argument("--pairs", type=int, default=5, help="measured runs of each broker, after the warm-up")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data (default: a temporary directory)")
    parser.add_argument("--profile", action="store_true", help="keep a flame graph of Headrace in each case too")
    parser.add_argument("--dry-run", action="store_true", help="keep no results")
    parser.add_argument("--smoke", action="store_true", help="one pair with a hundredth of the load; keep no results")
    options = parser.parse_args()
    console = Console(highlight=False)
    if (why := kafka_jars.missing_tool()) is not None:
        console.print(f"The benchmark needs Java and Maven, and {why}.")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both brokers are stopped
    wanted = [case for case in known if case.about.name in options.case] if options.case else CASES
    made = tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.dir)
    with (
        made as directory,
        Rivals(Path(directory), {**CLUSTERS, **GROUP_RIVALS, **GUARDED, **NATIVE_RIVALS, **FLOORS}) as rivals,
    ):
        for case in wanted:
            console.print(f"\n[bold]{case.about.title}[/bold] ({case.about.name})")
            with console.status("starting the brokers"):
                ours, theirs = rivals[case.about.who], rivals[case.about.against]
            measure(console, case.scaled(SMOKE_SCALE) if options.smoke else case, ours, theirs, options)
    return 0


def measure(console: Console, case: Case, ours: Rival, theirs: Rival, options: argparse.Namespace) -> None:
    """One case, to its table, its line in the results and its profile."""
    outcome = contest(
        case,
        ours,
        theirs,
        pairs=1 if options.smoke else options.pairs,
        warms_up=not options.smoke,
        report=lambda run, warm: show(console, run, warm),
    )
    console.print(table(outcome))
    if not (options.dry_run or options.smoke):
        console.print(f"kept in {results.append(case.about.name, outcome.as_data())}")
    if options.profile:
        try:
            path = profile(case, ours)
            console.print(f"flame graph in {path}; without what they call:", soft_wrap=True)
            for name, share in hottest(path, HOTTEST_SHOWN):
                console.print(f"  {share:6.1%} {name}", markup=False)
        except NoProfile as why:
            console.print(str(why))
    for rival in (ours, theirs):
        delete_topics(rival, case.about.name)


def show(console: Console, run: Run, warm_up: bool) -> None:
    kind = "warm-up" if warm_up else f"pair {run.turn + 1}"
    console.print(
        f"  {kind:8} {run.rival:{NAME_WIDTH}} {run.rate:11,.2f}   cpu {run.cpu_s:6.2f} s   p99 {_p99(run):7.1f} ms"
    )


def table(outcome: Outcome, *, title: str | None = None, beside: str | None = None) -> Table:
    """`title` and `beside`: other words than those for brokers."""
    about = outcome.case.about
    beside = beside or LABELS[about.against]
    shown = Table(title=title or f"medians: Headrace with {about.ours}, {beside} with {about.theirs}")
    for column in ("figure", "Headrace", beside, "ratio", "to reach"):
        shown.add_column(column, justify="left" if column == "figure" else "right")
    for reach in outcome.reaches():
        target = reach.target
        wanted = f"{'>=' if target.better is Better.HIGHER else '<='} {target.ratio}"
        if target.most is not None:
            wanted = f"ours <= {target.most:,g}"
        met = "" if reach.is_met else "  [red]missed[/red]"
        figures = (f"{reach.ours:,.2f}", f"{reach.theirs:,.2f}", f"{reach.ratio:.2f}")
        shown.add_row(reach.name, *figures, f"{wanted}{met}")
    return shown


def _p99(run: Run) -> float:
    return run.others.get("latency_p99_ms", float("nan"))


if __name__ == "__main__":
    sys.exit(main())
