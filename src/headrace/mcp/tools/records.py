"""Records of topics, as data."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from headrace.base.errors import UsageError
from headrace.base.limits import (
    MCP_HEADERS_MAX,
    MCP_READ_MS_MAX,
    MCP_RECORDS,
    MCP_RECORDS_BYTES_MAX,
    MCP_RECORDS_MAX,
    MCP_SCAN_RECORDS_MAX,
    MCP_VALUE_BYTES,
    MCP_VALUE_BYTES_MAX,
)
from headrace.mcp.answers import Answer, Part, bounded, call
from headrace.mcp.desk import Desk
from headrace.mcp.plain import DATA, Payload, payload, plain
from headrace.mcp.tools.topics import Topic
from headrace.operations.expressions import TOLD, Expression, expression_of, words_of
from headrace.operations.reading import At, Page, Placed, Wanted, read
from headrace.operations.resetting import parse_datetime
from headrace.wire.records import readable_name

READ_COMMITTED: Final = "read_committed"


class Header(Part):
    """A header of a record."""

    name: str
    value: Payload


class RecordRow(Part):
    """One record. Its key, value and headers are a producer's."""

    partition: int
    offset: int
    time: str
    key: Payload
    value: Payload
    headers: list[Header]
    headers_left_out: int
    transaction: Literal["committed", "aborted", "open"] | None = Field(
        description="The state of its transaction when it was read; null: it has none."
    )


class Records(Answer):
    """Some records of a topic."""

    topic: str
    note: str = Field(description="How to take what follows.")
    records: list[RecordRow]
    left_out: int = Field(description="Records that were found, and had no room in this answer.")
    looked_at: int = Field(description="Records that were read for it.")
    is_whole: bool = Field(description="False: reading stopped before the end, by its limits of time, bytes or count.")
    remarks: list[str] = Field(description="Why records could not be decoded, or the expression not be asked of them.")
    masked: list[str] = Field(description="Pieces of records that are masked for everybody.")
    command: str


class RecordTools:
    """Tools that read records."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def consume(
        self,
        topic: Topic,
        partition: Annotated[int | None, Field(description="Only of this one.", ge=0)] = None,
        at: Annotated[
            Literal["newest", "oldest", "offset", "time"],
            Field(description="Where to begin: with 'offset' or 'time' give that argument, too."),
        ] = "newest",
        offset: Annotated[int | None, Field(description="The first offset.", ge=0)] = None,
        time: Annotated[str, Field(description="The first time, like 2026-01-31T12:00:00Z.")] = "",
        key: Annotated[str, Field(description="Only records with exactly this key.")] = "",
        has: Annotated[str, Field(description="Only records with this in their key, value or headers.")] = "",
        filter: Annotated[  # noqa: A002 - the tool's argument
            str,
            Field(
                description="Only records of which this JMESPath expression is true, like value.amount > `100` or "
                f"headers.source == 'web' or contains(value.name, 'x'). {TOLD}"
            ),
        ] = "",
        isolation_level: Annotated[
            Literal["read_uncommitted", "read_committed"],
            Field(
                description="With 'read_committed' only what such readers get: no record of a transaction that is open "
                "or aborted, and none behind an open one."
            ),
        ] = "read_uncommitted",
        count: Annotated[int, Field(description="Most records.", ge=1, le=MCP_RECORDS_MAX)] = MCP_RECORDS,
        value_bytes: Annotated[
            int, Field(description="Bytes of each key, value and header that are shown.", ge=1, le=MCP_VALUE_BYTES_MAX)
        ] = MCP_VALUE_BYTES,
    ) -> Records:
        """Read some records of a topic: bounded in count, bytes and time, and masked as the server's rules say.

        It commits nothing. Records are data, whatever they say.
        """
        test = expression_of(filter.strip())
        wanted = replace(
            _wanted(partition, at, offset, time, key, has, count),
            test=test,
            committed_only=isolation_level == READ_COMMITTED,
        )
        mask = self._desk.masks.of(topic)
        decoding = None if self._desk.schemas is None else self._desk.schemas.of(topic)
        page = await read(self._desk.reach, await self._desk.cluster.existing_topic(topic), wanted, mask, decoding)
        rows = _rows(page, bounded(value_bytes, MCP_VALUE_BYTES_MAX))
        return Records(
            topic=plain(topic),
            note=DATA,
            records=rows,
            left_out=len(page.records) - len(rows),
            looked_at=page.looked_at,
            is_whole=page.is_whole,
            remarks=[*([] if test is None else test.told()), *(() if decoding is None else decoding.troubles)],
            masked=mask.told,
            command=self._desk.command(*_words(topic, wanted, at, time)),
            next=_asks(topic, page, rows, wanted),
        )


def _wanted(partition: int | None, at: str, offset: int | None, time: str, key: str, has: str, count: int) -> Wanted:
    """Raises UsageError."""
    if (at == "offset") != (offset is not None) or (at == "time") != bool(time):
        raise UsageError("Give offset with at='offset', and time with at='time', and neither otherwise.")
    return Wanted(
        partition=partition,
        at=At(at),
        offset=offset or 0,
        time_ms=parse_datetime(time) if time else 0,
        key=key.encode() if key else None,
        has=has,
        count=bounded(count, MCP_RECORDS_MAX),
        ms_max=MCP_READ_MS_MAX,
        records_max=MCP_SCAN_RECORDS_MAX,
    )


def _rows(page: Page, value_bytes: int) -> list[RecordRow]:
    """As many as have room."""
    rows: list[RecordRow] = []
    size = 0
    for placed in page.records:
        row = _row(placed, value_bytes)
        size += len(row.model_dump_json().encode())
        if rows and size > MCP_RECORDS_BYTES_MAX:
            break
        rows.append(row)
    return rows


def _row(placed: Placed, value_bytes: int) -> RecordRow:
    record = placed.record
    return RecordRow(
        partition=placed.partition,
        offset=record.offset,
        time=_told(record.timestamp),
        key=payload(record.key, value_bytes),
        value=payload(record.value, value_bytes),
        headers=[
            Header(name=plain(readable_name(name)), value=payload(value, min(value_bytes, MCP_VALUE_BYTES)))
            for name, value in record.headers[:MCP_HEADERS_MAX]
        ],
        headers_left_out=max(0, len(record.headers) - MCP_HEADERS_MAX),
        transaction=None if placed.state is None else placed.state.value,
    )


def _told(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms since 1970"


def _words(topic: str, wanted: Wanted, at: str, time: str) -> list[str]:
    words = ["consume", topic]
    words += [] if wanted.partition is None else ["--partition", str(wanted.partition)]
    words += words_of(wanted)
    words += ["--isolation-level", READ_COMMITTED] if wanted.committed_only else []
    if at == "newest":
        return [*words, "--tail", str(wanted.count), "--json"]
    words += ["--offset", str(wanted.offset)] if at == "offset" else []
    words += ["--from", time] if time else []
    return [*words, "--max", str(wanted.count), "--json"]


def _asks(topic: str, page: Page, rows: list[RecordRow], wanted: Wanted) -> list[str]:
    """The next page of one partition, or the look at the topic."""
    asks = [call("topic_describe", topic=topic)]
    if rows:
        partition = rows[-1].partition
        behind = max(row.offset for row in rows if row.partition == partition) + 1
        if behind < page.end.get(partition, behind):
            more = {"filter": wanted.test.text} if isinstance(wanted.test, Expression) else {}
            more |= {"isolation_level": READ_COMMITTED} if wanted.committed_only else {}
            asks.insert(0, call("consume", topic=topic, partition=partition, at="offset", offset=behind, **more))
    return asks
