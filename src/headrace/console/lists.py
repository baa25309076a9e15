"""Lists that are searched, sorted and turned page by page, by the query of their address.

Promises: a thread that makes a page of a list of 100,000 rows lets the event loop go on after some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request

from headrace.base.limits import CONSOLE_ROWS, CONSOLE_SORTED_ROWS_MAX
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
    prefix: str = ""
    """The begin of its names in the query, where the page has several lists."""


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
    given: str | None = None,
    prefix: str = "",
) -> Listing[T]:
    """The page that is asked for. `keys`: what rows may be sorted by; `default`: a key, with a minus for descending.
    `given`: the key by which the rows come in order, if they do; it is no other's of them. Rows that are alike stand in
    that order, or by name. `prefix`: of the names in the query.
    """
    query = request.query_params.get(f"{prefix}q", "").strip()
    wanted = query.lower()
    found = [row for row in rows if wanted in name(row).lower()] if wanted else rows
    sort = request.query_params.get(f"{prefix}sort", default)
    if sort.removeprefix("-") not in keys:
        sort = default
    by, is_descending = sort.removeprefix("-"), sort.startswith("-")
    pages = max(1, -(-len(found) // CONSOLE_ROWS))
    page = min(pages, max(1, number_in(request, f"{prefix}page", 1, 10**9)))
    begin = (page - 1) * CONSOLE_ROWS
    if by == given:
        some = found[::-1][begin : begin + CONSOLE_ROWS] if is_descending else found[begin : begin + CONSOLE_ROWS]
    else:
        even = found if given is not None else list(_sorted(found, name))
        some = list(islice(_sorted(even, keys[by], is_descending=is_descending), begin, begin + CONSOLE_ROWS))
    return Listing(
        rows=some,
        query=query,
        sort=by,
        is_descending=is_descending,
        page=page,
        pages=pages,
        first=begin + 1 if some else 0,
        last=begin + len(some),
        total=len(found),
        prefix=prefix,
    )


def _sorted(rows: Sequence[T], key: Callable[[T], Any], *, is_descending: bool = False) -> Iterator[T]:
    """The rows in order; those that are alike stay as they came. One sort of very many would hold the interpreter."""
    pieces = [
        sorted(rows[at : at + CONSOLE_SORTED_ROWS_MAX], key=key, reverse=is_descending)
        for at in range(0, len(rows), CONSOLE_SORTED_ROWS_MAX)
    ]
    return iter(pieces[0]) if len(pieces) == 1 else merge(*pieces, key=key, reverse=is_descending)
