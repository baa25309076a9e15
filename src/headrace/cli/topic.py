"""`headrace topic`: create, list, describe, alter, reassign, move and delete topics; elect their leaders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.reading import INT_MAX, natural
from headrace.cli.command_config import reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Config, Json, parse_pairs, whole_number
from headrace.cli.output import counted, print_json, print_line, print_table
from headrace.cli.work import moving, trimming

if TYPE_CHECKING:
    from headrace.net.client.admin import Admin
    from headrace.net.client.cluster import Cluster
    from headrace.net.client.errors import RefusedError
    from headrace.net.client.view import TopicView

T = TypeVar("T")

topic = typer.Typer(name="topic", help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

topic.command()(moving.move)
topic.command()(moving.moves)
topic.command()(moving.unload)
topic.command()(trimming.delete_records)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
NOT_NEEDED = "ELECTION_NOT_NEEDED"
IGNORED_IF_THERE = "TOPIC_ALREADY_EXISTS"


def _with_admin(bootstrap: str, action: Callable[[Cluster, Admin], Awaitable[T]]) -> T:
    """Run `action` on a cluster that is closed afterwards."""
    from headrace.net.client.admin import Admin
    from headrace.net.loops import run

    async def main() -> T:
        async with reached(bootstrap) as cluster:
            return await action(cluster, Admin(cluster))

    return run(main())


@topic.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option(parser=whole_number, help="Number of partitions; -1: the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(parser=whole_number, help="Copies of each; -1: the broker's default.")
    ] = -1,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is no error.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, create nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a topic."""
    from headrace.net.client.errors import RefusedError

    configs = parse_pairs(config, "--config")

    async def action(_: Cluster, admin: Admin) -> dict[str, Any]:
        async def allowed(pairs: Mapping[str, str]) -> None:
            await admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=pairs,
                validate_only=True,
            )

        try:
            made = await admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=dry_run,
            )
        except RefusedError as error:
            if if_not_exists and error.code.name == IGNORED_IF_THERE:
                return {"topic": name, "created": False}
            words = ["topic", "create", name, "--partitions", str(partitions)]
            words += ["--replication-factor", str(replication_factor)]
            raise await _with_hint(error, bootstrap, configs, words, allowed) from error
        return {
            "topic": made.name,
            "created": None if not made.acknowledged else not dry_run,  # None: by this command, or by another
            "id": made.id,
            "partitions": made.partitions,
            "replication_factor": made.replication_factor,
        }

    result = _with_admin(bootstrap, action)
    if json:
        print_json(result)
    elif dry_run:
        print_line(f"topic {name} could be created with {counted(result['partitions'], 'partition')}")
    elif result["created"] is None:
        there = counted(result["partitions"], "partition")
        print_line(f"topic {name} is there with {there} (the answer that it was made was lost)")
    elif not result["created"]:
        print_line(f"topic {name} is already there")
    else:
        print_line(f"created topic {name} with {counted(result['partitions'], 'partition')}")


@topic.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the topics."""
    views = _with_admin(bootstrap, lambda _, admin: admin.topics())
    shown = [view for view in views if internal or not view.internal]
    if json:
        for view in shown:
            print_json(_summary(view))
    else:
        rows = [(view.name, len(view.partitions), _replication(view), view.id) for view in shown]
        print_table(("TOPIC", "PARTITIONS", "REPLICAS", "ID"), rows)


@topic.command()
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show a topic's partitions, offsets and configs."""

    async def action(cluster: Cluster, admin: Admin) -> dict[str, Any]:
        from headrace.net.client.offsets import EARLIEST, LATEST, list_offsets
        from headrace.net.client.replicas.standings import standings

        view = await cluster.existing_topic(name)
        online = [part.index for part in view.partitions if part.leader >= 0]
        first = await list_offsets(cluster, name, online, EARLIEST)
        end = await list_offsets(cluster, name, online, LATEST)
        configs = await admin.topic_configs(name)
        replicas = await standings(cluster, name, online)
        partitions = [
            {
                "partition": part.index,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline": list(part.offline),
                "start_offset": first[part.index].offset if part.index in first else None,
                "end_offset": end[part.index].offset if part.index in end else None,
                "lags": {str(replica): one.lag for replica, one in replicas.get(part.index, {}).items()},
            }
            for part in view.partitions
        ]
        values = {one.name: {"value": one.value, "source": one.source} for one in configs}
        return {**_summary(view), "partitions": partitions, "configs": values}

    found = _with_admin(bootstrap, action)
    if json:
        print_json(found)
    else:
        _print_description(found)


