"""Advice on the feature level: the command that is named would not be refused."""

from __future__ import annotations

import pytest

from headrace.operations.levels import of_levels, raising
from headrace.wire.ailments import Levels, Report


@pytest.mark.parametrize(
    ("level", "highest", "command"),
    [
        (0, (2, 2, 2), "'headrace upgrade'"),
        (0, (2, 3, 2), "'headrace upgrade --level 2'"),
        (2, (2, 3, 2), None),
        (2, (2, 2, 2), None),
        (0, (0, 2, 2), None),
        (2, (), None),
    ],
)
def test_the_command_goes_to_the_level_that_all_know(level: int, highest: tuple[int, ...], command: str | None) -> None:
    levels = Levels(level, {broker: (0, each) for broker, each in enumerate(highest)})
    assert raising(levels) == command
    todos = [finding.todo for finding in of_levels([None, Report([], levels=levels)])]
    assert [todo.partition(" raises it")[0] for todo in todos] == ([] if command is None else [command])
