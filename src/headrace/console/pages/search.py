"""Search over everything that has a page: topics, groups and brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from headrace.base.limits import CONSOLE_FIRST_MS
from headrace.console.page import NAVIGATION, console_of, framed
from headrace.console.rendering import rendered
from headrace.console.state import Console

SHOWN_MAX: Final = 12


class Hit(NamedTuple):
    """Something that has a page."""

    kind: str
    name: str
    path: str


def hits(console: Console, query: str) -> list[Hit]:
    """Everything with this in its name. Names that begin with it come first."""
    wanted = query.strip().lower()
    if not wanted:
        return []
    found = [hit for hit in _all(console) if wanted in hit.name.lower()]
    return sorted(found, key=lambda hit: (not hit.name.lower().startswith(wanted), len(hit.name), hit.name))


def _all(console: Console) -> Iterator[Hit]:
    yield from (Hit("page", name, path) for path, name in NAVIGATION)
    if (seen := console.seen.value) is not None:
        yield from (Hit("topic", name, f"/topics/{quote(name, safe='')}") for name in seen.look.view.topics)
        yield from (Hit("group", name, f"/groups/{quote(name, safe='')}") for name in seen.look.groups)
        yield from (Hit("broker", f"broker {each.id} at {each.address}", f"/#b{each.id}") for each in seen.look.brokers)


async def _found(request: Request) -> Response:
    """The list under the field."""
    query = request.query_params.get("q", "")
    found = hits(console_of(request), query)
    values = {"hits": found[:SHOWN_MAX], "more": max(0, len(found) - SHOWN_MAX), "query": query.strip()}
    return HTMLResponse(rendered("parts/found.html", values))


async def _search(request: Request) -> Response:
    """The page without scripts, and where Enter leads: to the only hit, or to all of them."""
    console, query = console_of(request), request.query_params.get("q", "")
    await console.seen.settled(CONSOLE_FIRST_MS)
    found = hits(console, query)
    exact = [hit for hit in found if hit.name.lower() == query.strip().lower()]
    if len(found) == 1 or len(exact) == 1:
        return RedirectResponse((exact or found)[0].path, 303)
    values = {"hits": found[:200], "more": max(0, len(found) - 200), "query": query.strip()}
    return framed(request, "page.html", {"title": "Search", "part": rendered("parts/search.html", values)})


ROUTES: Final = (Route("/search", _search), Route("/search/found", _found))
