"""`headrace consume`: print a topic's records."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.", show_default=False)],
    from_: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, latest, or a time such as 2024-05-01T12:00:00Z."),
    ] = "earliest",
    partition: Annotated[list[int] | None, typer.Option(help="Only this one; may be given several times.")] = None,
    offset: Annotated[
        int | None, typer.Option(parser=whole_number, help="From this offset on; needs --partition.")
    ] = None,
    max_: Annotated[
        int | None, typer.Option("--max", parser=whole_number, metavar="N", help="Stop after N records.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Stop at the end that the topic has at the start.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", metavar="TEXT", help="Print the key and this before the value.")
    ] = None,
    retry_forever: Annotated[
        bool,
        typer.Option("--retry-forever", help="Wait for brokers and leaders that are away for as long as it takes."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print a topic's records, each value on a line, and continue as new ones come."""
    from headrace.cli.work.consuming import Orders, print_records
    from headrace.net.loops import run

    if offset is not None and not partition:
        raise UsageError("--offset needs --partition: offsets count within one partition.")
    if offset is not None and offset < 0:
        raise UsageError("--offset counts from 0; use --from earliest or --from latest for the ends.")
    if max_ is not None and max_ < 0:
        raise UsageError("--max is 0 or more.")
    orders = Orders(
        topic=topic,
        start=from_,
        partitions=tuple(dict.fromkeys(partition or ())),
        offset=offset,
        records_max=max_,
        stop_at_end=end,
        key_separator=key_separator.encode() if key_separator is not None else None,
        json=json,
        retry_forever=retry_forever,
    )
    run(print_records(bootstrap, orders))
