"""`headrace broker`: run one broker of a cluster; list, describe, remove, promote and demote existing ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import BROKER_DEATH_LOOK_S, BROKER_DEATH_WAIT_S
from headrace.cli.command_config import reached, with_cluster
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    LOCAL,
    Bootstrap,
    Config,
    ConfigFile,
    Engine,
    Insecure,
    Json,
    LogLevel,
    NoBootstrap,
    Redis,
    broker_configs,
    check_engine,
    whole_number,
)
from headrace.cli.output import note, print_json, print_line, print_table
from headrace.cli.work import moving
from headrace.operations.bearing import bearing

if TYPE_CHECKING:
    from headrace.net.client.members import BrokerView, Members

T = TypeVar("T")

broker = typer.Typer(name="broker", help="Run a broker of a cluster, or ask for and change those that are there.")
broker.command()(moving.drain)
Id = Annotated[int, typer.Argument(parser=whole_number, metavar="ID", help="The broker's id.", show_default=False)]


@broker.callback(invoke_without_command=True)
def run_broker(
    context: typer.Context,
    id_: Annotated[
        int | None,
        typer.Option(
            "--id",
            envvar="HEADRACE_BROKER_ID",
            show_envvar=False,
            parser=whole_number,
            metavar="N",
            help="Its id, unique in the cluster.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where it keeps its data; made where absent.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Where it listens; port 0 takes a free one. Default: {DEFAULT_BOOTSTRAP}.",
            show_default=False,
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option("--join", metavar="HOST:PORT[,HOST:PORT]", help="Brokers of the cluster, tried in turn."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="What clients are told; default: --listen."),
    ] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="NAME", help="Replicas are spread over racks.")] = None,
    durable: Annotated[
        str | None,
        typer.Option("--durable", metavar="URL", help="The store of durable segments, e.g. file:///var/lib/store."),
    ] = None,
    engine: Engine = LOCAL,
    redis: Redis = None,
    config: Config = None,
    config_file: ConfigFile = None,
    insecure: Insecure = False,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    log_level: LogLevel = "info",
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="Stop where standard input ends.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    With --join it joins the cluster that answers there. It waits for one, and never makes one of its own. Prints one
    line, "ready HOST:PORT", on standard output as soon as it serves; logs go to standard error.
    """
    if context.invoked_subcommand is not None:
        return
    if id_ is None and data is None and join is None:
        print_line(context.get_help())
        raise typer.Exit(2)
    from headrace.cli.work.serve import serve

    if id_ is None or data is None:
        raise UsageError("A broker needs an id and a directory: headrace broker --id 2 --data DIR --join HOST:PORT.")
    if not 0 <= id_ <= 2**31 - 1:
        raise UsageError(f"--id {id_} is not a broker's id: choose one from 0 to {2**31 - 1}.")
    check_engine(engine, redis)
    if engine != LOCAL and redis is None:
        raise UsageError("A broker on Redis needs its address: add --redis redis://HOST:6379/0.")
    configs = broker_configs(config_file, config, tell=None if with_parent else note)
    if durable is not None:
        configs["durable.url"] = durable
    if insecure:
        configs["headrace.insecure.listeners"] = "true"
    serve(
        data=data.resolve(),
        listen=listen,
        advertise=advertise,
        configs=configs,
        json_logs=json,
        broker_id=id_,
        join=join,
        rack=rack,
        with_parent=with_parent,
        redis=redis,
        log_level=log_level,
        read_again=partial(broker_configs, config_file, config) if config_file else None,
    )


