"""`make bench-spark`: our Spark source beside Spark's own for Kafka, in one session, on the same record batches.

Ours reads from Headrace's durable store (a directory) and asks the broker what there is; Kafka's reads from an Apache
Kafka broker. Writers both write into Apache Kafka. Prints each run as it ends and a table of medians, and appends the
figures to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console

from benchmarks.load import results
from benchmarks.load.__main__ import table
from benchmarks.load.cases import delete_topics
from benchmarks.load.contest import Outcome, Run, contest
from benchmarks.load.rivals import Kafka, Rival, Rivals
from benchmarks.spark.cases import Read, SparkCase
from benchmarks.spark.catalog import beside, cases, linear
from benchmarks.spark.data import STORED, Data, HeadraceWithStore
from benchmarks.spark.queries import Session
from benchmarks.spark.writes import WRITER, writes
from tools import kafka_jars

PAIRS: Final = 3
WARM_UP_TURNS_MAX: Final = 4
"""The session goes on from case to case, and Java has the code of the cases before."""
LINEAR: Final = "spark-linear"
SMOKE_RECORDS: Final = 20_000
MORE: Final[Mapping[str, Callable[[Path], Rival]]] = {STORED: HeadraceWithStore, WRITER: partial(Kafka, name=WRITER)}
"""Rivals that are no plain brokers."""


def main() -> int:
    with Session() as session:
        options = parsed(session)
        console = Console(highlight=False)
        if (why := kafka_jars.missing_tool()) is not None:
            console.print(f"The benchmark needs Java and Maven, and {why}.")
            return 1
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both brokers are stopped
        records = SMOKE_RECORDS if options.smoke else options.rows
        all_cases = [
            *cases(session, records=records),
            *writes(session, records=records),
            *beside(session, records=records),
        ]
        wanted = [case for case in all_cases if not options.case or case.about.name in options.case]
        made = tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.dir)
        with made as directory, Rivals(Path(directory), MORE) as rivals:
            if options.big:
                grow(console, linear(session, records=records), rivals[STORED], options)
                return 0
            for at, case in enumerate(wanted):
                measure(console, case, rivals, options)
                if case.data not in [other.data for other in wanted[at + 1 :]]:
                    forget(case.data, rivals[case.about.who], rivals[case.about.against])
    return 0


def grow(console: Console, sizes: Sequence[Read], rival: Rival, options: argparse.Namespace) -> None:
    """Ours alone: seconds for each GB of the same read of more and more."""
    found = []
    for case in sizes:
        console.print(f"\n[bold]{case.about.title}[/bold] ({case.about.name})")
        costs = []
        for turn in range(1 + options.pairs):
            figures = case.run(case.about.entrant(rival))
            costs.append(figures.others["seconds_per_gb"])
            kind = f"run {turn}" if turn else "warm-up"
            console.print(f"  {kind:8} {figures.rate:13,.2f} {case.about.unit}   {costs[-1]:6.2f} s for each GB")
        found.append({"megabytes": case.data.megabytes, "seconds_per_gb": costs[1:], "median": median(costs[1:])})
        forget(case.data, rival)
    told = ", ".join(f"{each['median']:.2f}" for each in found)
    console.print(f"{told} s for each GB, from the least on")
    if not (options.dry_run or options.smoke or options.rows):
        data = {"case": LINEAR, "title": "ours alone: the same read of 1, 4 and 16 GB", "rivals": {}, "sizes": found}
        console.print(f"kept in {results.append(LINEAR, data)}")


def parsed(session: Session) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    names = [case.about.name for case in (*cases(session), *writes(session), *beside(session))]
    parser.add_argument("--case", action="append", choices=names, help="only this case; may be given more than once")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="measured runs of each side, after the warm-up")
    parser.add_argument("--rows", type=int, help="at most so many records in a topic; keep no results")
    parser.add_argument("--big", action="store_true", help="only this: ours alone, 1, 4 and 16 GB (32 GB on disk)")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data (default: a temporary directory)")
    parser.add_argument("--dry-run", action="store_true", help="keep no results")
    parser.add_argument("--smoke", action="store_true", help="one pair with few records; keep no results")
    return parser.parse_args()


def measure(console: Console, case: SparkCase, rivals: Rivals, options: argparse.Namespace) -> Outcome:
    """One case, to its table and its line in the results."""
    console.print(f"\n[bold]{case.about.title}[/bold] ({case.about.name})")
    outcome = contest(
        case,
        rivals[case.about.who],
        rivals[case.about.against],
        pairs=1 if options.smoke else options.pairs,
        warms_up=not options.smoke,
        warm_up_turns=WARM_UP_TURNS_MAX,
        report=lambda run, warm: show(console, case, run, warm),
    )
    console.print(table(outcome, title="medians, one session on local[2]", beside="Spark's own for Kafka"))
    if not (options.dry_run or options.smoke or options.rows):
        console.print(f"kept in {results.append(case.about.name, outcome.as_data())}")
    return outcome


def forget(data: Data, *rivals: Rival) -> None:
    """So that the room is there for the next."""
    for rival in rivals:
        if isinstance(rival, HeadraceWithStore):
            rival.remove_history(data.topic)
        delete_topics(rival, f"spark-{data.name}")


def show(console: Console, case: SparkCase, run: Run, warm_up: bool) -> None:
    kind = "warm-up" if warm_up else f"pair {run.turn + 1}"
    console.print(f"  {kind:8} {run.rival:14} {run.rate:13,.2f} {case.about.unit}   broker's cpu {run.cpu_s:6.2f} s")
    console.print(f"{' ' * 11}{', '.join(f'{name} {value:,.2f}' for name, value in run.others.items())}", style="dim")


if __name__ == "__main__":
    sys.exit(main())
