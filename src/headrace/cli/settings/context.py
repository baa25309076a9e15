"""`headrace context`: names for clusters, so that their addresses need not be typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Json, NoBootstrap
from headrace.cli.output import print_json, print_line, print_table

context = typer.Typer(name="context", help="Name clusters, and choose the one that is asked.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)]


@context.command()
def add(
    name: Name,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            envvar="HEADRACE_BOOTSTRAP",
            metavar="HOST:PORT[,HOST:PORT]",
            help="Brokers of the cluster, tried in turn.",
        ),
    ] = DEFAULT_BOOTSTRAP,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            envvar="HEADRACE_COMMAND_CONFIG",
            metavar="FILE",
            help="Kafka's properties of a client. They stay in this file.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Add a context, or change one."""
    from headrace.base.addresses import parse_bootstrap
    from headrace.cli.settings.contexts import Place, load, save

    parse_bootstrap(bootstrap)
    if not name.strip() or name.startswith("-"):
        raise UsageError("A context has a name that does not begin with a dash.")
    file = None if command_config is None else command_config.expanduser().resolve()
    if file is not None and not file.is_file():
        raise UsageError(f"--command-config {file} cannot be read: it is no file.")
    contexts = load()
    contexts.places[name] = Place(bootstrap, None if file is None else str(file))
    save(contexts)
    _say(name, "added", f"added context {name}: 'headrace context use {name}' makes it the default", json=json)


@context.command()
def use(name: Name, bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Have commands ask this cluster, where nothing else is said."""
    from headrace.cli.settings.contexts import load, save

    contexts = load()
    contexts.named(name)
    contexts.current = name
    save(contexts)
    _say(name, "used", f"commands use context {name}", json=json)


@context.command("list")
def list_(bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the contexts; the one in use has a star."""
    from headrace.cli.settings.contexts import load

    contexts = load()
    for name, each in sorted(contexts.places.items()) if json else ():
        used = name == contexts.current
        print_json({"context": name, "used": used, "bootstrap": each.bootstrap, "command_config": each.command_config})
    if not json:
        rows = [
            ("*" if name == contexts.current else "", name, each.bootstrap, each.command_config or "")
            for name, each in sorted(contexts.places.items())
        ]
        print_table(("", "CONTEXT", "BOOTSTRAP", "COMMAND CONFIG"), rows)


@context.command()
def remove(name: Name, bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Remove a context. The cluster and the file of properties stay."""
    from headrace.cli.settings.contexts import load, save

    contexts = load()
    contexts.named(name)
    del contexts.places[name]
    if contexts.current == name:
        contexts.current = None
    save(contexts)
    _say(name, "removed", f"removed context {name}", json=json)


@context.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Default: the one in use.", show_default=False)
    ] = None,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show a context with its client properties. Values that may be secret are hidden."""
    from headrace.cli.command_config import read_properties
    from headrace.cli.settings.contexts import load, shown

    contexts = load()
    if (chosen := name or contexts.current) is None:
        raise UsageError(
            "No context is in use: 'headrace context use NAME' chooses one, 'headrace context list' has all."
        )
    place = contexts.named(chosen)
    file = place.command_config
    found: dict[str, Any] = {"context": chosen, "used": chosen == contexts.current, "bootstrap": place.bootstrap}
    found |= {"command_config": file, "properties": {} if file is None else shown(read_properties(Path(file)))}
    if json:
        print_json(found)
        return
    for key in ("context", "bootstrap", "command_config"):
        print_line(f"{key.replace('_', ' ')}: {found[key] or '-'}")
    for key, value in found["properties"].items():
        print_line(f"  {key}={value}")


def _say(name: str, done: str, text: str, *, json: bool) -> None:
    if json:
        print_json({"context": name, done: True})
    else:
        print_line(text)
