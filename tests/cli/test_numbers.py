"""Numbers on the command line, in files and in plans: in plain digits, or refused in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from headrace.base.errors import UsageError
from headrace.cli.commands import MODULES, declared
from headrace.cli.main import EXIT_USAGE, main
from headrace.operations.resetting import parse_duration, parse_topics, read_file


def callbacks(group: typer.Typer) -> Iterator[Any]:
    for command in group.registered_commands:
        yield command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from callbacks(inner.typer_instance)


def test_every_option_that_is_a_number_is_read_strictly() -> None:
    """Else it is Python that reads it, with `1_000` and digits of any script."""
    found = 0
    for callback in (each for name in MODULES for each in callbacks(declared(name))):
        hints = get_type_hints(inspect.unwrap(callback), include_extras=True)
        for name, hint in hints.items():
            kind, *rest = get_args(hint) or (hint,)
            if {int, float} & {kind, *get_args(kind)}:
                (info,) = (each for each in rest if hasattr(each, "parser"))
                assert info.parser is not None, (callback, name)
                found += 1
    assert found >= 20


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "t", "--offset", "1_0"],
        ["consume", "t", "--max", "١"],
        ["topic", "unload", "t", "--throttle", "nan"],
        ["topic", "unload", "t", "--throttle", "inf"],
        ["up", "--data", "/nowhere", "--nodes", "٣"],
    ],
)
def test_a_number_that_is_none_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "number; see 'headrace " in said
    assert "Value error" not in said


def test_durations_and_partitions() -> None:
    assert parse_duration("pt1.5s", 10_000) == 8_500
    assert parse_duration("P99999999999D", 10_000) == 0
    for text in ("P١D", "PT1_0S", "P", "PT-1S"):
        with pytest.raises(UsageError, match="is no duration"):
            parse_duration(text, 10_000)
    assert parse_topics(["t:0,1", "u"]) == {"t": (0, 1), "u": None}
    for text in ("t:1_0", "t:-1", "t:١", "t:", "t:0 ,1"):
        with pytest.raises(UsageError, match="partitions are numbers"):
            parse_topics([text])


@pytest.mark.parametrize("line", ["t,0,1_0", "t,٠,1", "t,-1,1", "t,0,-2", "t,0", "t,0,1\nt,0,2"])
def test_a_file_of_offsets_that_is_none_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(line)
    with pytest.raises(UsageError, match=r"^Line \d of "):
        read_file(path)
