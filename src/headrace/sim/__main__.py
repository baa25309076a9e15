"""`python -m headrace.sim`: replay one seed and print its story, or run a swarm of seeds until one fails.

Without `--cluster`, it simulates one broker, its disk and its clients. With it, and in `headrace sim`, it simulates a
cluster: whole brokers for an even seed, their quorum alone for an odd one.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from headrace.sim.cluster.parts import ALL_PLANTS, PARTS, run_parts
from headrace.sim.cluster.play import ClusterOutcome
from headrace.sim.counting import JournalFigures
from headrace.sim.history import Problem
from headrace.sim.plants import PLANTS
from headrace.sim.run import Outcome, run

PROBLEMS_SHOWN: Final = 20
LINES_EVERY: Final = 20


class Told(Protocol):
    """The outcome of one seed, in either simulation."""

    @property
    def seed(self) -> int: ...
    @property
    def problems(self) -> Sequence[Problem]: ...
    @property
    def story(self) -> list[str]: ...
    @property
    def is_sound(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two simulations. `figures` describes many outcomes in words."""

    run: Callable[[int], Any]
    virtual_seconds: Callable[[Any], float]
    figures: Callable[[Sequence[Any]], str]
    plants: Mapping[str, Callable[[], AbstractContextManager[None]]]
    options: str
    """Command-line options that select it."""


def main() -> int:
    """Returns the exit code: 0 when every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m headrace.sim", description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="several brokers, and faults between them")
    parser.add_argument("--part", choices=PARTS, help="with --cluster: only this part of each seed")
    parser.add_argument("--seed", type=int, help="the seed to replay; with --runs, the first of the swarm")
    parser.add_argument("--runs", type=int, help="how many seeds to run")
    names = sorted({*PLANTS, *ALL_PLANTS})
    parser.add_argument("--plant", choices=names, help="plant this bug in the broker, and look for it")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each seed, and nothing else")
    options = parser.parse_args()
    kind = CLUSTER if options.cluster else BROKER
    if options.part is not None:
        run = partial(run_parts, parts=(options.part,))
        kind = replace(CLUSTER, run=run, options=f"--cluster --part {options.part} ")
    if options.plant is not None and options.plant not in kind.plants:
        parser.error(f"{options.plant} is a bug of the other simulation: with --cluster, or without")
    with ExitStack() as stack:
        if options.plant is not None:
            stack.enter_context(kind.plants[options.plant]())
        if options.json:
            return _as_json(kind, options.seed or 0, options.runs)
        if options.runs is None:
            return _replay(kind, options.seed or 0)
        return _swarm(kind, options.seed or 0, options.runs)


def _as_json(kind: Kind, first: int, count: int | None) -> int:
    """Output of both modes as JSON. The story is included only for a single seed."""
    for seed in range(first, first + (count or 1)):
        outcome: Told = kind.run(seed)
        report = {"seed": seed, "sound": outcome.is_sound, "problems": [str(problem) for problem in outcome.problems]}
        if count is None:
            report["story"] = outcome.story
        print(json.dumps(report), flush=True)
        if not outcome.is_sound:
            return 1
    return 0


def _replay(kind: Kind, seed: int) -> int:
    outcome: Told = kind.run(seed)
    print("\n".join(outcome.story))
    _show_problems(kind, outcome)
    if outcome.is_sound:
        print(f"seed {seed}: sound; {kind.figures([outcome])}")
    return 0 if outcome.is_sound else 1


def _swarm(kind: Kind, first: int, count: int) -> int:
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    outcomes: list[Told] = []
    for seed in range(first, first + count):
        try:
            outcomes.append(kind.run(seed))
        except BaseException:
            print(f"the simulator itself stopped in seed {seed}")
            raise
        if not outcomes[-1].is_sound:
            _show_problems(kind, outcomes[-1])
            print(f"replay it with: python -m headrace.sim {kind.options}--seed {seed}")
            return 1
        outcomes[-1].story.clear()
        gc.collect()
        _show_progress(kind, outcomes, count, time.perf_counter() - began)
    minutes, hours = (time.perf_counter() - began) / 60, sum(map(kind.virtual_seconds, outcomes)) / 3600
    print(
        f"seeds {first} to {first + count - 1}: all sound, {hours:.2f} virtual hours in {minutes:.1f} real minutes; "
        f"{kind.figures(outcomes)}"
    )
    return 0


def _show_progress(kind: Kind, outcomes: Sequence[Told], count: int, seconds: float) -> None:
    """Show progress: one line that grows on a terminal, otherwise one line per twenty seeds."""
    done = len(outcomes)
    text = f"{done}/{count} seeds, {done / seconds:.1f}/s, {kind.figures(outcomes)}"
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if done == count else "", file=sys.stderr)
    elif done % LINES_EVERY == 0 or done == count:
        print(text, file=sys.stderr)


def _show_problems(kind: Kind, outcome: Told) -> None:
    for problem in outcome.problems[:PROBLEMS_SHOWN]:
        print(problem)
    if outcome.problems:
        print(f"seed {outcome.seed}: {len(outcome.problems)} promises broken; {kind.figures([outcome])}")


def _figures(outcomes: Sequence[Outcome]) -> str:
    cuts, kills = sum(each.cuts for each in outcomes), sum(each.kills for each in outcomes)
    records, seconds = sum(each.acknowledged for each in outcomes), sum(each.virtual_seconds for each in outcomes)
    journal = JournalFigures()
    for each in outcomes:
        journal.add(each.journal)
    return (
        f"{cuts} power cuts, {kills} kills, {records} records acknowledged, {seconds:.0f} virtual seconds; journal: "
        f"{journal.rounds} rounds, {journal.recovered} entries recovered, {journal.reused} files reused"
    )


def _cluster_figures(outcomes: Sequence[ClusterOutcome]) -> str:
    all_of: Counter[str] = Counter()
    for each in outcomes:
        all_of.update(each.figures)
    return ", ".join(f"{value:.0f} {name}" for name, value in all_of.items())


BROKER: Final = Kind(run, lambda outcome: outcome.virtual_seconds, _figures, PLANTS, "")
CLUSTER: Final = Kind(
    run_parts, lambda outcome: outcome.figures["virtual seconds"], _cluster_figures, ALL_PLANTS, "--cluster "
)


if __name__ == "__main__":
    sys.exit(main())
