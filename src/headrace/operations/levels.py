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


def raising(levels: Levels) -> str | None:
    """The command that raises the level, where it would not be refused; None: nothing can be raised. By itself it goes
    to the highest level that any broker knows.
    """
    known = known_to_all(levels)
    if known <= levels.level:
        return None
    is_highest = all(highest == known for _, highest in levels.known.values())
    return "'headrace upgrade'" if is_highest else f"'headrace upgrade --level {known}'"


def of_levels(reports: Iterable[Report | None]) -> Iterator[Finding]:
    """The finding that all brokers are upgraded, and the cluster still runs as before."""
    told = next((report.levels for report in reports if report is not None and report.levels is not None), None)
    if told is not None and (command := raising(told)) is not None:
        text = f"it is at feature level {told.level}, and all of its brokers know {known_to_all(told)}"
        todo = f"{command} raises it; until then brokers can go back to the release of before"
        yield Finding(LEVEL_BEHIND, "the cluster", text, todo, is_wrong=False)
