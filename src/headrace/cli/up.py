"""`headrace up`: run a broker, or a small cluster of them, in the foreground."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.base.addresses import parse_address
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
from headrace.cli.output import note, print_line
from headrace.cli.settings.console_options import given, handed_on, with_console_options
from headrace.cli.work.ready import OnceReady


@with_console_options
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
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="TLS, passwords and ACLs: makes a CA, certificates and an administrator in --data, once.",
        ),
    ] = False,
    console: Annotated[
        str | None,
        typer.Option(
            "--console", metavar="HOST:PORT", help="Also serve the web console there, in a process of its own."
        ),
    ] = None,
    log_level: LogLevel = "info",
    bootstrap: NoBootstrap = DEFAULT_BOOTSTRAP,
    json: Annotated[bool, typer.Option("--json", help="Log JSON even on a terminal.")] = False,
    **of_console: Any,
) -> None:
    """Run a broker until SIGTERM or SIGINT, or with --nodes a cluster of them.

    Prints one line, "ready HOST:PORT", on standard output as soon as it serves; logs go to standard error. With --nodes
    there is a line "broker ID pid PID listen HOST:PORT" for each before it, and "ready" names all of them. A line
    "redis URL" comes first where --engine is redis, and with --secure a line "client FILE": the client properties of
    the administrator. With --console a line "console URL" tells where the console is.
    """
    check_engine(engine, redis)
    if console is None and (options := given(of_console)):
        raise UsageError(f"{options[0]} goes with --console: it says where the console listens.")
    files, once_ready, client = list(config_file or ()), None, None
    if secure:
        own, once_ready, client = _made_secure(data.resolve(), listen, advertise)
        files.insert(0, own)
    logging = ["--log-level", log_level, *(["--json"] if json else [])]
    if console is not None:
        from headrace.cli.work.console_process import with_console

        words, environment = handed_on(of_console)
        once_ready = with_console(console, [*words, *logging], environment, client, once_ready)
    named = list(config or ())
    if durable is not None:
        named.append(f"durable.url={durable}")
    if insecure:
        named.append("headrace.insecure.listeners=true")
    configs = broker_configs(files, named, tell=note)
    if nodes is not None:
        if advertise is not None:
            raise UsageError("--advertise names one address, --nodes has several: start each with 'headrace broker'.")
        if "listeners" in configs or "advertised.listeners" in configs:
            raise UsageError(
                "listeners are those of one broker, --nodes has several: start each with 'headrace broker'."
            )
        options = [*logging, *(part for file in files for part in ("--config-file", str(file.resolve())))]
        options += [part for pair in named for part in ("--config", pair)]
        from headrace.cli.work.supervisor import supervise

        with redis_for(engine, redis, data.resolve()) as url:
            supervise(
                data=data.resolve(),
                listen=listen or DEFAULT_BOOTSTRAP,
                count=nodes,
                configs=configs,
                options=options,
                redis=url,
                once_ready=once_ready,
            )
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
            once_ready=once_ready,
            read_again=partial(broker_configs, files, named) if files else None,
        )


def _made_secure(data: Path, listen: str | None, advertise: str | None) -> tuple[Path, OnceReady, Path]:
    """Make what --secure needs, and print where the administrator's client properties are. Returns the brokers'
    configs, the work that is left once they serve, and those properties."""
    from headrace.broker.home.securing import enrol
    from headrace.broker.home.securing import secure as made

    told = None if advertise is None else parse_address(advertise, default_port=0)
    addresses = [] if listen is None else [parse_address(listen, default_port=0)]
    secured = made(data / "security", addresses if told is None else [*addresses, told])
    print_line(f"client {secured.client}")
    return secured.configs, partial(enrol, secured, advertised=told), secured.client


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
