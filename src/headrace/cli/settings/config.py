"""`headrace config`: shows and changes configs of topics, brokers and groups, and quotas of clients, users and ips."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_pairs
from headrace.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.cli.settings.changing import Setting, Subject
    from headrace.net.client.cluster import Cluster

T = TypeVar("T")

config = typer.Typer(
    name="config", help="Show and change configs, with their sources and what they mean.", no_args_is_help=True
)


class Kind(StrEnum):
    """The things that have settings."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"
    CLIENT = "client"
    USER = "user"
    IP = "ip"


KindOf = Annotated[Kind, typer.Argument(metavar="KIND", help="topic, broker, group, client, user or ip.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name; a broker's id, or all for the defaults of all brokers.")
]
Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="The names of configs.", show_default=False)]
Pairs = Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="What to set.", show_default=False)]
Doc = Annotated[bool, typer.Option("--doc", help="Also say what each is for.")]


@config.command("list")
def list_(
    kind: KindOf,
    name: Name,
    changed: Annotated[bool, typer.Option("--changed", help="Only those that are not the default.")] = False,
    doc: Doc = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List all configs of a thing, with the source of each value."""
    from headrace.cli.settings.changing import settings_of

    found = _run(bootstrap, kind, name, settings_of)
    shown = [each for each in found if not (changed and each.is_default)]
    show(shown, doc=doc, json=json)


@config.command()
def get(kind: KindOf, name: Name, keys: Keys, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show configs of a thing: the value, where it comes from, and what it is for."""
    from headrace.cli.settings.changing import ENTITIES, settings_of, unknown

    async def action(cluster: Cluster, subject: Subject) -> list[Setting]:
        found = {each.name: each for each in await settings_of(cluster, subject)}
        for key in keys:
            if key not in found:
                raise UsageError(unknown(subject, key, list(found), bootstrap))
        return [found[key] for key in dict.fromkeys(keys)]

    shown = _run(bootstrap, kind, name, action)
    for each in shown:
        if json:
            print_json(fields(each))
            continue
        print_line(f"{each.name}={'' if each.value is None else each.value}")
        print_line(f"  from {each.source}" + ("" if kind.value in ENTITIES or not each.is_default else ", not set"))
        if each.documentation:
            print_line(f"  {each.documentation}")


@config.command("set")
def set_(kind: KindOf, name: Name, pairs: Pairs, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Set configs of a thing, all or none."""
    from headrace.cli.settings.changing import change_or_suggest

    wanted = parse_pairs(pairs, "the config")

    async def action(cluster: Cluster, subject: Subject) -> None:
        await change_or_suggest(bootstrap, cluster, subject, wanted)

    _run(bootstrap, kind, name, action)
    if json:
        print_json({"kind": kind.value, "name": name, "set": wanted})
    else:
        print_line(f"set {', '.join(wanted)} of {kind.value} {name}")


@config.command()
def unset(kind: KindOf, name: Name, keys: Keys, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Take configs of a thing back to their defaults, all or none."""
    from headrace.cli.settings import changing

    async def action(cluster: Cluster, subject: Subject) -> None:
        await changing.unset(bootstrap, cluster, subject, keys)

    _run(bootstrap, kind, name, action)
    if json:
        print_json({"kind": kind.value, "name": name, "unset": keys})
    else:
        print_line(f"unset {', '.join(keys)} of {kind.value} {name}")


def _run(bootstrap: str, kind: Kind, name: str, action: Callable[[Cluster, Subject], Awaitable[T]]) -> T:
    from headrace.cli.settings.changing import Subject

    return with_cluster(bootstrap, lambda cluster: action(cluster, Subject(kind.value, name)))


def show(found: Sequence[Setting], *, doc: bool, json: bool) -> None:
    """Print settings."""
    for each in found if json else ():
        print_json(fields(each))
    if not json:
        rows = [(each.name, "" if each.value is None else each.value, each.source) for each in found]
        docs = [(each.documentation or "",) if doc else () for each in found]
        columns = ("CONFIG", "VALUE", "SOURCE", *(("DOCUMENTATION",) if doc else ()))
        print_table(columns, [(*row, *more) for row, more in zip(rows, docs, strict=True)])


def fields(each: Setting) -> dict[str, Any]:
    """A setting for JSON."""
    return {
        "name": each.name,
        "value": each.value,
        "source": each.source,
        "is_default": each.is_default,
        "documentation": each.documentation,
    }