@topic.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(parser=whole_number, help="Raise the number of partitions to this.")
    ] = None,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="Back to the default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change a topic's configs, or raise its number of partitions."""
    configs = parse_pairs(config, "--config")
    from headrace.net.client.errors import RefusedError

    removed = list(delete_config or ())
    if partitions is None and not configs and not removed:
        raise UsageError("Nothing to alter: give --partitions N, --config KEY=VALUE or --delete-config KEY.")

    async def action(_: Cluster, admin: Admin) -> None:
        async def allowed(pairs: Mapping[str, str]) -> None:
            await admin.alter_topic_configs(name, set_=pairs, validate_only=True)

        if configs or removed:
            try:
                await admin.alter_topic_configs(name, set_=configs, delete=removed)
            except RefusedError as error:
                raise await _with_hint(error, bootstrap, configs, ["topic", "alter", name], allowed) from error
        if partitions is not None:
            await admin.create_partitions(name, total=partitions)

    _with_admin(bootstrap, action)
    if json:
        print_json({"topic": name, "altered": True, "partitions": partitions, "set": configs, "deleted": removed})
    else:
        print_line(f"altered topic {name}")


@topic.command()
def elect(
    name: Name,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition; may be given again.")] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Where nobody leads, let a replica that is not in sync: RECORDS ARE LOST."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Make the first replica of partitions their leader again."""
    from headrace.net.client.replicas.elections import Elected, elect_leaders

    async def action(cluster: Cluster, _: Admin) -> tuple[Elected, ...]:
        view = await cluster.existing_topic(name)
        chosen = partition or [part.index for part in view.partitions]
        return await elect_leaders(cluster, name, chosen, unclean=unclean)

    results = _with_admin(bootstrap, action)
    for one in results:
        if json:
            print_json({"topic": name, "partition": one.partition, "error": one.error.name, "detail": one.detail})
        else:
            print_line(f"{name}-{one.partition}: {one.detail or one.error.message if one.error else 'elected'}")
    if any(one.error and one.error.name != NOT_NEEDED for one in results):
        raise typer.Exit(1)


@topic.command()
def reassign(
    name: Name,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition; may be given again.")] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="ID[,ID]",
            help="The brokers that are to hold it. 'headrace topic elect' has the first of them lead.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, help="Add brokers where it has fewer; those that hold the least of the topic."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Assign partitions to other brokers, or to more of them; their data are copied there."""
    from headrace.net.client.replicas.reassignments import Reassigned, with_more_replicas
    from headrace.net.client.replicas.reassignments import reassign as ask

    if (replicas is None) == (replication_factor is None):
        raise UsageError("Say who is to hold them: either --replicas 1,2,3 or --replication-factor 3.")
    brokers = () if replicas is None else _parse_brokers(replicas)

    async def action(cluster: Cluster, _: Admin) -> tuple[Reassigned, ...]:
        view = await cluster.existing_topic(name)
        chosen = [part for part in view.partitions if partition is None or part.index in partition]
        if unknown := set(partition or ()) - {part.index for part in chosen}:
            raise UsageError(f"Topic '{name}' has no partition {min(unknown)}, only {len(view.partitions)} of them.")
        plan = {int(part.index): brokers for part in chosen}
        if replication_factor is not None:
            live = (await cluster.metadata((name,))).brokers
            if replication_factor > len(live):
                raise UsageError(f"{len(live)} brokers live: no partition can have {replication_factor} replicas.")
            plan = with_more_replicas(chosen, live, replication_factor)
        return await ask(cluster, name, plan) if plan else ()

    results = _with_admin(bootstrap, action)
    for one in results:
        if json:
            print_json({"topic": name, "partition": one.partition, "error": one.error.name, "detail": one.detail})
        else:
            sentence = (
                one.detail or one.error.message if one.error else "under way; 'headrace topic describe' shows how far"
            )
            print_line(f"{name}-{one.partition}: {sentence}")
    if not results and not json:
        print_line(f"topic {name} has as many replicas already")
    if any(one.error for one in results):
        raise typer.Exit(1)


def _parse_brokers(text: str) -> tuple[int, ...]:
    try:
        return tuple(natural(item.strip(), INT_MAX) for item in text.split(","))
    except ValueError:
        raise UsageError(f"--replicas {text} is no list of broker ids: write it like 1,2,3.") from None


@topic.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to delete.", show_default=False)],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is no error.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete topics with all their records."""

    async def action(_: Cluster, admin: Admin) -> list[tuple[str, bool]]:
        from headrace.net.client.cluster import UnknownTopicError

        done = []
        for name in names:
            try:
                await admin.delete_topic(name)
                done.append((name, True))
            except UnknownTopicError:
                if not if_exists:
                    raise
                done.append((name, False))
        return done

    for name, deleted in _with_admin(bootstrap, action):
        if json:
            print_json({"topic": name, "deleted": deleted})
        else:
            print_line(f"deleted topic {name}" if deleted else f"topic {name} was not there")


async def _with_hint(
    error: RefusedError,
    bootstrap: str,
    configs: Mapping[str, str],
    words: Sequence[str],
    allowed: Callable[[Mapping[str, str]], Awaitable[None]],
) -> HeadraceError:
    """The error, with the command that was meant, if one is known that would not be refused."""
    from headrace.cli.settings.changing import suggestion

    hint = await suggestion(error, bootstrap, "topic", configs, words, allowed, "--config")
    return error if hint is None else HeadraceError(hint)


def _replication(view: TopicView) -> int:
    return max((len(part.replicas) for part in view.partitions), default=0)


def _summary(view: TopicView) -> dict[str, Any]:
    return {
        "topic": view.name,
        "id": str(view.id),
        "internal": view.internal,
        "partitions": len(view.partitions),
        "replication_factor": _replication(view),
    }


def _lags(lags: dict[str, int | None], offline: Sequence[int]) -> str:
    """Each copy's lag. The lag of a copy on a broker that is down is of its last fetch, and is not told."""
    told = {
        replica: "down" if int(replica) in offline else "?" if lag is None else lag for replica, lag in lags.items()
    }
    return ",".join(f"{replica}:{lag}" for replica, lag in told.items()) or "-"


def _print_description(found: dict[str, Any]) -> None:
    print_line(f"{found['topic']}  id {found['id']}  replication factor {found['replication_factor']}")
    print_line("")
    partitions = [
        (
            part["partition"],
            part["leader"] if part["leader"] >= 0 else "none",
            part["leader_epoch"],
            ",".join(map(str, part["replicas"])),
            ",".join(map(str, part["isr"])),
            "-" if part["start_offset"] is None else part["start_offset"],
            "-" if part["end_offset"] is None else part["end_offset"],
            _lags(part["lags"], part["offline"]),
        )
        for part in found["partitions"]
    ]
    print_table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END", "LAG"), partitions)
    print_line("")
    from headrace.net.client.admin import ConfigSource

    default = ConfigSource.DEFAULT_CONFIG.name
    own = {name: each for name, each in found["configs"].items() if each["source"] != default}
    if own:
        print_table(
            ("CONFIG", "VALUE", "SOURCE"), [(name, each["value"], each["source"]) for name, each in own.items()]
        )
        print_line("")
    others = counted(len(found["configs"]) - len(own), "config")
    print_line(f"{others} more at the default; 'headrace config list topic {found['topic']}' shows all")
