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
    SchemaFiles,
    SchemaRegistry,
    TlsCertificate,
    TlsKey,
    parse_pairs,
    whole_number,
)
from headrace.cli.work.schemas import named_schemas
from headrace.operations.web import tls_of

DEFAULT_LISTEN = "127.0.0.1:8080"
DEFAULT_IDLE_MINUTES = 30
SECRET_BYTES_MAX = 4_096


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
    oidc_issuer: Annotated[
        str | None,
        typer.Option(
            "--oidc-issuer",
            envvar="HEADRACE_OIDC_ISSUER",
            metavar="URL",
            help="Viewers log in at this identity provider (OpenID Connect), and brokers get their tokens.",
        ),
    ] = None,
    oidc_client_id: Annotated[
        str,
        typer.Option(
            "--oidc-client-id",
            envvar="HEADRACE_OIDC_CLIENT_ID",
            metavar="ID",
            help="The name under which the provider knows the console.",
        ),
    ] = "",
    oidc_client_secret_file: Annotated[
        Path | None,
        typer.Option(
            "--oidc-client-secret-file",
            metavar="FILE",
            help="Holds the console's secret at the provider, if it has one.",
        ),
    ] = None,
    oidc_token: Annotated[
        str, typer.Option("--oidc-token", metavar="access|id", help="Which of a viewer's tokens brokers get.")
    ] = "access",
    oidc_scope: Annotated[
        list[str] | None,
        typer.Option("--oidc-scope", metavar="SCOPE", help="Another scope beside openid; may be given again."),
    ] = None,
    oidc_parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-parameter",
            metavar="NAME=VALUE",
            help="Another parameter of a login's first request, like audience=kafka; may be given again.",
        ),
    ] = None,
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
    schema_registry: SchemaRegistry = None,
    schemas: SchemaFiles = None,
    pipelines: Annotated[
        Path | None,
        typer.Option("--pipelines", metavar="DIR", help="Show the pipelines whose files are in this directory."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            "--prometheus",
            metavar="URL",
            help="Charts show more than an hour from this Prometheus, which scrapes the brokers.",
        ),
    ] = None,
    prometheus_label: Annotated[
        list[str] | None,
        typer.Option(
            "--prometheus-label",
            metavar="NAME=VALUE",
            help="A label of this cluster's series there, like job=headrace; may be given again.",
        ),
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
    Without --login or --oidc-issuer it asks nobody who it is: whoever reaches it sees what this command's user may see.
    """
    address = parse_address(listen, default_port=8080)
    asks = login or oidc_issuer is not None
    _check_open(address, listen, login=asks, is_encrypted=tls_certificate is not None, insecure=insecure)
    tls = tls_of(tls_certificate, tls_key)
    if idle < 1:
        raise UsageError("--idle is a number of minutes: 1 or more.")
    if oidc_issuer is None and (oidc_client_id or oidc_client_secret_file or oidc_scope or oidc_parameter):
        raise UsageError("--oidc-... go with --oidc-issuer: it says which identity provider is meant.")
    if prometheus is None and prometheus_label:
        raise UsageError("--prometheus-label goes with --prometheus: it says where Prometheus is.")
    if pipelines is not None and not pipelines.is_dir():
        raise UsageError(f"--pipelines {pipelines} is no directory.")
    try:
        from headrace.console.serving import Login, Settings, prometheus_of, provider_of, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"The console needs the package {error.name}: pip install 'headrace[console]'.") from None
    named = None
    if oidc_issuer is not None:
        secret = "" if oidc_client_secret_file is None else _secret(oidc_client_secret_file)
        named = provider_of(
            oidc_issuer,
            oidc_client_id,
            client_secret=secret,
            scopes=oidc_scope or (),
            passed=oidc_token,
            parameters=parse_pairs(oidc_parameter, "--oidc-parameter"),
            properties=properties(),
        )
    past = None
    if prometheus is not None:
        past = prometheus_of(prometheus, parse_pairs(prometheus_label, "--prometheus-label"), properties())
    door = Login.of(bootstrap, properties(), takes_passwords=login, provider=named) if asks else None
    known = named_schemas(schema_registry, schemas)
    from headrace.cli.logs import configure_logs
    from headrace.net.loops import run
    from headrace.operations.masking import masks_of

    masks = masks_of(mask or (), mask_file)
    configure_logs(json_logs=json, level=log_level)
    settings = partial(
        Settings,
        words=_words(bootstrap, login=asks),
        allows_changes=allow_changes,
        masks=masks,
        schemas=known,
        pipelines=pipelines,
        prometheus=past,
    )

    async def main() -> None:
        await serve(
            partial(reached, bootstrap),
            address,
            settings=settings(),
            hosts=list(host or ()),
            login=door,
            idle_ms=idle * 60_000,
            tls=tls,
            with_parent=with_parent,
        )

    run(main())


def _secret(path: Path) -> str:
    """Raises UsageError."""
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in ASCII"
        raise UsageError(f"--oidc-client-secret-file {path} cannot be read: {reason}.") from None
    if not secret or len(secret) > SECRET_BYTES_MAX:
        raise UsageError(f"--oidc-client-secret-file {path} is empty, or too long for a secret.")
    return secret


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
        f"--listen {listen} lets others than this machine in, and the console asks nobody who it is: give --login or "
        "--oidc-issuer with --tls-certificate, or put a proxy with a login before a loopback address, or accept that "
        "with --insecure."
    )
