"""`headrace up`: run a broker, or a small cluster of them, in the foreground."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    LOCAL,
    Config,
    ConfigFile,
    Engine,
    Insecure,
    LogLevel,
    NoBootstrap,
    Redis,
    broker_configs,
    check_engine,
    whole_number,
)
from headrace.cli.output import print_line


def up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where it keeps its data; made where absent.")],
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Where it listens; port 0 takes a free one. Default: {DEFAULT_BOOTSTRAP}.",
            show_default=False,
        ),
    ] = None,
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
    engine: Engine = LOCAL,
    redis: Redis = None,
    config: Config = None,
    config_file: ConfigFile = None,
    insecure: Insecure = False,
    log_level: LogLevel = "info",
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT, or with --nodes a cluster of them.

    Prints one line, "ready HOST:PORT", on standard output as soon as it serves; logs go to standard error. With --nodes
    there is a line "broker ID pid PID listen HOST:PORT" for each before it, and "ready" names all of them. A line
    "redis URL" comes first where --engine is redis.
    """
    configs = broker_configs(config_file, config)
    check_engine(engine, redis)
    if durable is not None:
        configs["durable.url"] = durable
    if insecure:
        configs["headrace.insecure.listeners"] = "true"
    if nodes is not None:
        if advertise is not None:
            raise UsageError("--advertise names one address, --nodes has several: start each with 'headrace broker'.")
        if "listeners" in configs or "advertised.listeners" in configs:
            raise UsageError(
                "listeners are those of one broker, --nodes has several: start each with 'headrace broker'."
            )
        options = ["--log-level", log_level, *(["--json"] if json else [])]
        options += [part for pair in config or () for part in ("--config", pair)]
        options += ["--config-file", str(config_file.resolve())] if config_file is not None else []
        options += ["--config", f"durable.url={durable}"] if durable is not None else []
        options += ["--insecure"] if insecure else []
        from headrace.cli.work.supervisor import supervise

        with redis_for(engine, redis, data.resolve()) as url:
            supervise(data=data.resolve(), listen=listen or DEFAULT_BOOTSTRAP, count=nodes, options=options, redis=url)
        return
    from headrace.cli.work.serve import serve

    with redis_for(engine, redis, data.resolve()) as url:
        serve(
            data=data.resolve(),
            listen=listen,
            advertise=advertise,
            configs=configs,
            json_logs=json,
            log_level=log_level,
            redis=url,
        )


@contextmanager
def redis_for(engine: str, url: str | None, data: Path) -> Iterator[str | None]:
    """The URL of the Redis, told on standard output without its password; None for the local engine. Without `url`, one
    is started in the data directory, and stopped at the end."""
    if engine == LOCAL:
        yield None
        return
    from headrace.cli.work.embedded_redis import embedded
    from headrace.storage.redis.links.address import parse_redis_address

    if url is not None:
        print_line(f"redis {parse_redis_address(url)}")
        yield url
        return
    with embedded(data / "redis") as started:
        print_line(f"redis {started}")
        yield started
