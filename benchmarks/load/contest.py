"""The order of measurements: warm-up until the other broker's figure stops rising, then pairs in changing order.

Both brokers live through the whole of a case, and each has the machine to itself in its turns. Before each run the disk
comes to rest, so that neither pays for the other's page cache or pending deletions. The process whose turn it is not is
stopped (SIGSTOP), so that an idle one costs nothing.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import psutil

from benchmarks.load.cases import MEGABYTE, Better, Entrant, Figures, Measurable, Target
from benchmarks.load.rivals import Rival

WARM_UP_TURNS_MAX: Final = 12
WARM_UP_LEVEL_TURNS: Final = 2
"""Turns in a row without a rise that end the warm-up."""
RISING: Final = 1.03
"""The factor by which a run must beat the best before it to count as a rise."""
GIGABYTE_IN_MB: Final = 1024
COSTED_MB_MIN: Final = 100
"""Record values in a run, below which it says nothing of what a GB costs."""
QUIET_SECONDS: Final = 0.5
SETTLE_SECONDS_MAX: Final = 5.0
"""Before each run nothing is written to any disk for so long, or the longest wait is over."""


class Reach(NamedTuple):
    """One figure beside its target. `ours` and `theirs` are medians."""

    name: str
    ours: float
    theirs: float
    ratio: float
    target: Target

    @property
    def is_met(self) -> bool:
        if self.target.most is not None:
            return self.ours <= self.target.most
        higher = self.target.better is Better.HIGHER
        return self.ratio >= self.target.ratio if higher else self.ratio <= self.target.ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. `cpu_s` is what the broker's process used, `cpu_s_per_gb` that for each GB of record values in
    and out, where there were enough; `memory_mb` what it held when the run was over."""

    rival: str
    turn: int
    rate: float
    cpu_s: float
    cpu_s_per_gb: float | None
    memory_mb: float
    others: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The runs of one case; rates and ratio are medians over the measured pairs."""

    case: Measurable
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

    def reaches(self) -> list[Reach]:
        """Each figure that has a target, the rate first, and the cost of it in processor time and memory."""
        about = self.case.about
        found = [self._reach(about.unit, about.target, lambda run: run.rate)]
        for name, target in about.more_targets.items():
            found.append(self._reach(name, target, partial(_other, name)))
        costs = about.cost_targets
        if "cpu" in costs:
            per_gb = all(run.cpu_s_per_gb is not None for run in self.runs)
            found.append(self._reach("cpu_s_per_gb" if per_gb else "cpu_s", costs["cpu"], _cost))
        if "memory_mb" in costs:
            found.append(self._reach("memory_mb", costs["memory_mb"], lambda run: run.memory_mb))
        return found

    def _reach(self, name: str, target: Target, of: Callable[[Run], float]) -> Reach:
        ours, theirs = self.median(self.ours, of), self.median(self.theirs, of)
        return Reach(name, ours, theirs, ours / theirs if theirs else float("nan"), target)

    def as_data(self) -> dict[str, Any]:
        about = self.case.about
        rivals = {
            rival.name: {"version": rival.version, "durability": durability, "median": self.median(rival)}
            for rival, durability in ((self.ours, about.ours), (self.theirs, about.theirs))
        }
        found = {"case": about.name, "title": about.title, "unit": about.unit, "ratio": self.ratio}
        found |= {"reached": {each.name: round(each.ratio, 3) for each in self.reaches()}}
        return found | {"rivals": rivals, "warm_up_runs": len(self.warm_up), "runs": [asdict(run) for run in self.runs]}


def _other(name: str, run: Run) -> float:
    return run.others[name]


def _cost(run: Run) -> float:
    return run.cpu_s if run.cpu_s_per_gb is None else run.cpu_s_per_gb


def contest(
    case: Measurable,
    ours: Rival,
    theirs: Rival,
    *,
    pairs: int,
    warms_up: bool = True,
    warm_up_turns: int = WARM_UP_TURNS_MAX,
    report: Callable[[Run, bool], None],
) -> Outcome:
    """Measure one case on both; `report` hears of each run as it ends, and whether it was warm-up."""

    def turn(number: int, *, warming: bool) -> list[Run]:
        found = []
        for rival, other in [(ours, theirs), (theirs, ours)][:: 1 if number % 2 == 0 else -1]:
            found.append(_run(case, case.about.entrant(rival), other, number))
            report(found[-1], warming)
        return found

    warm_up: list[Run] = []
    best, level = 0.0, 0
    warms_up = warms_up and case.about.warms_up
    while warms_up and level < WARM_UP_LEVEL_TURNS and len(warm_up) < 2 * warm_up_turns:
        warm_up += turn(len(warm_up) // 2, warming=True)
        rate = next(run.rate for run in reversed(warm_up) if run.rival == theirs.name)
        level, best = (0, rate) if not best or case.about.target.rises(best, rate, RISING) else (level + 1, best)
    runs = [run for number in range(pairs) for run in turn(number, warming=False)]
    return Outcome(case=case, ours=ours, theirs=theirs, warm_up=warm_up, runs=runs)


def _settle() -> None:
    """Let the disk come to rest: dirty pages, and files that a broker deletes some time after their topic."""
    os.sync()
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    before, quiet_since = _writes(), time.monotonic()
    while time.monotonic() < min(deadline, quiet_since + QUIET_SECONDS):
        time.sleep(QUIET_SECONDS / 10)
        if (now := _writes()) != before:
            before, quiet_since = now, time.monotonic()


def _writes() -> int:
    counters = psutil.disk_io_counters()
    return counters.write_count if counters is not None else 0


@contextmanager
def _stopped(rival: Rival) -> Iterator[None]:
    pids = rival.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _run(case: Measurable, entrant: Entrant, other: Rival, turn: int) -> Run:
    _settle()
    rival = entrant.rival
    before = {pid: _cpu_s(psutil.Process(pid)) for pid in rival.pids}
    with _stopped(other):
        figures: Figures = case.run(entrant)
    processes = [psutil.Process(pid) for pid in rival.pids]
    cpu_s = sum(_cpu_s(process) - before.get(process.pid, 0.0) for process in processes)
    return Run(
        rival=rival.name,
        turn=turn,
        rate=figures.rate,
        cpu_s=round(cpu_s, 2),
        cpu_s_per_gb=_per_gb(cpu_s, figures.megabytes),
        memory_mb=round(sum(process.memory_info().rss for process in processes) / MEGABYTE, 1),
        others=dict(figures.others),
    )


def _per_gb(cpu_s: float, megabytes: float) -> float | None:
    return round(cpu_s / megabytes * GIGABYTE_IN_MB, 3) if megabytes >= COSTED_MB_MIN else None


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
