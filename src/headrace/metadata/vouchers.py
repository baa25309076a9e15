"""Checks that the substitutes in a catalog, segments that replaced others, are those that its chain vouches for.

The chain's links of replaced segments are gone with them. A substitute stands between the hashes of the first and the
last of these, where any segment could stand. The link of the replacement itself, further on in the chain, binds it.
Promises: a substitute is distinguished from one that was never committed, from one that was replaced itself, and from
the segments that it replaced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from headrace.metadata.descriptors import CatalogEntry, Link, Voucher, vouchers_of


def unvouched(start: int, entries: Iterable[CatalogEntry], links: Sequence[Link]) -> str | None:
    """Why the substitutes of a catalog that begins at offset `start` are not exactly those that its chain vouches for,
    in a few words; None where they are. `entries` has at least substitutes and entries with links, in order; `links`
    are those behind the last entry."""
    living = Living()
    found: dict[int, Voucher] = {}
    for entry in entries:
        living.on_links(entry.deletions)
        if entry.is_substitute:
            found[entry.descriptor.start_offset] = entry.voucher
    living.on_links(links)
    wanted = {each.start_offset: each for each in living if each.end_offset >= start}
    for at in sorted(wanted.keys() | found.keys()):
        if wanted.get(at) != found.get(at):
            return f"what took the place of others at offset {at} is not what the chain says"
    return None


class Living:
    """Vouchers of segments that have not been replaced since. Invariant: no two overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._vouchers: list[Voucher] = []

    def __iter__(self) -> Iterator[Voucher]:
        return iter(self._vouchers)

    def on_links(self, links: Iterable[Link]) -> None:
        """Apply links in the chain's order."""
        for link in links:
            for voucher in vouchers_of(link):
                self._on_replaced(voucher)

    def _on_replaced(self, voucher: Voucher) -> None:
        """The new voucher ends those that it overlaps."""
        low = bisect_right(self._starts, voucher.start_offset)
        if low and self._vouchers[low - 1].end_offset >= voucher.start_offset:
            low -= 1
        high = bisect_right(self._starts, voucher.end_offset)
        self._starts[low:high] = [voucher.start_offset]
        self._vouchers[low:high] = [voucher]
