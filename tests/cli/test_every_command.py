"""The common part of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from headrace.cli.main import app, main


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        if getattr(command, "invoke_without_command", True):
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands(typer.main.get_command(app)))


def test_there_are_commands() -> None:
    some = {"up", "demo", "topic create", "produce", "consume", "debug dump-log", "quorum", "broker", "broker list"}
    assert some <= COMMANDS.keys()
    assert "topic" not in COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_bootstrap_and_json(name: str) -> None:
    options = {option: each for each in COMMANDS[name].params for option in each.opts}
    assert options["--bootstrap"].envvar == "HEADRACE_BOOTSTRAP"
    assert options["--bootstrap"].default == "127.0.0.1:9092"
    assert "--json" in options


@pytest.mark.parametrize("words", [[], *(name.split() for name in COMMANDS)], ids=lambda words: " ".join(words) or "-")
def test_help_shows_no_type_of_a_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--help" in told
    assert "bool" not in told
