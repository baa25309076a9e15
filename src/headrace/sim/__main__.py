"""`python -m headrace.sim`: replay one seed and tell its story, or run a swarm of them until one fails."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from contextlib import ExitStack
from typing import Final

from headrace.sim.counting import JournalFigures
from headrace.sim.plants import PLANTS
from headrace.sim.run import Outcome, run

PROBLEMS_SHOWN: Final = 20
LINES_EVERY: Final = 20


def main() -> int:
    """The exit code: 0 when every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m headrace.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="the seed to replay; with --runs, the first of the swarm")
    parser.add_argument("--runs", type=int, help="how many seeds to run")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="plant this bug in the broker, and look for it")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.plant is not None:
            stack.enter_context(PLANTS[options.plant]())
        if options.runs is None:
            return _replay(options.seed or 0)
        return _swarm(options.seed or 0, options.runs)


def _replay(seed: int) -> int:
    outcome = run(seed)
    print("\n".join(outcome.story))
    _show_problems(outcome)
    if outcome.is_sound:
        print(f"seed {seed}: sound; {_figures([outcome])}")
    return 0 if outcome.is_sound else 1


def _swarm(first: int, count: int) -> int:
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    for seed in range(first, first + count):
        try:
            outcomes.append(run(seed))
        except BaseException:
            print(f"the simulator itself stopped in seed {seed}")
            raise
        if not outcomes[-1].is_sound:
            _show_problems(outcomes[-1])
            print(f"replay it with: python -m headrace.sim --seed {seed}")
            return 1
        outcomes[-1].story.clear()
        gc.collect()
        _show_progress(outcomes, count, time.perf_counter() - began)
    print(f"seeds {first} to {first + count - 1}: all sound; {_figures(outcomes)}")
    return 0


def _show_progress(outcomes: list[Outcome], count: int, seconds: float) -> None:
    """One line that grows on a terminal; elsewhere one line in twenty seeds."""
    done = len(outcomes)
    text = f"{done}/{count} seeds, {done / seconds:.1f}/s, {_figures(outcomes)}"
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if done == count else "", file=sys.stderr)
    elif done % LINES_EVERY == 0 or done == count:
        print(text, file=sys.stderr)


def _show_problems(outcome: Outcome) -> None:
    for problem in outcome.problems[:PROBLEMS_SHOWN]:
        print(problem)
    if outcome.problems:
        print(f"seed {outcome.seed}: {len(outcome.problems)} promises broken; {_figures([outcome])}")


def _figures(outcomes: list[Outcome]) -> str:
    cuts, kills = sum(each.cuts for each in outcomes), sum(each.kills for each in outcomes)
    records, seconds = sum(each.acknowledged for each in outcomes), sum(each.virtual_seconds for each in outcomes)
    journal = JournalFigures()
    for each in outcomes:
        journal.add(each.journal)
    return (
        f"{cuts} power cuts, {kills} kills, {records} records acknowledged, {seconds:.0f} virtual seconds; journal: "
        f"{journal.rounds} rounds, {journal.recovered} entries recovered, {journal.reused} files reused"
    )


if __name__ == "__main__":
    sys.exit(main())
