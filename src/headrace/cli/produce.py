"""`headrace produce`: lines from a file or standard input into a topic."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_pairs, whole_number


class Acks(StrEnum):
    """The replicas that must have a record before it counts as written."""

    ALL = "all"
    ONE = "1"
    NONE = "0"


class Codec(StrEnum):
    """How batches are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to write to.", show_default=False)],
    file: Annotated[
        Path | None, typer.Argument(help="The file to read; default: standard input.", show_default=False)
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", metavar="TEXT", help="What is before it in a line is the key.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(parser=whole_number, help="Write to this partition; default: the key chooses.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="KEY=VALUE", help="A header on every record.")
    ] = None,
    acks: Annotated[Acks, typer.Option(help="When a record counts as written.")] = Acks.ALL,
    compression: Annotated[Codec, typer.Option(help="How batches are compressed.")] = Codec.NONE,
    idempotent: Annotated[
        bool, typer.Option("--idempotent/--no-idempotent", help="No repeats on retries; needs --acks all.")
    ] = True,
    timestamp: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="MS", help="Milliseconds since 1970 for every record; default: now."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Write each line of a file or of standard input as one record."""
    from headrace.cli.work.producing import Orders, write_lines
    from headrace.net.loops import run

    if key_separator == "":
        raise UsageError("--key-separator is empty; give the text that ends a key, for example --key-separator :.")
    orders = Orders(
        topic=topic,
        file=file,
        key_separator=key_separator.encode() if key_separator is not None else None,
        partition=partition,
        headers=tuple((name, value.encode()) for name, value in parse_pairs(header, "--header").items()),
        acks={Acks.ALL: -1, Acks.ONE: 1, Acks.NONE: 0}[acks],
        compression=compression.value,
        idempotent=idempotent and acks is Acks.ALL,
        timestamp_ms=timestamp,
        json=json,
    )
    run(write_lines(bootstrap, orders))
