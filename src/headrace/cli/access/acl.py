"""`headrace acl`: who may do what. Resources, operations and principals have Kafka's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import note, print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.metadata.access.acls import Acl
    from headrace.net.client.cluster import Cluster
    from headrace.operations.rights import Wanted


acl = typer.Typer(name="acl", help="List, give, deny and remove rights (ACLs).", no_args_is_help=True)

Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", metavar="User:NAME", help="May be given again; User:* is everybody."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="NAME",
        help="Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs, ClusterAction, "
        "IdempotentWrite, TwoPhaseCommit or All; may be given again.",
    ),
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; * is every one.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A consumer group.")]
Transactions = Annotated[list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id.")]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="An address, or a network as CIDR. All by default."),
]
Pattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type", metavar="TYPE", help="literal, or prefixed: names are the beginnings of names."
    ),
]
AnyPattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type", metavar="TYPE", help="literal, prefixed, any, or match: all that cover the name."
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; else it is only said what would be done.")]
COLUMNS: Final = ("PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "RESOURCE", "PATTERN", "NAME")


@acl.command("list")
def list_(
    principal: Principals = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: OnCluster = False,
    host: Hosts = None,
    resource_pattern_type: AnyPattern = "any",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List ACLs: all, or those that the options name."""
    from headrace.operations.rights import Wanted, matching

    wanted = Wanted.of(
        principal, operation, topic, group, transactional_id, host, cluster=cluster, pattern=resource_pattern_type
    )
    _print(with_cluster(bootstrap, lambda client: matching(client, wanted)), json=json)


@acl.command()
def allow(
    principal: Principals = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: OnCluster = False,
    host: Hosts = None,
    resource_pattern_type: Pattern = "literal",
    producer: Annotated[
        bool, typer.Option("--producer", help="All that a producer needs on its topics and transactional ids.")
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="All that a consumer needs on its topics and groups.")
    ] = False,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Allow operations on resources."""
    from headrace.operations.rights import Wanted

    wanted = Wanted.of(
        principal, operation, topic, group, transactional_id, host, cluster=cluster, pattern=resource_pattern_type
    )
    _create(bootstrap, wanted, denied=False, producer=producer, consumer=consumer, execute=execute, json=json)


@acl.command()
def deny(
    principal: Principals = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: OnCluster = False,
    host: Hosts = None,
    resource_pattern_type: Pattern = "literal",
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Deny operations on resources, whatever else allows them."""
    from headrace.operations.rights import Wanted

    wanted = Wanted.of(
        principal, operation, topic, group, transactional_id, host, cluster=cluster, pattern=resource_pattern_type
    )
    _create(bootstrap, wanted, denied=True, producer=False, consumer=False, execute=execute, json=json)


@acl.command()
def remove(
    principal: Principals = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    cluster: OnCluster = False,
    host: Hosts = None,
    resource_pattern_type: AnyPattern = "any",
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Remove ACLs that the options name, those that allow and those that deny."""
    from headrace.net.client.access.acls import delete as ask
    from headrace.operations.rights import Wanted, matching

    wanted = Wanted.of(
        principal, operation, topic, group, transactional_id, host, cluster=cluster, pattern=resource_pattern_type
    )
    if wanted.is_everything:
        raise UsageError("Say which to remove: --principal, --topic, --group, --transactional-id or --cluster.")

    async def action(client: Cluster) -> list[Acl]:
        found = await matching(client, wanted)
        if found and execute:
            await ask(client, found)
        return found

    found = with_cluster(bootstrap, action)
    _tell(found, "removed", "would be removed", "no ACL is like this", executed=execute, json=json)


def _create(
    bootstrap: str, wanted: Wanted, *, denied: bool, producer: bool, consumer: bool, execute: bool, json: bool
) -> None:
    from headrace.net.client.access.acls import create as ask
    from headrace.operations.rights import missing

    acls = wanted.acls(denied=denied, producer=producer, consumer=consumer)

    async def action(client: Cluster) -> list[Acl]:
        lacking = await missing(client, acls)
        if lacking and execute:
            await ask(client, lacking)
        return lacking

    lacking = with_cluster(bootstrap, action)
    _tell(lacking, "created", "would be created", "all of this is there already", executed=execute, json=json)


def _fields(one: Acl) -> dict[str, Any]:
    from headrace.operations.rights import word

    return {
        "principal": one.rule.principal,
        "host": one.rule.host,
        "permission": word(one.rule.permission),
        "operation": word(one.rule.operation),
        "resource": word(one.pattern.resource_type),
        "pattern": word(one.pattern.pattern_type),
        "name": one.pattern.name,
    }


def _print(acls: Sequence[Acl], *, json: bool) -> None:
    for one in acls if json else ():
        print_json(_fields(one))
    if not json:
        print_table(COLUMNS, [tuple(_fields(one).values()) for one in acls])


def _tell(acls: Sequence[Acl], done: str, would_be: str, nothing: str, *, executed: bool, json: bool) -> None:
    for one in acls:
        fields = _fields(one)
        if json:
            print_json({**fields, "executed": executed})
        else:
            text = "{principal} from {host}: {permission} {operation} on {resource} {pattern} {name}".format(**fields)
            print_line(f"{text}: {done if executed else would_be}")
    if not acls and not json:
        print_line(nothing)
    elif acls and not executed:
        note("nothing was changed: add --execute to do this")
