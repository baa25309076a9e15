"""`headrace up`: run a broker, or a small cluster of them, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Config, LogLevel, NoBootstrap, parse_pairs, whole_number


def up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where it keeps its data; made where absent.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it listens; port 0 takes a free one.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="What clients are told; default: --listen."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            parser=whole_number,
            metavar="N",
            help="So many brokers, a process each, at this port and those after it.",
        ),
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option("--durable", metavar="URL", help="The store of durable segments, e.g. file:///var/lib/store."),
    ] = None,
    config: Config = None,
    log_level: LogLevel = "info",
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT, or with --nodes a cluster of them.

    Prints one line, "ready HOST:PORT", on standard output as soon as it serves; logs go to standard error. With --nodes
    there is a line "broker ID pid PID listen HOST:PORT" for each before it, and "ready" names all of them.
    """
    configs = parse_pairs(config, "--config")
    if durable is not None:
        configs["durable.url"] = durable
    if nodes is not None:
        if advertise is not None:
            raise UsageError("--advertise names one address, --nodes has several: start each with 'headrace broker'.")
        options = ["--log-level", log_level, *(["--json"] if json else [])]
        options += [part for key, value in configs.items() for part in ("--config", f"{key}={value}")]
        from headrace.cli.work.supervisor import supervise

        supervise(data=data.resolve(), listen=listen, count=nodes, options=options)
        return
    from headrace.cli.work.serve import serve

    serve(
        data=data.resolve(),
        listen=listen,
        advertise=advertise,
        configs=configs,
        json_logs=json,
        log_level=log_level,
    )
