"""`headrace consume`: print a topic's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.base.errors import UsageError
from headrace.base.limits import TAIL_RECORDS_MAX
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, SchemaFiles, SchemaRegistry, whole_number

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from headrace.cli.work.formatting import Shown
    from headrace.cli.work.span import Start
    from headrace.net.client.states import State
    from headrace.operations.expressions import Expression
    from headrace.wire.records import Record


READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"


def _offset(text: str) -> str:
    """Parser of --offset. Raises ValueError."""
    from headrace.cli.work.span import start_at_offset

    start_at_offset(text)
    return text


def _isolation_level(text: str) -> str:
    """Parser of --isolation-level. Raises ValueError."""
    if text not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise ValueError(f"it is not {READ_COMMITTED} or {READ_UNCOMMITTED}")
    return text


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.", show_default=False)],
    offset: Annotated[
        str | None,
        typer.Option(
            parser=_offset,
            metavar="WHERE",
            help="beginning, end, an offset, or -5 for the last five of each partition. Default: beginning.",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            envvar="HEADRACE_CONSUME_FROM",
            show_envvar=False,
            metavar="TIME",
            help="From this time on: earliest, latest, 2024-05-01T12:00:00Z, PT1H for an hour ago, or ms since 1970.",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop before the first record of this time in each partition.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="Print the last N records of the topic, and stop."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(parser=whole_number, help="Only this one; may be given several times.")
    ] = None,
    max_: Annotated[
        int | None,
        typer.Option(
            "--max",
            envvar="HEADRACE_CONSUME_MAX",
            show_envvar=False,
            parser=whole_number,
            metavar="N",
            help="Stop after N records.",
        ),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Stop at the end that the topic has at the start.")] = False,
    grep: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only records that have this in the key or the value (Python's re)."),
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            envvar="HEADRACE_CONSUME_FILTER",
            show_envvar=False,
            metavar="EXPRESSION",
            help="Only records of which this JMESPath expression is true, as value.amount > `100`. It sees key, value, "
            "headers, partition, offset, timestamp, size and transaction (committed, aborted, open or null).",
        ),
    ] = None,
    isolation_level: Annotated[
        str,
        typer.Option(
            "--isolation-level",
            envvar="HEADRACE_CONSUME_ISOLATION_LEVEL",
            show_envvar=False,
            parser=_isolation_level,
            metavar="LEVEL",
            help="read_committed leaves out records of open and aborted transactions, and what is behind an open one. "
            "read_uncommitted has all records.",
        ),
    ] = READ_UNCOMMITTED,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            envvar="HEADRACE_CONSUME_FORMAT",
            show_envvar=False,
            metavar="FORMAT",
            help="As kcat has it: %t topic, %p partition, %o offset, %k key, %s value, %h headers, %T time, %K and %S "
            "lengths, %% and \\n, \\t; or json.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", metavar="TEXT", help="Print the key and this before the value.")
    ] = None,
    schema_registry: SchemaRegistry = None,
    schemas: SchemaFiles = None,
    retry_forever: Annotated[
        bool,
        typer.Option("--retry-forever", help="Wait for brokers and leaders that are away for as long as it takes."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print a topic's records, each value on a line, and continue as new ones come."""
    from headrace.cli.output import note
    from headrace.cli.work.consuming import Orders, print_records
    from headrace.cli.work.schemas import named_schemas
    from headrace.cli.work.span import parse_time
    from headrace.net.loops import run

    if max_ is not None and max_ < 0:
        raise UsageError("--max is 0 or more.")
    if tail is not None and not 0 <= tail <= TAIL_RECORDS_MAX:
        raise UsageError(f"--tail is from 0 to {TAIL_RECORDS_MAX}: for more, use --offset -{abs(tail)} --end.")
    if tail is not None and (max_ is not None or offset is not None):
        raise UsageError("--tail says which records: leave --max and --offset out.")
    expression = None if filter_ is None else _expression(filter_)
    orders = Orders(
        topic=topic,
        start=_start(offset, from_),
        partitions=tuple(dict.fromkeys(partition or ())),
        before_ms=None if to is None else parse_time(to, "--to"),
        records_max=max_,
        tail=tail,
        stop_at_end=end,
        pattern=None if grep is None else _pattern(grep),
        test=None if expression is None else _test(expression),
        shown=_shown(format_, key_separator, json=json),
        committed_only=isolation_level == READ_COMMITTED,
        tells_states=json or format_ == "json" or expression is not None,
        retry_forever=retry_forever,
        schemas=named_schemas(schema_registry, schemas),
    )
    try:
        run(print_records(bootstrap, orders))
    finally:
        for remark in () if expression is None else expression.told():
            note(remark)


def _start(offset: str | None, from_: str | None) -> Start:
    from headrace.cli.work.span import start_at_offset, start_at_time

    if offset is not None and from_ is not None:
        raise UsageError("--offset and --from both say where to start: give one of them.")
    return start_at_time(from_ or "earliest") if offset is None else start_at_offset(offset)


def _shown(text: str | None, key_separator: str | None, *, json: bool) -> Shown:
    from headrace.cli.work.formatting import as_lines, compiled, unescaped
    from headrace.operations.records_as_json import as_json_line

    if text is not None and (key_separator is not None or (json and text != "json")):
        raise UsageError("--format says all of how a record is printed: leave --key-separator and --json out.")
    if json or text == "json":
        return as_json_line
    if text is not None:
        return compiled(text)
    return as_lines(None if key_separator is None else unescaped(key_separator))


def _pattern(text: str) -> re.Pattern[bytes]:
    import re

    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        raise UsageError(f"--grep '{text}' is no regular expression: {error}.") from None


def _test(expression: Expression) -> Callable[[int, Record, State, Record | None], bool]:
    from headrace.operations.reading import Placed

    return lambda partition, record, state, stored: expression(Placed(partition, record, stored, state=state))


def _expression(text: str) -> Expression:
    try:
        from headrace.operations.expressions import Expression
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"--filter needs the package {error.name}: pip install 'headrace[console]'.") from None
    return Expression(text)
