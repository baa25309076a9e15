"""Options that commands share, so that they are spelled and explained once. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import UsageError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
LOCAL = "local"
REDIS = "redis"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Brokers to ask first, tried in turn.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="HEADRACE_COMMAND_CONFIG",
        metavar="FILE",
        help="Kafka's properties of a client: security.protocol, sasl.*, ssl.*, bootstrap.servers.",
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="HEADRACE_CONTEXT",
        metavar="NAME",
        help="The cluster of this name; see 'headrace context --help'.",
    ),
]
NoBootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Taken by every command; this one does not use it.",
    ),
]
FilesBootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Taken by every command; this one asks the brokers that its file names.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, on standard output.")]
LogLevel = Annotated[
    str, typer.Option("--log-level", metavar="LEVEL", help="The least that is logged: debug, info, warning or error.")
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option("--tls-certificate", metavar="FILE", help="Speak TLS with this certificate chain, in PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key, in PEM.")
]
MaskRules = Annotated[
    list[str] | None,
    typer.Option(
        "--mask",
        metavar="TOPIC:FIELD=TEXT",
        help="Show the text in place of a field of records, like orders:value.card=****; may be given again.",
    ),
]
MaskFile = Annotated[
    Path | None, typer.Option("--mask-file", metavar="FILE.toml", help="Masks of fields: for each a table named mask.")
]
SchemaRegistry = Annotated[
    str | None,
    typer.Option(
        "--schema-registry",
        metavar="URL",
        help="Show Avro by the schemas of this registry (Confluent's API), whose ids records have.",
    ),
]
SchemaFiles = Annotated[
    Path | None,
    typer.Option(
        "--schemas",
        metavar="DIR",
        help="Show Avro by files in this directory: TOPIC.avsc, TOPIC-key.avsc, ID.avsc.",
    ),
]
Config = Annotated[list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="May be given several times.")]

ConfigFile = Annotated[
    list[Path] | None,
    typer.Option(
        "--config-file",
        metavar="FILE",
        help="Broker configs: a .toml file, or Kafka's server.properties. For secrets. May be given several times.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Serve strangers: a listener beyond this machine may be one that asks nobody who it is."
    ),
]


def whole_number(text: str | int) -> int:
    """Parser of options and arguments that are whole numbers: ASCII digits, with or without a sign."""
    from headrace.base.reading import whole

    return text if isinstance(text, int) else whole(text)


Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Where records are kept: local (this machine's disk) or redis (a Redis that all brokers share).",
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        metavar="URL",
        help="The Redis of --engine redis, e.g. redis://HOST:6379/0. Without one, 'up' starts its own in --data.",
    ),
]


def plain_number(text: str | float) -> float:
    """Parser of options that may have a fraction. The number is finite; raises ValueError otherwise."""
    from headrace.base.reading import fraction

    number = float(text) if isinstance(text, (int, float)) else fraction(text)
    if not math.isfinite(number):
        raise ValueError("it is not a number")
    return number


def parse_pairs(pairs: Iterable[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a dict; the last value of a key wins. Raises UsageError."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} '{pair}' is not KEY=VALUE; write for example {option} retention.ms=3600000.")
        found[key.strip()] = value.strip()
    return found


def broker_configs(
    files: Iterable[Path] | None, pairs: Iterable[str] | None, *, tell: Callable[[str], None] | None = None
) -> dict[str, str]:
    """The configs of files, later ones first, and before them those of the command line. `tell` hears of those that are
    left out. Raises UsageError."""
    from headrace.cli.settings.broker_files import check_known, read_configs

    found: dict[str, str] = {}
    for file in files or ():
        found |= read_configs(file, tell)
    named = parse_pairs(pairs, "--config")
    check_known(named, "--config")
    return found | named


def check_engine(engine: str, redis: str | None) -> None:
    """Raises UsageError for an engine that is unknown, or that does not go with the other options."""
    if engine not in (LOCAL, REDIS):
        raise UsageError(f"--engine '{engine}' is unknown: choose {LOCAL} or {REDIS}.")
    if redis is not None and engine != REDIS:
        raise UsageError("--redis goes with --engine redis: add that, or leave --redis (and HEADRACE_REDIS) out.")
