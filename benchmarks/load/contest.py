"""Who is measured when: warm-up until Kafka's figure stops rising, then pairs in changing order.

Both brokers run all the time and only one is under load; before each run the machine's dirty pages are written out,
so that neither pays for what the other left in the page cache.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from benchmarks.load.cases import Case, Figures
from benchmarks.load.rivals import Rival

WARM_UP_TURNS_MAX: Final = 12
WARM_UP_LEVEL_TURNS: Final = 2
"""Turns in a row without a rise that end the warm-up."""
RISING: Final = 1.03
"""The factor by which a run must beat the best before it to count as a rise."""
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

    def turn(number: int, *, warming: bool) -> list[Run]:
        found = []
        for rival in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            found.append(_run(case, rival, number))
            report(found[-1], warming)
        return found

    warm_up: list[Run] = []
    best, level = 0.0, 0
    while level < WARM_UP_LEVEL_TURNS and len(warm_up) < 2 * WARM_UP_TURNS_MAX:
        warm_up += turn(len(warm_up) // 2, warming=True)
        rate = next(run.rate for run in reversed(warm_up) if run.rival == theirs.name)
        level = 0 if rate > best * RISING else level + 1
        best = max(best, rate)
    runs = [run for number in range(pairs) for run in turn(number, warming=False)]
    return Outcome(case=case, ours=ours, theirs=theirs, warm_up=warm_up, runs=runs)


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
