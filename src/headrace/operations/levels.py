"""Whether the cluster's feature level can be raised, as brokers tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.operations.finding import Finding
from headrace.wire.ailments import Levels, Report

LEVEL_BEHIND: Final = "level behind"


def known_to_all(levels: Levels) -> int:
    """The highest feature level that every registered broker knows."""
    return min((highest for _, highest in levels.known.values()), default=levels.level)


def of_levels(reports: Iterable[Report | None]) -> Iterator[Finding]:
    """The finding that all brokers are upgraded, and the cluster still runs as before."""
    told = next((report.levels for report in reports if report is not None and report.levels is not None), None)
    if told is not None and (known := known_to_all(told)) > told.level:
        text = f"it is at feature level {told.level}, and all of its brokers know {known}"
        todo = "'headrace upgrade' raises it; until then brokers can go back to the release of before"
        yield Finding(LEVEL_BEHIND, "the cluster", text, todo, is_wrong=False)