@broker.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the registered brokers, with the partitions that each leads and holds, and what of its disk is used."""
    from headrace.operations.loads import listed

    found = with_cluster(bootstrap, listed)
    if json:
        for one in found:
            print_json({**_fields(one.view), **one.fields()})
    else:
        rows = [
            (
                one.view.id,
                str(one.view.address),
                _state(one.view),
                "yes" if one.view.controller else "",
                one.view.rack or "",
                one.leads,
                one.replicas,
                "-" if one.disk is None else f"{one.disk.percent} %",
            )
            for one in found
        ]
        print_table(("ID", "ADDRESS", "STATE", "CONTROLLER", "RACK", "LEADS", "REPLICAS", "DISK"), rows)


@broker.command()
def describe(id_: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show one broker, and the partitions that it leads and holds."""

    async def action(members: Members) -> dict[str, Any]:
        view = await members.broker(id_)
        quorum = await members.quorum()
        cluster = await members.metadata()
        partitions = [
            (topic.name, part) for topic in cluster.topics.values() for part in topic.partitions if id_ in part.replicas
        ]
        role = next(("voter" if member.voter else "learner" for member in quorum.members if member.id == id_), "none")
        return {
            **_fields(view),
            "quorum": role,
            "leads": sum(part.leader == id_ for _, part in partitions),
            "replicas": len(partitions),
            "out_of_sync": sorted(f"{name}-{part.index}" for name, part in partitions if id_ not in part.isr),
        }

    found = with_members(bootstrap, action)
    if json:
        print_json(found)
    else:
        for key, value in found.items():
            print_line(f"{key.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")


@broker.command()
def remove(id_: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Remove a broker that was stopped for good, and say how many losses the quorum bears without it. It waits for
    the end of the session of a broker that died just now."""

    async def action(members: Members) -> str | None:
        await _until_its_death_is_known(members, id_)
        await members.remove(id_)
        try:
            return bearing(await members.quorum(), await members.brokers())
        except HeadraceError:  # it is removed all the same
            return None

    borne = with_members(bootstrap, action)
    text = f"removed broker {id_}" + ("" if borne is None else f"; the quorum has {borne}")
    _say({"broker": id_, "removed": True, "quorum": borne}, text, json=json)


@broker.command()
def promote(id_: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Give a broker a vote in the quorum."""
    with_members(bootstrap, lambda members: members.promote(id_))
    _say({"broker": id_, "voter": True}, f"broker {id_} is a voter", json=json)


@broker.command()
def demote(id_: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Take a broker's vote in the quorum; it keeps the log, and is promoted by hand only."""
    with_members(bootstrap, lambda members: members.demote(id_))
    _say({"broker": id_, "voter": False}, f"broker {id_} is a learner", json=json)


async def _until_its_death_is_known(members: Members, broker_id: int) -> None:
    """Wait while the broker counts as alive, though it does not answer at its address; at most BROKER_DEATH_WAIT_S.
    Raises ClientError where it is not registered."""
    import asyncio

    view = await members.broker(broker_id)
    if view.fenced or await members.answers(view):
        return
    note(f"broker {broker_id} does not answer: waiting for the end of its session, {BROKER_DEATH_WAIT_S} s at most")
    with suppress(TimeoutError):  # the removal is refused then, with the reason
        async with asyncio.timeout(BROKER_DEATH_WAIT_S):
            while True:
                await asyncio.sleep(BROKER_DEATH_LOOK_S)
                if (await members.broker(broker_id)).fenced:
                    return


def with_members(bootstrap: str, action: Callable[[Members], Awaitable[T]]) -> T:
    """Run an action on the members of a cluster."""
    from headrace.net.client.members import Members
    from headrace.net.loops import run

    async def work() -> T:
        async with reached(bootstrap) as cluster:
            return await action(Members(cluster))

    return run(work())


def _state(view: BrokerView) -> str:
    return "fenced" if view.fenced else "live"


def _fields(view: BrokerView) -> dict[str, Any]:
    return {
        "broker": view.id,
        "host": view.host,
        "port": view.port,
        "rack": view.rack,
        "state": _state(view),
        "controller": view.controller,
    }


def _say(fields: dict[str, Any], text: str, *, json: bool) -> None:
    if json:
        print_json(fields)
    else:
        print_line(text)
