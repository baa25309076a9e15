"""Short options: one letter means one thing in all commands, and the page of users says what."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import typer.main

from headrace.cli.commands import SHORT
from headrace.cli.main import app
from tests.cli.test_every_command import COMMANDS

PAGE = Path(__file__).parents[3] / "docs/USING.md"


def options() -> list[tuple[str, list[str]]]:
    """The names of each option of each command, and of `headrace` itself."""
    commands = {**COMMANDS, "": typer.main.get_command(app)}
    return [(name, each.opts) for name, one in commands.items() for each in one.params if each.opts[0].startswith("-")]


def test_a_letter_means_one_option_everywhere() -> None:
    meant: defaultdict[str, set[str]] = defaultdict(set)
    for _, names in options():
        for short in (each for each in names if not each.startswith("--")):
            meant[short] |= {each for each in names if each.startswith("--")}
    assert {letter: {long} for long, letter in SHORT.items() if long != "--help"} == meant
    assert len(set(SHORT.values())) == len(SHORT)


def test_an_option_has_its_letter_in_every_command() -> None:
    for command, names in options():
        for long in names:
            assert long not in SHORT or SHORT[long] in names, command


def test_users_find_them_on_one_page() -> None:
    told = dict(re.findall(r"^\| `(-\w)` \| `(--[a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == {short: long for long, short in SHORT.items()}
