"""`headrace console`: the web console of a cluster."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from headrace.base.addresses import parse_address
from headrace.base.errors import UsageError
from headrace.cli.command_config import as_reached, reached
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap

DEFAULT_LISTEN = "127.0.0.1:8080"


def console(
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where it listens; port 0 takes a free one."),
    ] = DEFAULT_LISTEN,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name by which browsers reach it; may be given again."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let viewers change things, each after its plan.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve strangers: listen beyond this machine, and ask nobody who it is.")
    ] = False,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="Stop where standard input ends.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Taken by every command; this one prints no records.")] = False,
) -> None:
    """Serve the web console of a cluster until SIGTERM or SIGINT.

    Prints one line, "ready URL", on standard output as soon as it serves. It is read-only without --allow-changes, and
    asks nobody who it is: whoever reaches it sees what this command's user may see.
    """
    address = parse_address(listen, default_port=8080)
    if not address.is_loopback and not insecure:
        raise UsageError(
            f"--listen {listen} lets others than this machine in, and the console asks nobody who it is: put a proxy "
            "with a login before a loopback address, or accept that with --insecure."
        )
    try:
        from headrace.console.serving import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"The console needs the package {error.name}: pip install 'headrace[console]'.") from None
    from headrace.net.loops import run

    run(
        serve(
            partial(reached, bootstrap),
            address,
            hosts=list(host or ()),
            words=as_reached(bootstrap),
            allows_changes=allow_changes,
            with_parent=with_parent,
        )
    )
