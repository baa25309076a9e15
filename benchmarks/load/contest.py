"""Who is measured when: warm-up until Kafka's figure stops rising, then pairs in changing order.

Both brokers run all the time and only one is under load; before each run the machine's dirty pages are written out,
so that neither pays for what the other left in the page cache.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from benchmarks.load.cases import Case, Figures
from benchmarks.load.rivals import Rival

WARM_UP_RUNS_MAX: Final = 8
RISING: Final = 1.03
"""A warm-up run that beats the best before it by more than this factor is followed by another."""
MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. `cpu_s` is what the broker's process used; `memory_mb` what it held when the run was over."""

    rival: str
    turn: int
    rate: float
    cpu_s: float
    memory_mb: float
    others: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The runs of one case; rates and ratio are medians over the measured pairs."""

    case: Case
    ours: Rival
    theirs: Rival
    warm_up: list[Run]
    runs: list[Run]

    def median(self, rival: Rival, of: Callable[[Run], float] = lambda run: run.rate) -> float:
        return statistics.median(of(run) for run in self.runs if run.rival == rival.name)

    @property
    def ratio(self) -> float:
        """Our median rate by theirs: above 1.0 we are faster."""
        return self.median(self.ours) / self.median(self.theirs)

    def as_data(self) -> dict[str, Any]:
        rivals = {
            rival.name: {"version": rival.version, "durability": rival.durability, "median": self.median(rival)}
            for rival in (self.ours, self.theirs)
        }
        found = {"case": self.case.name, "title": self.case.title, "unit": self.case.unit, "ratio": self.ratio}
        return found | {"rivals": rivals, "warm_up_runs": len(self.warm_up), "runs": [asdict(run) for run in self.runs]}


def contest(case: Case, ours: Rival, theirs: Rival, *, pairs: int, report: Callable[[Run, bool], None]) -> Outcome:
    """Measure one case on both; `report` hears of each run as it ends, and whether it was warm-up."""
    warm_up: list[Run] = []
    best = 0.0
    for turn in range(WARM_UP_RUNS_MAX):
        before = best
        for rival in _order(ours, theirs, turn):
            run = _run(case, rival, turn)
            warm_up.append(run)
            report(run, True)
            best = max(best, run.rate) if rival is theirs else best
        if turn and best < before * RISING:
            break
    runs = []
    for turn in range(pairs):
        for rival in _order(ours, theirs, turn):
            runs.append(_run(case, rival, turn))
            report(runs[-1], False)
    return Outcome(case=case, ours=ours, theirs=theirs, warm_up=warm_up, runs=runs)


def _order(ours: Rival, theirs: Rival, turn: int) -> Iterator[Rival]:
    yield from (ours, theirs) if turn % 2 == 0 else (theirs, ours)


def _run(case: Case, rival: Rival, turn: int) -> Run:
    os.sync()
    process = psutil.Process(rival.pid)
    before = _cpu_s(process)
    figures: Figures = case.run(rival)
    return Run(
        rival=rival.name,
        turn=turn,
        rate=figures.rate,
        cpu_s=round(_cpu_s(process) - before, 2),
        memory_mb=round(process.memory_info().rss / MEGABYTE, 1),
        others=dict(figures.others),
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
