"""Each option of each command may stand in the environment, under HEADRACE, the command's name and its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main

from headrace.cli.main import app, main
from tests.cli.test_every_command import COMMANDS

ROOT: Any = typer.main.get_command(app)
BY_ITSELF = {"--bootstrap": "HEADRACE_BOOTSTRAP", "--command-config": "HEADRACE_COMMAND_CONFIG"}
BY_ITSELF |= {"--context": "HEADRACE_CONTEXT", "--redis": "HEADRACE_REDIS"}


def in_context(name: str) -> tuple[Any, Any]:
    """A command, and the context in which click would run it."""
    command = ROOT
    settings = {"resilient_parsing": True, "auto_envvar_prefix": ROOT.context_settings["auto_envvar_prefix"]}
    context = command.context_class(command, info_name="headrace", **settings)
    for word in name.split():
        command = command.commands[word]
        context = command.context_class(command, info_name=word, parent=context, resilient_parsing=True)
    return command, context


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_read_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, context = in_context(name)
    for option in command.params:
        longs = [each for each in option.opts if each.startswith("--")]
        if not longs or "help" in option.name:
            continue
        words = "_".join(("HEADRACE", *name.split(), longs[-1].removeprefix("--")))
        variable = BY_ITSELF.get(longs[-1], words.upper().replace("-", "_"))
        monkeypatch.delenv(variable, raising=False)
        assert option.consume_value(context, {})[1].name != "ENVIRONMENT", (variable, "nothing else sets it")
        monkeypatch.setenv(variable, "1")
        assert option.consume_value(context, {})[1].name == "ENVIRONMENT", variable
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("variable", ["HEADRACE_VERSION", "HEADRACE_SHOW_COMPLETION"])
def test_options_before_the_command_are_not(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image or a chart may have a HEADRACE_VERSION of its own."""
    monkeypatch.setenv(variable, "1")
    assert main(["topic", "create", "t", "--partitions", "many"]) == 2
    assert "--partitions" in capsys.readouterr().err


def test_the_command_line_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_CONSUME_MAX", "-7")
    assert main(["consume", "t"]) == 2
    assert "--max is 0 or more" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_CONSUME_TAIL", "-1")
    assert main(["consume", "t", "--max", "3"]) == 2
    assert "--tail is from 0" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_UP_DATA", str(tmp_path))
    monkeypatch.setenv("HEADRACE_UP_CONFIG", "num.partitions=3 no.such.config=4")
    assert main(["up"]) == 2
    assert "no.such.config is no config" in capsys.readouterr().err
