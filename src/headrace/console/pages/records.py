"""Records of a topic: the newest, from an offset or a time on, and those that come now.

They are chosen by a key, a text or an expression, and may be saved as a file. All of them are masked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import (
    CONSOLE_BROWSE_MS_MAX,
    CONSOLE_EXPORT_MS_MAX,
    CONSOLE_EXPORT_RECORDS_MAX,
    CONSOLE_FILTER_CHARS_MAX,
    CONSOLE_FIRST_MS,
    CONSOLE_FULL_RETRY_MS,
    CONSOLE_RECORDS,
    CONSOLE_RECORDS_MAX,
)
from headrace.base.reading import INT_MAX, LONG_MAX, natural
from headrace.console.bytes_shown import Form, Shown, preview, shown
from headrace.console.lists import number_in
from headrace.console.page import (
    NotFoundError,
    console_of,
    event,
    framed,
    is_forbidden,
    linked,
    not_live,
    viewer_of,
)
from headrace.console.pages.topic import found, name_of
from headrace.console.rendering import rendered
from headrace.console.state import Console
from headrace.net.client.states import State
from headrace.net.client.view import TopicView
from headrace.operations.expressions import Expression, expression_of, words_of
from headrace.operations.reading import At, Page, Placed, Wanted, read, tail
from headrace.operations.records_as_json import as_json_line
from headrace.operations.schemas.records import Decoding, Told
from headrace.wire.records import readable_name

E_ = TypeVar("E_", At, Form)
READ_COMMITTED: Final = "read_committed"


class Row(NamedTuple):
    """One record for a page."""

    partition: int
    offset: int
    timestamp: int
    key_preview: str
    value_preview: str
    key: Shown
    value: Shown
    headers: list[tuple[str, Shown]]
    size: int
    told: Told
    """The schemas that key and value were read with."""
    state: State
    """The state of its transaction."""


def row_of(placed: Placed, form: Form) -> Row:
    record, raw = placed.record, placed.raw or placed.record
    if form is Form.HEX:
        record = raw
    return Row(
        partition=placed.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key_preview=preview(record.key),
        value_preview=preview(record.value),
        key=shown(record.key, Form.AUTO if form is not Form.HEX else form),
        value=shown(record.value, form),
        headers=[(readable_name(name), shown(value, Form.AUTO)) for name, value in record.headers],
        size=len(raw.key or b"") + len(raw.value or b""),
        told=placed.told,
        state=placed.state,
    )


async def _laid_out(placed: Sequence[Placed], form: Form) -> list[Row]:
    """Rows of records. Large JSON takes seconds, in a thread: other pages go on meanwhile."""
    return await asyncio.to_thread(lambda: [row_of(each, form) for each in placed])


def wanted_in(request: Request) -> Wanted:
    """The records that the query asks for. Raises UsageError."""
    settings = request.query_params
    key = settings.get("key", "")
    return Wanted(
        partition=_number(request, "partition", INT_MAX),
        at=_one_of(At, settings.get("at", ""), At.NEWEST),
        offset=_number(request, "offset", LONG_MAX) or 0,
        time_ms=_time(settings.get("time", "")),
        key=key.encode() if key else None,
        has=settings.get("has", "").strip()[:CONSOLE_FILTER_CHARS_MAX],
        test=expression_of(settings.get("filter", "").strip()),
        committed_only=settings.get("isolation", "") == READ_COMMITTED,
        count=min(CONSOLE_RECORDS_MAX, max(1, number_in(request, "count", CONSOLE_RECORDS, CONSOLE_RECORDS_MAX))),
    )


def _number(request: Request, name: str, most: int) -> int | None:
    text = request.query_params.get(name, "").strip()
    if not text:
        return None
    try:
        return natural(text.replace(",", ""), most)
    except ValueError:
        raise UsageError(f"'{text}' is no {name}: write a whole number.") from None


def _time(text: str) -> int:
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"'{text}' is no time: write it like 2026-01-31T12:00.") from None
    return max(0, int(moment.timestamp() * 1000))


def _one_of(kind: type[E_], text: str, default: E_) -> E_:
    return kind(text) if text in list(kind) else default


async def _records(request: Request) -> Response:
    console, name = console_of(request), name_of(request)
    await console.seen.settled(CONSOLE_FIRST_MS)
    try:
        values = await _values(console, _topic(console, name), request)
    except (HeadraceError, OSError, TimeoutError) as error:
        return _failed(request, error)
    return framed(request, "records.html", values)


def _failed(request: Request, error: Exception) -> Response:
    text, name = str(error) or "No answer came in time.", name_of(request)
    if isinstance(error, NotFoundError):
        template, status = "parts/not_found.html", 404
    elif is_forbidden(error):
        template, status = "parts/forbidden.html", 403
    else:
        template, status = "parts/failed.html", 400 if isinstance(error, UsageError) else 502
    part = rendered(template, {"text": text, "console": console_of(request)})
    return framed(request, "page.html", {"title": name, "part": part}, status)


def _topic(console: Console, name: str) -> TopicView:
    if console.seen.value is None:
        raise HeadraceError(console.seen.trouble or "The cluster did not answer in time.")
    return found(console, name)


@asynccontextmanager
async def _turn(console: Console) -> AsyncIterator[None]:
    """A place among those who read. Pages of new records keep theirs while they are open. Raises HeadraceError."""
    try:
        async with asyncio.timeout(CONSOLE_BROWSE_MS_MAX / 1000):
            await console.settings.readers.acquire()
    except TimeoutError:
        raise HeadraceError("Too many pages read records: close pages that show new ones, or try again.") from None
    try:
        yield
    finally:
        console.settings.readers.release()


def _decoding(console: Console, topic: str) -> Decoding | None:
    schemas = console.settings.schemas
    return None if schemas is None else schemas.of(topic)


async def _values(console: Console, topic: TopicView, request: Request) -> dict[str, Any]:
    wanted, mask = wanted_in(request), console.settings.masks.of(topic.name)
    form = _one_of(Form, request.query_params.get("as", ""), Form.AUTO)
    is_live = request.query_params.get("live") == "1"
    decoding = _decoding(console, topic.name)
    page = None
    if not is_live:
        async with _turn(console):
            page = await read(console.reading, topic, wanted, mask, decoding)
    return {
        "title": f"Records of {topic.name}",
        "topic": topic,
        "wanted": wanted,
        "form": form,
        "is_live": is_live,
        "page": page,
        "left_out": 0,
        "rows": [] if page is None else await _laid_out(page.records, form),
        "older": None if page is None else _older(request, wanted, page),
        "newer": None if page is None else _newer(request, wanted, page),
        "command": _command(console, topic, wanted),
        "tail": f"/tail{request.url.path}?{request.url.query}",
        "export": f"/export{request.url.path}?{request.url.query}",
        "masked": mask.told,
        "troubles": [*_remarks(wanted), *(() if decoding is None else decoding.troubles)],
        "linked": linked,
    }


def _remarks(wanted: Wanted) -> list[str]:
    """The remarks of its expression, where it has one."""
    return wanted.test.told() if isinstance(wanted.test, Expression) else []


def _older(request: Request, wanted: Wanted, page: Page) -> str | None:
    """The page before this one, of one partition."""
    if wanted.partition is None or wanted.is_search or not page.records:
        return None
    low = min(placed.record.offset for placed in page.records)
    if low <= page.first.get(wanted.partition, low):
        return None
    return linked(request, at=At.OFFSET, offset=str(max(0, low - wanted.count)))


def _newer(request: Request, wanted: Wanted, page: Page) -> str | None:
    if wanted.partition is None or wanted.is_search or not page.records:
        return None
    after = max(placed.record.offset for placed in page.records) + 1
    return linked(request, at=At.OFFSET, offset=str(after)) if after < page.end.get(wanted.partition, after) else None


def _command(console: Console, topic: TopicView, wanted: Wanted) -> str:
    """The command that reads the same."""
    words = ["consume", topic.name]
    if wanted.partition is not None:
        words += ["--partition", str(wanted.partition)]
    if wanted.at is At.NEWEST:
        words += ["--tail", str(wanted.count)]
    elif wanted.at is At.OFFSET:
        words += ["--offset", str(wanted.offset), "--max", str(wanted.count)]
    elif wanted.at is At.TIME:
        moment = datetime.fromtimestamp(wanted.time_ms / 1000, UTC).isoformat(timespec="seconds")
        words += ["--from", moment.replace("+00:00", "Z"), "--max", str(wanted.count)]
    else:
        words += ["--max", str(wanted.count)]
    if wanted.committed_only:
        words += ["--isolation-level", READ_COMMITTED]
    return console.command(*words, *words_of(wanted), "--json")


async def _tail(request: Request) -> Response:
    """The stream of new records."""
    console, name = console_of(request), name_of(request)
    try:
        topic, wanted = _topic(console, name), wanted_in(request)
    except HeadraceError as error:
        return Response(str(error), 400 if isinstance(error, UsageError) else 404)
    if console.settings.readers.locked():
        return Response("Too many pages read records.\n", 503, headers={"retry-after": "30"})
    form = _one_of(Form, request.query_params.get("as", ""), Form.AUTO)
    rows = _in_place(request, _rows(console, topic, wanted, form))
    return StreamingResponse(rows, media_type="text/event-stream")


async def _in_place(request: Request, rows: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """The stream, where its viewer has not too many of them."""
    with console_of(request).settings.tails.taken(viewer_of(request)) as problem:
        if problem:
            yield f"retry: {CONSOLE_FULL_RETRY_MS}\n" + event(not_live(problem))
            return
        async with aclosing(rows):
            async for each in rows:
                yield each


async def _rows(console: Console, topic: TopicView, wanted: Wanted, form: Form) -> AsyncGenerator[str, None]:
    mask, decoding, told = console.settings.masks.of(topic.name), _decoding(console, topic.name), False
    async with console.settings.readers:
        try:
            async for some, left_out in tail(console.reading, topic, wanted, CONSOLE_RECORDS, mask, decoding):
                if console.closing.is_set():
                    return
                remarks = [] if told else _remarks(wanted)
                if some or remarks:
                    told = told or bool(remarks)
                    rows = await _laid_out(some, form)
                    troubles = [*remarks, *(() if decoding is None else decoding.troubles)]
                    values = {"rows": rows, "left_out": left_out, "topic": topic, "troubles": troubles}
                    yield event(rendered("parts/records.html", values))
                else:
                    yield ": alive\n\n"
        except (HeadraceError, OSError, TimeoutError) as error:
            yield event(rendered("parts/failed.html", {"text": str(error) or "No answer came in time."}))


async def _export(request: Request) -> Response:
    """The records that the page would show, and those behind them, as lines of JSON."""
    console, name = console_of(request), name_of(request)
    await console.seen.settled(CONSOLE_FIRST_MS)
    try:
        topic = _topic(console, name)
        wanted = replace(wanted_in(request), count=CONSOLE_EXPORT_RECORDS_MAX, ms_max=CONSOLE_EXPORT_MS_MAX)
        async with _turn(console):
            mask = console.settings.masks.of(name)
            page = await read(console.reading, topic, wanted, mask, _decoding(console, name))
    except (HeadraceError, OSError, TimeoutError) as error:
        return _failed(request, error)
    safe = "".join(char if char.isalnum() or char in "._-" else "_" for char in name)
    headers = {"content-disposition": f'attachment; filename="{safe}.jsonl"'}
    return StreamingResponse(_lines(name, page.records), media_type="application/x-ndjson", headers=headers)


def _lines(topic: str, records: list[Placed]) -> Iterator[bytes]:
    return (as_json_line(topic, placed.partition, placed.record, placed.state) for placed in records)


ROUTES: Final = (
    Route("/topics/{name}/records", _records),
    Route("/tail/topics/{name}/records", _tail),
    Route("/export/topics/{name}/records", _export),
)
