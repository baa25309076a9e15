"""`headrace console`: the web console of a cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.addresses import Address, parse_address
from headrace.base.errors import UsageError
from headrace.cli.command_config import as_reached, properties, reached
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    LogLevel,
    MaskFile,
    MaskRules,
    TlsCertificate,
    TlsKey,
    whole_number,
)
from headrace.operations.web import tls_of

DEFAULT_LISTEN = "127.0.0.1:8080"
DEFAULT_IDLE_MINUTES = 30


def console(
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where it listens; port 0 takes a free one."),
    ] = DEFAULT_LISTEN,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name by which browsers reach it; may be given again."),
    ] = None,
    login: Annotated[
        bool,
        typer.Option("--login", help="Viewers log in as users of the cluster (SASL), and see what these may see."),
    ] = False,
    idle: Annotated[
        int,
        typer.Option(
            "--idle", parser=whole_number, metavar="MINUTES", help="A login ends when it was not used for so long."
        ),
    ] = DEFAULT_IDLE_MINUTES,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let viewers change things, each after its plan.")
    ] = False,
    mask: MaskRules = None,
    mask_file: MaskFile = None,
    pipelines: Annotated[
        Path | None,
        typer.Option("--pipelines", metavar="DIR", help="Show the pipelines whose files are in this directory."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve strangers: listen beyond this machine without login or TLS.")
    ] = False,
    log_level: LogLevel = "info",
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="Stop where standard input ends.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
) -> None:
    """Serve the web console of a cluster until SIGTERM or SIGINT.

    Prints one line, "ready URL", on standard output as soon as it serves. It is read-only without --allow-changes.
    Without --login it asks nobody who it is: whoever reaches it sees what this command's user may see.
    """
    address = parse_address(listen, default_port=8080)
    _check_open(address, listen, login=login, is_encrypted=tls_certificate is not None, insecure=insecure)
    tls = tls_of(tls_certificate, tls_key)
    if idle < 1:
        raise UsageError("--idle is a number of minutes: 1 or more.")
    if pipelines is not None and not pipelines.is_dir():
        raise UsageError(f"--pipelines {pipelines} is no directory.")
    try:
        from headrace.console.serving import Login, Settings, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"The console needs the package {error.name}: pip install 'headrace[console]'.") from None
    from headrace.cli.logs import configure_logs
    from headrace.net.loops import run
    from headrace.operations.masking import masks_of

    configure_logs(json_logs=json, level=log_level)
    settings = partial(
        Settings,
        words=_words(bootstrap, login=login),
        allows_changes=allow_changes,
        masks=masks_of(mask or (), mask_file),
        pipelines=pipelines,
    )

    async def main() -> None:
        await serve(
            partial(reached, bootstrap),
            address,
            settings=settings(),
            hosts=list(host or ()),
            login=Login.of(bootstrap, properties()) if login else None,
            idle_ms=idle * 60_000,
            tls=tls,
            with_parent=with_parent,
        )

    run(main())


def _words(bootstrap: str, *, login: bool) -> list[str]:
    """The options of commands that pages show. The console's own file is not its viewers'."""
    found = as_reached(bootstrap)
    if login and "--command-config" in found:
        found[found.index("--command-config") + 1] = "FILE"
    return found


def _check_open(address: Address, listen: str, *, login: bool, is_encrypted: bool, insecure: bool) -> None:
    """Raises UsageError where strangers would be served, or passwords overheard."""
    if address.is_loopback or insecure or (login and is_encrypted):
        return
    if login:
        raise UsageError(
            f"--listen {listen} takes passwords from other machines in clear text: give --tls-certificate and "
            "--tls-key, or put a proxy with TLS before a loopback address."
        )
    raise UsageError(
        f"--listen {listen} lets others than this machine in, and the console asks nobody who it is: give --login with "
        "--tls-certificate, or put a proxy with a login before a loopback address, or accept that with --insecure."
    )
