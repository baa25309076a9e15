"""`headrace user`: users who log in by SCRAM, and their passwords. A password never stands on a command line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number
from headrace.cli.output import note, print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.metadata.access.scram import ScramMechanism
    from headrace.net.client.access.users import Credentials

PASSWORD: Final = "HEADRACE_USER_PASSWORD"
PASSWORD_CHARS_MAX: Final = 1_024
ITERATIONS: Final = 8_192
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")

user = typer.Typer(name="user", help="List, create, alter and delete users who log in by SCRAM.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False)]
Mechanism = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", metavar="NAME", help=f"{' or '.join(MECHANISMS)}; may be given again. Both by default."
    ),
]
Iterations = Annotated[
    int, typer.Option(parser=whole_number, help="Hashes that a try of a password costs: 4096 to 16384.")
]
FromStdin = Annotated[
    bool,
    typer.Option(
        "--password-stdin",
        help=f"Read the password from the first line of standard input; else {PASSWORD} has it, or it is asked for.",
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; else it is only said what would be done.")]


@user.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the users and what they can log in by."""
    from headrace.net.client.access.users import users

    rows = [
        (name, mechanism, iterations)
        for name, credentials in with_cluster(bootstrap, users).items()
        for mechanism, iterations in credentials.items()
    ]
    for name, mechanism, iterations in rows if json else ():
        print_json({"user": name, "mechanism": mechanism.title, "iterations": iterations})
    if not json:
        print_table(("USER", "MECHANISM", "ITERATIONS"), [(row[0], row[1].title, row[2]) for row in rows])


@user.command()
def create(
    name: Name,
    mechanism: Mechanism = None,
    iterations: Iterations = ITERATIONS,
    password_stdin: FromStdin = False,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a user. One that is there is refused."""
    before = _known(bootstrap, name)
    if before:
        raise UsageError(f"User '{name}' is there already: 'headrace user alter {name}' sets another password.")
    _set(bootstrap, name, _mechanisms(mechanism), iterations, password_stdin, execute=execute, json=json)


@user.command()
def alter(
    name: Name,
    mechanism: Mechanism = None,
    iterations: Iterations = ITERATIONS,
    password_stdin: FromStdin = False,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Set another password of a user, or add a mechanism. Connections that are open stay."""
    if not _known(bootstrap, name):
        raise UsageError(f"There is no user '{name}': see 'headrace user list', or 'headrace user create {name}'.")
    _set(bootstrap, name, _mechanisms(mechanism), iterations, password_stdin, execute=execute, json=json)


@user.command()
def delete(
    name: Name,
    mechanism: Mechanism = None,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete a user, or what it can log in by. ACLs of the user stay."""
    from headrace.net.client.access.users import delete as ask

    chosen = [each for each in _known(bootstrap, name) if each in _mechanisms(mechanism)]
    if not chosen:
        raise UsageError(f"User '{name}' has no such credential: see 'headrace user list'.")
    if execute:
        with_cluster(bootstrap, lambda cluster: ask(cluster, name, chosen))
    _tell(name, chosen, "deleted", "would be deleted", executed=execute, json=json)


def _set(
    bootstrap: str,
    name: str,
    mechanisms: list[ScramMechanism],
    iterations: int,
    from_stdin: bool,
    *,
    execute: bool,
    json: bool,
) -> None:
    from headrace.net.client.access.users import set_password

    if execute:
        password = _password(name, from_stdin=from_stdin)
        with_cluster(
            bootstrap, lambda cluster: set_password(cluster, name, password, mechanisms, iterations=iterations)
        )
    _tell(name, mechanisms, "set", "would be set", executed=execute, json=json)


def _password(name: str, *, from_stdin: bool) -> str:
    """Read the password. Raises UsageError."""
    from getpass import getpass

    if from_stdin:
        password = sys.stdin.readline(PASSWORD_CHARS_MAX + 2).rstrip("\r\n")
    elif (given := os.environ.get(PASSWORD)) is not None:
        password = given
    elif sys.stdin.isatty():
        password = getpass(f"Password of {name}: ")
        if password != getpass("Again: "):
            raise UsageError("The two passwords differ: nothing was changed.")
    else:
        raise UsageError(f"There is no terminal to ask for the password: give --password-stdin, or {PASSWORD}.")
    if not 0 < len(password) <= PASSWORD_CHARS_MAX:
        raise UsageError(f"A password has 1 to {PASSWORD_CHARS_MAX} characters.")
    return password


def _mechanisms(names: list[str] | None) -> list[ScramMechanism]:
    from headrace.security.sasl_client import SCRAM

    for name in names or ():
        if name.upper() not in SCRAM:
            raise UsageError(f"--mechanism '{name:.40}' is unknown: choose {' or '.join(MECHANISMS)}.")
    return [SCRAM[name.upper()] for name in dict.fromkeys(names or MECHANISMS)]


def _known(bootstrap: str, name: str) -> Credentials:
    from headrace.net.client.access.users import users

    return with_cluster(bootstrap, lambda cluster: users(cluster, [name])).get(name, {})


def _tell(name: str, mechanisms: list[ScramMechanism], done: str, would_be: str, *, executed: bool, json: bool) -> None:
    for mechanism in mechanisms:
        if json:
            print_json({"user": name, "mechanism": mechanism.title, "executed": executed})
        else:
            print_line(f"credential of {name} for {mechanism.title} {done if executed else would_be}")
    if not executed:
        note("nothing was changed: add --execute to do this")
