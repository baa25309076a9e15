"""The commands of `headrace`, each loaded when it is named or shown in help. So `headrace --version` loads none.

Promises:
- A short option means one long option, in every command that has that one (`SHORT`).
- Every command that asks brokers takes --command-config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

MODULES: Final = {
    "up": "headrace.cli.up",
    "broker": "headrace.cli.broker",
    "quorum": "headrace.cli.quorum",
    "upgrade": "headrace.cli.settings.upgrade",
    "status": "headrace.cli.status",
    "doctor": "headrace.cli.doctor",
    "top": "headrace.cli.top",
    "console": "headrace.cli.console",
    "mcp": "headrace.cli.mcp",
    "sim": "headrace.cli.sim",
    "topic": "headrace.cli.topic",
    "group": "headrace.cli.group",
    "config": "headrace.cli.settings.config",
    "quota": "headrace.cli.settings.quota",
    "txn": "headrace.cli.txn",
    "user": "headrace.cli.access.user",
    "acl": "headrace.cli.access.acl",
    "durable": "headrace.cli.durable",
    "pipeline": "headrace.cli.pipeline",
    "context": "headrace.cli.settings.context",
    "produce": "headrace.cli.produce",
    "consume": "headrace.cli.consume",
    "demo": "headrace.cli.demo",
    "debug": "headrace.cli.debug",
}
"""Where each command is. It has the command's name there: a function, or a Typer of more commands."""

SHORT: Final = {
    "--bootstrap": "-b",
    "--command-config": "-F",
    "--compression": "-z",
    "--config": "-c",
    "--data": "-d",
    "--end": "-e",
    "--format": "-f",
    "--group": "-g",
    "--header": "-H",
    "--help": "-h",
    "--json": "-J",
    "--key": "-k",
    "--key-separator": "-K",
    "--max": "-n",
    "--offset": "-o",
    "--partition": "-p",
    "--topic": "-t",
    "--version": "-V",
}
"""The short form of options, the same in every command. kcat's letters and rpk's, where these agree."""


class Commands(Mapping[str, Any]):
    """Click's commands by name. Each is built when it is first asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in MODULES:
            raise KeyError(name)
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class Root(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": Commands()})
        dress_options(self)

    def get_params(self, ctx: Any) -> list[Any]:
        """Its own options, of which none but those with a variable of their own stand in the environment:
        HEADRACE_VERSION may be an image's."""
        found: list[Any] = super().get_params(ctx)
        for each in found:
            each.allow_from_autoenv = False
            if each.is_flag:  # those of completion come late
                each.metavar = ""
        return found


def declared(name: str) -> typer.Typer:
    """A Typer with this command alone."""
    from headrace.cli.command_config import give_command_config

    command = getattr(import_module(MODULES[name]), name)
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    holder.callback()(_nothing)
    if isinstance(command, typer.Typer):
        holder.add_typer(command)
    else:
        holder.command()(command)
    give_command_config(holder)
    return holder


def dress_options(command: Any) -> None:
    """Give each option of `command`, and of the commands in it, its short form. Flags take no value, so help shows no
    type of them."""
    command.get_help_option = partial(_help_without_type, command.get_help_option)
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if parameter.envvar is None and hasattr(parameter, "show_envvar"):
            parameter.show_envvar = False  # all have one: help would be twice as long
        for long in tuple(parameter.opts):
            if (short := SHORT.get(long)) is not None and short not in parameter.opts:
                parameter.opts.append(short)
    if not isinstance(command, Root):
        for inner in getattr(command, "commands", {}).values():
            dress_options(inner)


@cache
def _built(name: str) -> Any:
    from typer.main import get_command

    group = get_command(declared(name))
    assert isinstance(group, TyperGroup), "it has a callback"
    dress_options(group)
    return group.commands[name]


def _help_without_type(ask: Callable[[Any], Any], context: Any) -> Any:
    option = ask(context)
    if option is not None:
        option.metavar = ""
    return option


def _nothing() -> None:
    """Make of a Typer with one command a group."""
