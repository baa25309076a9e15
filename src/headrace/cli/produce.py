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
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="What is before it in a line is the key. \\t is a tab, as in kcat."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The key of every record that has no key of its own.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            envvar="HEADRACE_PRODUCE_FORMAT",
            show_envvar=False,
            metavar="json",
            help="Each line is a record in JSON, as 'headrace consume --json' prints it.",
        ),
    ] = None,
    keep_partition: Annotated[
        bool, typer.Option("--keep-partition", help="Write to the partition that each record in JSON names.")
    ] = False,
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
    from headrace.cli.work.formatting import unescaped
    from headrace.cli.work.producing import Orders, write_lines
    from headrace.net.loops import run

    if key_separator == "":
        raise UsageError("--key-separator is empty; give the text that ends a key, for example --key-separator :.")
    _check_format(format_, key_separator, partition, keep_partition=keep_partition)
    orders = Orders(
        topic=topic,
        file=file,
        from_json=format_ is not None,
        key_separator=unescaped(key_separator) if key_separator is not None else None,
        key=None if key is None else key.encode(errors="surrogateescape"),
        partition=partition,
        keep_partition=keep_partition,
        headers=tuple((name, value.encode()) for name, value in parse_pairs(header, "--header").items()),
        acks={Acks.ALL: -1, Acks.ONE: 1, Acks.NONE: 0}[acks],
        compression=compression.value,
        idempotent=idempotent and acks is Acks.ALL,
        timestamp_ms=timestamp,
        json=json,
    )
    run(write_lines(bootstrap, orders))


def _check_format(text: str | None, key_separator: str | None, partition: int | None, *, keep_partition: bool) -> None:
    """Raises UsageError."""
    if text not in (None, "json"):
        raise UsageError("--format is json, or is left out: then a line is a value, and --key-separator splits it.")
    if text is not None and key_separator is not None:
        raise UsageError("A record in JSON has its own key: leave --key-separator out.")
    if keep_partition and (text is None or partition is not None):
        raise UsageError("--keep-partition goes with --format json, and without --partition.")
