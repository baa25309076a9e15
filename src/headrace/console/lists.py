"""Lists that are searched, sorted and turned page by page, by the query of their address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request

from headrace.base.limits import CONSOLE_ROWS
from headrace.base.reading import natural

T = TypeVar("T")


class Listing(NamedTuple, Generic[T]):
    """One page of a list."""

    rows: Sequence[T]
    query: str
    sort: str
    is_descending: bool
    page: int
    pages: int
    first: int
    """Number of its first row, from 1; 0 where there is none."""
    last: int
    total: int
    """Rows that the search has found."""


def number_in(request: Request, name: str, default: int, most: int) -> int:
    """A number of the query, or the default where there is none that may be."""
    try:
        return natural(request.query_params.get(name, ""), most)
    except ValueError:
        return default


def listing(
    request: Request,
    rows: Sequence[T],
    *,
    name: Callable[[T], str],
    keys: Mapping[str, Callable[[T], Any]],
    default: str,
) -> Listing[T]:
    """The page that is asked for. `keys`: what rows may be sorted by; `default`: a key, with a minus for descending."""
    query = request.query_params.get("q", "").strip()
    wanted = query.lower()
    found = [row for row in rows if wanted in name(row).lower()] if wanted else list(rows)
    sort = request.query_params.get("sort", default)
    is_descending = sort.startswith("-")
    if sort.lstrip("-") not in keys:
        sort, is_descending = default, default.startswith("-")
    key = keys[sort.lstrip("-")]
    found.sort(key=name)
    found.sort(key=key, reverse=is_descending)
    pages = max(1, -(-len(found) // CONSOLE_ROWS))
    page = min(pages, max(1, number_in(request, "page", 1, 10**9)))
    begin = (page - 1) * CONSOLE_ROWS
    some = found[begin : begin + CONSOLE_ROWS]
    return Listing(
        rows=some,
        query=query,
        sort=sort.lstrip("-"),
        is_descending=is_descending,
        page=page,
        pages=pages,
        first=begin + 1 if some else 0,
        last=begin + len(some),
        total=len(found),
    )
