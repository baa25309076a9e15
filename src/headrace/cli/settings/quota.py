"""`headrace quota`: the quotas of users, client ids and addresses, as Kafka has them (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_pairs
from headrace.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.metadata.access.quotas import QuotaEntity

quota = typer.Typer(name="quota", help="List, show and set quotas of users, clients and ips.", no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of this user.")]
Client = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="Of this client id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Of clients at this address.")]
AnyUser = Annotated[bool, typer.Option("--default-user", help="Of each user without a quota of its own.")]
AnyClient = Annotated[bool, typer.Option("--default-client-id", help="Of each client id without a quota of its own.")]
AnyIp = Annotated[bool, typer.Option("--default-ip", help="Of each address without a quota of its own.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="The names of quotas.", show_default=False)]
Pairs = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=VALUE...",
        help="producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate; of an ip "
        "connection_creation_rate.",
        show_default=False,
    ),
]
Parts = dict[str, str | None]


@quota.command("list")
def list_(
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: AnyUser = False,
    default_client_id: AnyClient = False,
    default_ip: AnyIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List quotas: all, or those of entities that have these parts, and perhaps others."""
    parts = _parts(user, client_id, ip, default_user, default_client_id, default_ip)
    _print(bootstrap, parts, strict=False, json=json)


@quota.command()
def get(
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: AnyUser = False,
    default_client_id: AnyClient = False,
    default_ip: AnyIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the quotas of one entity."""
    parts = _one(_parts(user, client_id, ip, default_user, default_client_id, default_ip))
    _print(bootstrap, parts, strict=True, json=json)


@quota.command("set")
def set_(
    pairs: Pairs,
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: AnyUser = False,
    default_client_id: AnyClient = False,
    default_ip: AnyIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Set quotas of one entity, all or none."""
    from headrace.cli.settings.changing import numbers_of
    from headrace.net.client.access.quotas import alter

    parts = _one(_parts(user, client_id, ip, default_user, default_client_id, default_ip))
    wanted = numbers_of(parse_pairs(pairs, "the quota"))
    with_cluster(bootstrap, lambda cluster: alter(cluster, parts, set_=wanted))
    _tell("set", parts, list(wanted), json=json)


@quota.command()
def unset(
    keys: Keys,
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: AnyUser = False,
    default_client_id: AnyClient = False,
    default_ip: AnyIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Remove quotas of one entity."""
    from headrace.net.client.access.quotas import alter

    parts = _one(_parts(user, client_id, ip, default_user, default_client_id, default_ip))
    with_cluster(bootstrap, lambda cluster: alter(cluster, parts, delete=keys))
    _tell("unset", parts, keys, json=json)


def _parts(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> Parts:
    """Kafka's words for the parts of an entity. Raises UsageError."""
    parts: Parts = {}
    for kind, name, default in (
        ("user", user, default_user),
        ("client-id", client_id, default_client_id),
        ("ip", ip, default_ip),
    ):
        if name is not None and default:
            raise UsageError(f"--{kind} and --default-{kind} are two entities: give one of them.")
        if name is not None or default:
            parts[kind] = name
    return parts


def _one(parts: Parts) -> Parts:
    if not parts:
        raise UsageError("Say whose quotas: --user, --client-id or both, or --ip; --default-user is for all others.")
    return parts


def _print(bootstrap: str, parts: Parts, *, strict: bool, json: bool) -> None:
    from headrace.cli.settings.changing import quota_setting
    from headrace.net.client.access.quotas import quotas, told

    found = with_cluster(bootstrap, lambda cluster: quotas(cluster, parts, strict=strict))
    for entity, values in found.items() if json else ():
        print_json({"entity": _fields(entity), "quotas": dict(values)})
    if not json:
        rows = [
            (told(entity), one.name, one.value, one.documentation or "")
            for entity, values in found.items()
            for one in (quota_setting(key, value) for key, value in values.items())
        ]
        print_table(("OF", "QUOTA", "VALUE", "DOCUMENTATION"), rows)


def _tell(done: str, parts: Parts, keys: list[str], *, json: bool) -> None:
    from headrace.metadata.access.quotas import quota_entity
    from headrace.net.client.access.quotas import told

    if json:
        print_json({"entity": _fields(quota_entity(parts)), done: keys})
    else:
        print_line(f"{done} {', '.join(keys)} of {told(quota_entity(parts))}")


def _fields(entity: QuotaEntity) -> dict[str, Any]:
    return dict(entity)
