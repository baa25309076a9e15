"""Durable history: what of each partition is in the store, and the chain of hashes that proves it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from headrace.base.limits import CONSOLE_FIRST_MS
from headrace.base.reading import INT_MAX, natural
from headrace.console.changes import NOT_OWN
from headrace.console.guarding import form_of
from headrace.console.lists import listing
from headrace.console.page import NotFoundError, Page, console_of, framed, linked, tokens_of
from headrace.console.proofs import begin
from headrace.console.rendering import rendered
from headrace.console.state import Console
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.operations.histories import History, catalog

DRAWN_MAX: Final = 400
"""Segments that the timeline draws one by one; where there are more, neighbours are drawn as one."""

KEYS: Final = {
    "name": lambda each: (each.topic, each.partition),
    "segments": lambda each: each.segments,
    "bytes": lambda each: each.bytes,
    "lag": lambda each: -1 if each.lag is None else each.lag,
}


SEGMENT_KEYS: Final = {
    "first": lambda each: each.descriptor.start_offset,
    "records": lambda each: each.descriptor.records,
    "size": lambda each: each.descriptor.batch_bytes,
    "stored": lambda each: each.descriptor.object_bytes,
    "epoch": lambda each: each.descriptor.leader_epoch,
    "written": lambda each: each.descriptor.last_timestamp_ms,
}


class Block(NamedTuple):
    """One segment of the timeline, or several of one epoch."""

    begin: float
    width: float
    shade: int
    """0 or 1: changes with the leader epoch."""
    text: str


async def values(console: Console, request: Request) -> dict[str, Any]:
    known = console.histories.value
    assert known is not None, "no part is made without it"
    return await asyncio.to_thread(_listed, request, known)


def _listed(request: Request, known: Sequence[History]) -> dict[str, Any]:
    """Runs in a thread: there may be very many."""
    held = [each for each in known if each.end >= 0]
    return {
        "list": listing(request, held, name=lambda each: f"{each.topic}-{each.partition}", keys=KEYS, default="name"),
        "all": len(held),
        "bytes": sum(each.bytes for each in held),
        "segments": sum(each.segments for each in held),
        "linked": linked,
    }


def of(console: Console, request: Request) -> History:
    """The history that the path names. Raises NotFoundError."""
    known, name = console.histories.value, request.path_params["name"]
    assert known is not None, "no part is made without it"
    try:
        partition = natural(request.path_params["partition"], INT_MAX)
    except ValueError:
        partition = -1
    for each in known:
        if (each.topic, each.partition) == (name, partition) and each.end >= 0:
            return each
    which = f"Partition {request.path_params['partition']} of topic '{name}'"
    raise NotFoundError(f"{which} has no durable history; see 'headrace durable list'.")


async def one(console: Console, request: Request) -> dict[str, Any]:
    history = of(console, request)
    found = await catalog(console.cluster, history)
    return {
        **await asyncio.to_thread(_drawn, request, found, history),
        "history": history,
        "catalog": found,
        "linked": linked,
        "commands": {
            "verify": console.command("durable", "verify", history.topic, "--partition", str(history.partition)),
            "describe": console.command("durable", "describe", history.topic, "--partition", str(history.partition)),
        },
    }


def _drawn(request: Request, found: PartitionCatalog, history: History) -> dict[str, Any]:
    """The timeline, and the page of segments that is asked for. Runs in a thread: there may be very many."""
    entries = list(found)
    return {
        "stored": sum(entry.descriptor.object_bytes for entry in entries),
        "list": listing(
            request, entries, name=lambda each: each.hash, keys=SEGMENT_KEYS, default="-first", given="first"
        ),
        "blocks": blocks(found, entries, history),
        "durable_share": _share(found, history),
    }


def _span(found: PartitionCatalog, history: History) -> tuple[int, int]:
    """The offsets from the first to the end of the log."""
    end = max(found.next_offset, history.log_end or 0)
    return found.readable_start, max(end, found.readable_start + 1)


def _share(found: PartitionCatalog, history: History) -> float:
    """How much of the timeline is durable, in percent."""
    start, end = _span(found, history)
    return round(100 * (found.next_offset - start) / (end - start), 2)


def blocks(found: PartitionCatalog, entries: list[CatalogEntry], history: History) -> list[Block]:
    """The timeline, by offsets, in percent."""
    start, end = _span(found, history)
    together = max(1, -(-len(entries) // DRAWN_MAX))
    made, shade, epoch = [], 0, None
    for at in range(0, len(entries), together):
        some = entries[at : at + together]
        low, high = some[0].descriptor, some[-1].descriptor
        if epoch not in (None, low.leader_epoch):
            shade = 1 - shade
        epoch = high.leader_epoch
        begin = 100 * (max(low.start_offset, start) - start) / (end - start)
        width = 100 * (high.next_offset - start) / (end - start) - begin
        what = "segment" if len(some) == 1 else f"{len(some)} segments"
        text = f"{what}: offsets {low.start_offset:,} to {high.end_offset:,}, epoch {low.leader_epoch}"
        made.append(Block(round(begin, 3), round(width, 3), shade, text))
    return made


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.histories, console.seen)


async def frame(console: Console, request: Request) -> dict[str, Any]:
    """The proof that was asked for last, and the form that asks for one."""
    name, partition = request.path_params["name"], request.path_params["partition"]
    proof = console.proofs.get((name, natural(partition, INT_MAX)))
    return {"proof": proof, "place": f"/history/{quote(name, safe='')}/{partition}/proof"}


async def _proof(request: Request) -> Response:
    """How far the proof is, for the page that asks for it again and again while it goes on."""
    console = console_of(request)
    try:
        values = await frame(console, request)
    except ValueError:
        return Response(status_code=404)
    return HTMLResponse(rendered("parts/proof.html", {**values, "console": console}))


async def _begin(request: Request) -> Response:
    """Begin to prove a history, unless that is going on."""
    console, form = console_of(request), await form_of(request)
    if not tokens_of(request).is_own(request, form):
        part = rendered("parts/refused.html", {"text": NOT_OWN, "back": "/history"})
        return framed(request, "page.html", {"title": "Refused", "part": part}, 403)
    await console.histories.settled(CONSOLE_FIRST_MS)
    if console.histories.value is None:
        raise HTTPException(503)
    try:
        history = of(console, request)
    except NotFoundError as error:
        part = rendered("parts/not_found.html", {"text": str(error)})
        return framed(request, "page.html", {"title": "History", "part": part}, 404)
    begin(console, history)
    return RedirectResponse(f"/history/{quote(history.topic, safe='')}/{history.partition}#proof", 303)


ROUTES: Final = (
    Route("/history/{name}/{partition}/proof", _proof, methods=["GET"]),
    Route("/history/{name}/{partition}/proof", _begin, methods=["POST"]),
)
PAGE: Final = Page(
    path="/history",
    template="parts/histories.html",
    title=lambda _: "History",
    feeds=feeds,
    values=values,
)
ONE: Final = Page(
    path="/history/{name}/{partition}",
    template="parts/history.html",
    title=lambda request: f"History of {request.path_params['name']}-{request.path_params['partition']}",
    feeds=feeds,
    values=one,
    frame="history.html",
    once=frame,
)
