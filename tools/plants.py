"""The seeds that find planted bugs, noted in tests/sim/cluster: `make plants`, `python -m tools.plants --part moves`.

Each plant of a table FOUND is run at its noted seed. Where that no longer finds it, seeds from 0 on are run until one
does, and that one is noted at once. With `--first` all seeds below the noted one are run, too, so that it is the first
that finds the plant. A seed that is not sound without the bug does not count. With `--look` nothing is noted. Exit
code 1 where a plant survived SEEDS_MAX seeds; its note then stays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.sim.cluster.parts import ALL_PLANTS, PARTS
from tests.sim.cluster.hunting import ROT_SHOWS_AS, SEEDS_MAX, is_found

TESTS: Final = Path(__file__).resolve().parent.parent / "tests" / "sim" / "cluster"
TABLES: Final = {
    "metadata": TESTS / "test_clusters.py",
    "records": TESTS / "test_records.py",
    "rot": TESTS / "test_rot.py",
    "removals": TESTS / "test_removals.py",
    "lost-quorums": TESTS / "test_lost_quorums.py",
    "groups": TESTS / "test_groups.py",
    "transactions": TESTS / "transactions" / "test_transactions.py",
    "moves": TESTS / "test_moves.py",
    "copies": TESTS / "test_copies.py",
    "tables": TESTS / "test_tables.py",
    "redis": TESTS.parent / "redis" / "test_redis_runs.py",
}
"""By the part of a seed that finds what is in them."""
SHOWS_AS: Final = {"rot": ROT_SHOWS_AS}
"""Kinds of the problems that count, where not all do."""
TABLE: Final = re.compile(r"^FOUND: .*?^\}", re.MULTILINE | re.DOTALL)
ROW: Final = re.compile(r'^    "(?P<plant>[a-z-]+)": (?P<seed>\d+),$', re.MULTILINE)
PROCESSES: Final = 2
TOLD_EVERY: Final = 25
"""Seeds of one search."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A row of a table."""

    part: str
    plant: str
    seed: int


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome for one plant. `seed` None: no seed finds it."""

    noted: Noted
    seed: int | None
    problem: str
    seconds: float
    runs: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.plants", description=__doc__)
    parser.add_argument("--part", choices=TABLES, action="append", help="only what this part finds")
    parser.add_argument("--plant", action="append", help="only this one")
    parser.add_argument("--first", action="store_true", help="note the first seed that finds it, not just any")
    parser.add_argument("--look", action="store_true", help="only tell which seeds have moved")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    rows = [
        row
        for part in options.part or TABLES
        for row in noted_in(part)
        if options.plant is None or row.plant in options.plant
    ]
    if not rows:
        parser.error("no table has such a plant")
    context = multiprocessing.get_context("spawn")
    survived = 0
    with ProcessPoolExecutor(options.processes, mp_context=context, max_tasks_per_child=1) as pool:
        work = [pool.submit(find, row, first=options.first) for row in rows]
        for done, each in enumerate(as_completed(work), 1):
            found = each.result()
            if not options.look:
                note(found)
            survived += found.seed is None
            print(f"{done}/{len(rows)} {in_words(found)}", flush=True)
    return 1 if survived else 0


def noted_in(part: str) -> list[Noted]:
    table = TABLE.search(TABLES[part].read_text(encoding="utf-8"))
    assert table is not None, f"{TABLES[part].name} has no table FOUND"
    return [Noted(part, row["plant"], int(row["seed"])) for row in ROW.finditer(table[0])]


def find(row: Noted, *, first: bool) -> Found:
    """In a process of its own."""
    began = time.perf_counter()
    runs = 0
    for seed in seeds(row.seed, first=first):
        runs += 1
        problem = problem_of(row, seed)
        if problem is not None and not PARTS[row.part](seed).is_sound:
            print(f"    {row.part} {row.plant}: seed {seed} is no proof, it is not sound without the bug", flush=True)
        elif problem is not None:
            return Found(row, seed, problem, time.perf_counter() - began, runs)
        if runs % TOLD_EVERY == 0:
            print(f"    {row.part} {row.plant}: nothing in {runs} seeds", flush=True)
    return Found(row, None, "", time.perf_counter() - began, runs)


def seeds(noted: int, *, first: bool) -> Iterator[int]:
    """In the order in which they are run."""
    if not first:
        yield noted
    yield from (seed for seed in range(SEEDS_MAX) if first or seed != noted)


def problem_of(row: Noted, seed: int) -> str | None:
    with ALL_PLANTS[row.plant]():
        outcome = PARTS[row.part](seed)
    return str(outcome.problems[0]).splitlines()[0] if is_found(outcome, SHOWS_AS.get(row.part)) else None


def note(found: Found) -> None:
    """In its table."""
    if found.seed is None or found.seed == found.noted.seed:
        return
    path = TABLES[found.noted.part]
    text = path.read_text(encoding="utf-8")
    row = f'    "{found.noted.plant}": '
    path.write_text(text.replace(f"{row}{found.noted.seed},\n", f"{row}{found.seed},\n"), encoding="utf-8")


def in_words(found: Found) -> str:
    noted = found.noted
    took = f"({found.runs} seeds, {found.seconds:.0f} s)"
    if found.seed is None:
        return f"{noted.part} {noted.plant}: SURVIVED, {noted.seed} is noted {took}"
    moved = "" if found.seed == noted.seed else f", before it was {noted.seed}"
    return f"{noted.part} {noted.plant}: seed {found.seed}{moved} {took}: {found.problem}"


if __name__ == "__main__":
    sys.exit(main())
