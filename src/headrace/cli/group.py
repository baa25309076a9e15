"""`headrace group`: list, describe and delete consumer groups, and set their offsets."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.base.errors import HeadraceError, UsageError
from headrace.cli.command_config import reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number
from headrace.cli.output import note, print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.net.client.cluster import Cluster
    from headrace.net.client.groups import Groups, GroupView, TopicPartition
    from headrace.operations.resetting import Reset

T = TypeVar("T")

group = typer.Typer(name="group", help="List, describe, reset and delete consumer groups.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]


def _with_groups(bootstrap: str, action: Callable[[Cluster, Groups], Awaitable[T]]) -> T:
    """Run `action` on a cluster that is closed afterwards."""
    from headrace.net.client.groups import Groups
    from headrace.net.loops import run

    async def main() -> T:
        async with reached(bootstrap) as cluster:
            return await action(cluster, Groups(cluster))

    return run(main())


@group.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(help="Only those in this state: Empty, Stable...; may be given again.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the groups of all brokers."""
    wanted = {one.lower() for one in state or ()}
    found = _with_groups(bootstrap, lambda _, groups: groups.list_groups())
    shown = [one for one in found if not wanted or one.state.lower() in wanted]
    if json:
        for one in shown:
            print_json(
                {
                    "group": one.name,
                    "state": one.state,
                    "type": one.kind,
                    "protocol_type": one.protocol_type,
                    "coordinator": one.coordinator,
                }
            )
    else:
        rows = [(one.name, one.state, one.kind, one.protocol_type or "-", one.coordinator) for one in shown]
        print_table(("GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"), rows)


@group.command()
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show a group's members, its committed offsets, and its lag."""

    async def action(cluster: Cluster, _: Groups) -> dict[str, Any]:
        from headrace.operations.groups import described

        found = await described(cluster, name)
        rows = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "committed_offset": one.committed,
                "end_offset": one.end,
                "lag": one.lag,
                "member": one.owner and one.owner.id,
                "instance": one.owner and one.owner.instance_id,
                "client": one.owner and one.owner.client_id,
                "host": one.owner and one.owner.host,
            }
            for one in found.shares
        ]
        return {**_summary(found.view), "partitions": rows}

    found = _with_groups(bootstrap, action)
    if json:
        print_json(found)
    else:
        _print_description(found)


@group.command("reset-offsets")
def reset_offsets(
    name: Name,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[:0,1]", help="Of this topic, or these partitions of it; may be given again."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Of all that it has committed.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is there.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where it is.")] = False,
    to_offset: Annotated[int | None, typer.Option(parser=whole_number, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the first record at this time or later (UTC, ISO 8601).")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="PT1H", help="To the first record that is not older than this (ISO 8601).")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="On by N records; back, where it is negative.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="CSV", help="To what this says in lines of TOPIC,PARTITION,OFFSET.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; else it is only said what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Set the offsets from which a group without members continues to read."""
    from headrace.operations.resetting import Target, parse_datetime, parse_duration, parse_topics, plan, read_file

    given = (to_earliest, to_latest, to_current, *(one is not None for one in (to_offset, to_datetime, by_duration)))
    if sum((*given, shift_by is not None, from_file is not None)) != 1:
        raise UsageError(
            "Say where to, in one way: --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by or --from-file."
        )
    if from_file is None and bool(topic) == all_topics:
        raise UsageError("Say of which topics: --topic TOPIC, --topic TOPIC:0,1 or --all-topics.")
    timestamp_ms = None if to_datetime is None else parse_datetime(to_datetime)
    target = Target(
        earliest=to_earliest,
        latest=to_latest,
        current=to_current,
        offset=to_offset,
        shift=shift_by,
        timestamp_ms=timestamp_ms if by_duration is None else parse_duration(by_duration, time.time_ns() // 1_000_000),
        file=None if from_file is None else read_file(from_file),
    )
    topics = parse_topics(topic or ())

    async def action(cluster: Cluster, groups: Groups) -> list[Reset]:
        from headrace.operations.groups import check_inactive, chosen

        view = await groups.describe(name)
        check_inactive(view)
        committed = await groups.committed(name)
        partitions = await chosen(cluster, topics, committed, target)
        resets = await plan(cluster, target, partitions, committed)
        if execute:
            await groups.commit(name, _positions(resets))
        return resets

    resets = _with_groups(bootstrap, action)
    _print_resets(name, resets, executed=execute, json=json)


def _positions(resets: list[Reset]) -> dict[TopicPartition, int]:
    from headrace.net.client.groups import TopicPartition

    return {TopicPartition(one.topic, one.partition): one.new for one in resets}


@group.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Groups to delete.", show_default=False)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete groups without members, with all their committed offsets."""
    from headrace.net.client.errors import RefusedError
    from headrace.operations.groups import check_inactive, unknown

    async def action(_: Cluster, groups: Groups) -> list[str]:
        for name in names:
            try:
                await groups.delete(name)
            except RefusedError as error:
                if error.code.name == "GROUP_ID_NOT_FOUND":
                    raise HeadraceError(unknown(name)) from error
                if error.code.name == "NON_EMPTY_GROUP":
                    check_inactive(await groups.describe(name))
                raise
        return names

    for name in _with_groups(bootstrap, action):
        if json:
            print_json({"group": name, "deleted": True})
        else:
            print_line(f"deleted group {name}")


def _summary(view: GroupView) -> dict[str, Any]:
    return {
        "group": view.name,
        "state": view.state,
        "coordinator": view.coordinator,
        "protocol_type": view.protocol_type,
        "protocol": view.protocol,
        "members": [
            {"member": one.id, "instance": one.instance_id, "client": one.client_id, "host": one.host}
            for one in view.members
        ],
    }


def _print_description(found: dict[str, Any]) -> None:
    parts, members = found["partitions"], len(found["members"])
    lag = sum(part["lag"] or 0 for part in parts)
    print_line(
        f"{found['group']}  {found['state']}  coordinator {found['coordinator']}  protocol {found['protocol'] or '-'}  "
        f"members {members}  lag {lag}"
    )
    print_line("")
    rows = [
        tuple("-" if part[key] is None else part[key] for key in ("topic", "partition", *COLUMNS)) for part in parts
    ]
    print_table(("TOPIC", "PARTITION", *(name.split("_")[0].upper() for name in COLUMNS)), rows)
    owners = {part["member"] for part in parts}
    for member in found["members"]:
        if member["member"] not in owners:
            print_line(f"{member['member']} at {member['host']} reads nothing")


COLUMNS = ("committed_offset", "end_offset", "lag", "member", "instance", "client", "host")


def _print_resets(name: str, resets: list[Reset], *, executed: bool, json: bool) -> None:
    if json:
        for one in resets:
            print_json(
                {
                    "group": name,
                    "topic": one.topic,
                    "partition": one.partition,
                    "committed_offset": one.current,
                    "new_offset": one.new,
                    "executed": executed,
                }
            )
        return
    rows = [(one.topic, one.partition, "-" if one.current is None else one.current, one.new) for one in resets]
    print_table(("TOPIC", "PARTITION", "COMMITTED", "NEW"), rows)
    if not executed:
        note("nothing was changed: add --execute to do this")
