"""`headrace mcp`: tools for agents, over the Model Context Protocol."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from headrace.base.addresses import Address, parse_address
from headrace.base.errors import UsageError
from headrace.cli.command_config import as_reached, reached, security
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    LogLevel,
    MaskFile,
    MaskRules,
    SchemaFiles,
    SchemaRegistry,
    TlsCertificate,
    TlsKey,
)
from headrace.cli.work.schemas import named_schemas
from headrace.operations.web import tls_of

if TYPE_CHECKING:
    from headrace.net.client.cluster import Cluster

METRICS: Final = "HEADRACE_METRICS_CREDENTIALS"
DEFAULT_PORT: Final = 8081


def mcp(
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Serve over HTTP there, at /mcp; port 0 takes a free one."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name by which clients reach it; may be given again."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Let in over HTTP only who has the token in this file."),
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Take tokens from other machines in clear text, without TLS.")
    ] = False,
    allow: Annotated[
        bool, typer.Option("--allow", help="Let agents change things: each by a plan and its approval.")
    ] = False,
    mask: MaskRules = None,
    mask_file: MaskFile = None,
    schema_registry: SchemaRegistry = None,
    schemas: SchemaFiles = None,
    pipelines: Annotated[
        Path | None,
        typer.Option("--pipelines", metavar="DIR", help="Tell of the pipelines whose files are in this directory."),
    ] = None,
    log_level: LogLevel = "info",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
) -> None:
    """Serve tools for agents (Model Context Protocol), over standard input and output, or over HTTP with --listen.

    It acts as one user, by --command-config or --context, and each call is one line of its log on standard error. It is
    read-only without --allow. Over HTTP it prints one line, "ready URL".
    """
    address = None if listen is None else parse_address(listen, default_port=DEFAULT_PORT)
    door = Door(address, tuple(host or ()), token_file, tls_certificate, tls_key)
    door.check(insecure=insecure)
    if pipelines is not None and not pipelines.is_dir():
        raise UsageError(f"--pipelines {pipelines} is no directory.")
    try:
        from headrace.mcp.desk import Desk, principal_of
        from headrace.mcp.guarding import read_token
        from headrace.mcp.serving import serve_http, serve_input
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"The tools need the package {error.name}: pip install 'headrace[mcp]'.") from None
    from headrace.cli.logs import configure_logs
    from headrace.net.loops import run
    from headrace.operations.masking import masks_of

    configure_logs(json_logs=json, level=log_level)
    reach, principal = partial(reached, bootstrap), principal_of(security())
    known = named_schemas(schema_registry, schemas)
    masks, words = masks_of(mask or (), mask_file), as_reached(bootstrap)

    def desk_of(cluster: Cluster) -> Desk:
        return Desk(
            reach=reach,
            cluster=cluster,
            principal=principal,
            words=words,
            allows_changes=allow,
            masks=masks,
            schemas=known,
            pipelines=pipelines,
            metrics_credentials=os.environ.get(METRICS, "").strip(),
        )

    if address is None:
        run(serve_input(reach, desk_of))
        return
    token = None if token_file is None else read_token(token_file)
    tls = tls_of(tls_certificate, tls_key)
    run(serve_http(reach, desk_of, address, hosts=host or (), token=token, tls=tls))


class Door(NamedTuple):
    """The options that say who is let in."""

    listen: Address | None
    hosts: tuple[str, ...]
    token: Path | None
    certificate: Path | None
    key: Path | None

    def check(self, *, insecure: bool) -> None:
        """Raises UsageError where they do not go together, or strangers would be let in."""
        if self.listen is None:
            if self.token is not None or self.hosts or self.certificate is not None or self.key is not None:
                raise UsageError("--token-file, --host and --tls-... go with --listen: without it nobody connects.")
            return
        tls_of(self.certificate, self.key)
        if self.listen.is_loopback:
            return
        if self.token is None:
            raise UsageError(
                f"--listen {self.listen} lets others than this machine in: say by --token-file who, or listen on "
                "loopback behind a proxy with a login."
            )
        if self.certificate is None and not insecure:
            raise UsageError(
                f"--listen {self.listen} takes a token from other machines in clear text: give --tls-certificate and "
                "--tls-key, or accept that with --insecure."
            )
        if self.listen.is_wildcard and not self.hosts:
            raise UsageError(f"--listen {self.listen} is every address: name those that clients use by --host NAME.")
