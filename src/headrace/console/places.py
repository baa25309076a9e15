"""Places for what stays open: streams of pages, and of new records.

Promise: one viewer takes a part of them only. A viewer is a session; where nobody logs in it is an address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Viewer(NamedTuple):
    """The one whose pages are counted."""

    key: Hashable
    """Its session, or its address."""
    has_session: bool


class Places:
    """The places of one kind, for all viewers."""

    def __init__(self, what: str, most: int, *, of_a_session: int, of_an_address: int) -> None:
        """`what`: the pages that take one, in words."""
        self._what = what
        self._most = most
        self._of_a_session = of_a_session
        self._of_an_address = of_an_address
        self._taken: Counter[Hashable] = Counter()

    @contextmanager
    def taken(self, viewer: Viewer) -> Iterator[str]:
        """Take one for the block. Gives a sentence on why there is none, and what to do; empty: it is taken."""
        if problem := self._problem(viewer):
            yield problem
            return
        self._taken[viewer.key] += 1
        try:
            yield ""
        finally:
            self._taken[viewer.key] -= 1
            if not self._taken[viewer.key]:
                del self._taken[viewer.key]

    def _problem(self, viewer: Viewer) -> str:
        own = self._of_a_session if viewer.has_session else self._of_an_address
        if self._taken[viewer.key] >= own:
            who = "You have" if viewer.has_session else "Your address has"
            text = f"{who} {own} {self._what}, and may have no more: close one of them, and load this page again."
            return text if viewer.has_session else f"{text} With 'headrace console --login' each viewer has places."
        if self._taken.total() >= self._most:
            return (
                f"All viewers together have {self._most} {self._what}, and no more may be: load this page again later."
            )
        return ""
