"""Cases of the native road beside pure Python, and beside the floor of any broker.

Beside pure Python: what a broker holds in memory after a load, and its time until ready. Beside the floor
(benchmarks/load/floor.py): a producer of one partition. The extension has to be installed (`make native`).
`make bench-native CASE=native-memory` runs one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import psutil

from benchmarks.load.cases import MEGABYTE, About, Better, Case, Entrant, Figures, at_least, at_most
from benchmarks.load.catalog import CASES
from benchmarks.load.end_to_end import StartUp
from benchmarks.load.floor import FLOOR, FLOOR_CLUSTER
from benchmarks.load.mixed import Mixed
from benchmarks.load.native_road import HEADRACE_NATIVE, NATIVE_NAMES
from benchmarks.load.rivals import HEADRACE, Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """The figure is the resident memory of the broker's processes when the load is over, in MB."""

    about: About
    load: Case

    def run(self, entrant: Entrant) -> Figures:
        figures = self.load.run(entrant)
        held = sum(psutil.Process(pid).memory_info().rss for pid in entrant.rival.pids)
        return replace(figures, rate=held / MEGABYTE)

    def scaled(self, factor: float) -> Resident:
        return replace(self, load=self.load.scaled(factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The figure is seconds from the start of the broker to its line `ready`."""

    about: About

    def run(self, entrant: Entrant) -> Figures:
        figures = StartUp(about=self.about).run(entrant)
        return replace(figures, rate=figures.others["ready_s"])

    def scaled(self, factor: float) -> Ready:
        return self


def _about(name: str, title: str, unit: str, *, restarts: bool = False) -> About:
    return About(
        name=name,
        title=f"native road beside pure Python: {title}",
        unit=unit,
        who=HEADRACE_NATIVE,
        against=HEADRACE,
        ours=Durability.PAGE_CACHE,
        target=at_most(1.1),
        cost_targets={},
        warms_up=False,
        restarts=restarts,
    )


def _memory() -> Resident:
    title = "the broker's memory after 200 connections over 1,000 partitions"
    about = _about("native-memory", title, "MB")
    load = Mixed(
        about=about,
        connections=200,
        partitions=1_000,
        partitions_per_request=4,
        rounds=32,
        records=4,
        record_bytes=1024,
    )
    return Resident(about=about, load=load)


WITHIN: Final = 1.3
"""A figure that a floor bounds has to be within this factor of it."""


def _beside_the_floor(name: str) -> Case:
    """The catalog's case, with the floor in Kafka's place and what ours promises."""
    case = next(each for each in CASES if each.about.name == name)
    about = case.about
    is_time = about.target.better is Better.LOWER
    changed = replace(
        about,
        name=f"native-floor-{name}",
        title=f"native road beside the floor of any broker: {about.title}",
        who=NATIVE_NAMES[about.who],
        against=FLOOR if about.replicas == 1 else FLOOR_CLUSTER,
        theirs=about.ours,
        target=at_most(WITHIN) if is_time else at_least(round(1 / WITHIN, 2)),
        more_targets={},
        cost_targets={"cpu": at_most(WITHIN)},
    )
    return replace(case, about=changed)  # type: ignore[type-var]  # every case is a dataclass


ROADS: Final[tuple[Case, ...]] = (
    _memory(),
    Ready(about=_about("native-ready", "from the start of the broker until it is ready", "s", restarts=True)),
    *map(
        _beside_the_floor,
        (
            "produce-1k-page-cache",
            "produce-1k",
            "produce-100b",
            "single-page-cache",
            "replicated-1k",
            "replicated-100b-page-cache",
            "replicated-100b",
            "replicated-single-page-cache",
            "replicated-single",
        ),
    ),
)
