"""`headrace up --console` hands each option of the console on, or says why it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.cli.settings.console_options import BY_ENVIRONMENT, SAID_BY_UP, handed_on
from tests.cli.test_every_command import COMMANDS

OF_EVERY_COMMAND = {"help", "command_config", "context_name"}
CONSOLE = {each.name: each for each in COMMANDS["console"].params if each.name not in OF_EVERY_COMMAND}
UP = {each.name: each for each in COMMANDS["up"].params}
HANDED_ON = CONSOLE.keys() - SAID_BY_UP - BY_ENVIRONMENT


def test_each_option_of_the_console_is_one_of_up_or_is_named_as_one_that_is_not() -> None:
    assert CONSOLE.keys() >= SAID_BY_UP | BY_ENVIRONMENT, "none is named that the console does not have"
    assert UP.keys() >= HANDED_ON
    for name in HANDED_ON:
        assert (UP[name].opts, UP[name].multiple) == (CONSOLE[name].opts, CONSOLE[name].multiple)
    assert {"schema_registry", "schemas", "prometheus", "prometheus_label", "pipelines", "mask"} <= HANDED_ON


def words_of(option: Any, values: list[str]) -> list[str]:
    if option.is_flag:
        return [option.opts[0]]
    return [word for value in values[: None if option.multiple else 1] for word in (option.opts[0], value)]


@pytest.mark.parametrize("name", sorted(HANDED_ON))
def test_the_console_gets_what_up_was_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of(CONSOLE[name], ["https://ada:of-ada@registry.test/a b", "-c=d"])
    wanted = COMMANDS["console"].make_context("console", list(words)).params
    given = COMMANDS["up"].make_context("up", ["--data", "data", "--console", "127.0.0.1:0", *words]).params
    handed, environment = handed_on({each: given[each] for each in HANDED_ON})
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    got = COMMANDS["console"].make_context("console", handed, auto_envvar_prefix="HEADRACE_CONSOLE").params
    assert wanted[name]
    assert {each: got[each] for each in HANDED_ON} == {each: wanted[each] for each in HANDED_ON}
    assert "of-ada" not in " ".join(handed) or CONSOLE[name].multiple, "all users of a machine see a command's words"


@pytest.mark.parametrize("name", sorted(HANDED_ON))
def test_options_of_the_console_want_one(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(CONSOLE[name], ["a"])
    assert main(["up", "--data", str(tmp_path / "data"), *words]) == 2
    assert f"{words[0]} goes with --console" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
