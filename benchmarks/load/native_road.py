"""Cases of the native road beside Kafka: those of the catalog, with brokers whose hot functions are compiled.

The extension has to be installed (`make native`). The cases of the catalog always run pure Python, so that each figure
is of one road.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.load.cases import Case, Target, at_least, at_most
from benchmarks.load.catalog import CASES
from benchmarks.load.clusters import HEADRACE_CLUSTER, HeadraceCluster
from benchmarks.load.rivals import HEADRACE, Headrace, Rival
from headrace.native import VARIABLE

HEADRACE_NATIVE: Final = "headrace-native"
NATIVE_CLUSTER: Final = "headrace-3-native"
NATIVE_NAMES: Final[Mapping[str, str]] = {HEADRACE: HEADRACE_NATIVE, HEADRACE_CLUSTER: NATIVE_CLUSTER}
PREFIX: Final = "native-"
CPU_RATIO_MAX: Final = 0.4


@contextmanager
def _natively() -> Iterator[None]:
    """Processes that are started meanwhile take the native road, or none."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


class NativeHeadrace(Headrace):
    """`Headrace`, on the native road."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, name=HEADRACE_NATIVE)

    def start(self) -> None:
        with _natively():
            super().start()


class NativeCluster(HeadraceCluster):
    """`HeadraceCluster`, on the native road."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, name=NATIVE_CLUSTER)

    def launch(self, node: int) -> None:
        with _natively():
            super().launch(node)


NATIVE_RIVALS: Final[Mapping[str, Callable[[Path], Rival]]] = {
    HEADRACE_NATIVE: NativeHeadrace,
    NATIVE_CLUSTER: NativeCluster,
}
REACHES: Final[Mapping[str, tuple[Target, Mapping[str, Target]]]] = {
    "mixed": (at_least(1.2), {"latency_p99_ms": at_most(0.8)}),
    "produce-1k-page-cache": (at_least(1.2), {}),
    "produce-1k": (at_least(1.0), {}),
    "produce-100b": (at_least(1.5), {}),
    "produce-unbatched-raw": (at_least(3.0), {}),
    "single-page-cache": (at_most(0.5), {}),
    "replicated-single-page-cache": (at_most(0.5), {}),
    "replicated-100b-page-cache": (at_least(1.5), {}),
    "replicated-100b": (at_least(1.3), {}),
    "replicated-1k": (at_least(1.2), {}),
    "fetch-10-raw": (at_least(1.0), {}),
    "start": (at_most(0.25), {}),
}
"""The figure to reach of each case, and more of them."""


def _on_native_road(case: Case) -> Case:
    about = case.about
    target, more = REACHES[about.name]
    costs = {**about.cost_targets, "cpu": at_most(CPU_RATIO_MAX)} if about.cost_targets else {}
    title = f"native road: {about.title}"
    changed = replace(
        about,
        name=PREFIX + about.name,
        title=title,
        who=NATIVE_NAMES[about.who],
        target=target,
        more_targets=more,
        cost_targets=costs,
    )
    return replace(case, about=changed)  # type: ignore[type-var]  # every case is a dataclass


NATIVE: Final[tuple[Case, ...]] = tuple(_on_native_road(case) for case in CASES if case.about.name in REACHES)
"""`make bench-native`; `make bench` leaves them out."""
assert len(NATIVE) == len(REACHES), "each is in the catalog"
