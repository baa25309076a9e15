"""`headrace up`: run a broker in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import DEFAULT_BOOTSTRAP, Config, NoBootstrap, parse_pairs


def up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where it keeps its data; made where absent.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it listens; port 0 takes a free one.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="The address that clients are told; default: --listen."),
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option("--durable", metavar="URL", help="The store of durable segments, e.g. file:///var/lib/store."),
    ] = None,
    config: Config = None,
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Prints one line, "ready HOST:PORT", on standard output as soon as it serves; logs go to standard error.
    """
    from headrace.cli.serve import serve

    configs = parse_pairs(config, "--config")
    if durable is not None:
        configs["durable.url"] = durable
    serve(data=data.resolve(), listen=listen, advertise=advertise, configs=configs, json_logs=json)
