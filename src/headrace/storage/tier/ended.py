"""How the transactions of a durable segment ended.

Promises: a segment's own footer tells it of all but those that a seal left undecided. Later footers, or the log, tell
it of these. Sans-IO.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from headrace.base.ids import LAST_OFFSET
from headrace.storage.tier.format import SegmentFooter
from headrace.wire.transactions import AbortedTransaction, OpenTransaction, joined


class Ended(NamedTuple):
    """The transactions of a segment, as history tells of them."""

    aborted: Sequence[AbortedTransaction]
    """Aborted ones, in the order of their markers."""
    undecided: Collection[OpenTransaction] = ()
    """Those whose end history does not tell."""
    told_to: int = LAST_OFFSET
    """Where `undecided` has any: the end of the last footer that was read."""


def ended(footer: SegmentFooter, below: int, later: Iterable[SegmentFooter]) -> Ended:
    """How the transactions of a segment ended that begin below this offset. `later` are the footers behind it, in
    order, which are read only where they are needed.
    """
    undecided = undecided_in(footer, below)
    if not undecided:
        return Ended(footer.aborted_transactions)
    found, told_to = list(footer.aborted_transactions), int(footer.end_offset) + 1
    for one in later:
        found, told_to = joined(found, one.aborted_transactions), int(one.end_offset) + 1
        undecided &= set(one.undecided_transactions)
        if not undecided:
            return Ended(found)
    return Ended(found, undecided, told_to)


def undecided_in(footer: SegmentFooter, below: int) -> set[OpenTransaction]:
    """The transactions that begin below, and whose end the footer does not tell."""
    return {each for each in footer.undecided_transactions if each.first_offset < below}


def told_together(footers: Sequence[SegmentFooter], unmarked: Collection[int] = ()) -> list[AbortedTransaction]:
    """The aborted transactions of one segment that is made of these, which follow each other. `unmarked`: offsets at
    which it has no marker any more.

    The source that holds the marker's offset decides. It may have been compacted alone and have lost the marker, while
    sources before it still tell of the transaction. A reader under read_committed that is told of it and passes no
    marker drops the producer's next transaction.
    """
    ends = [int(footer.end_offset) for footer in footers]
    told = [{each.last_offset for each in footer.aborted_transactions} for footer in footers]
    return [
        each
        for each in joined(*(footer.aborted_transactions for footer in footers))
        if each.last_offset not in unmarked
        and each.last_offset in told[min(bisect_left(ends, each.last_offset), len(ends) - 1)]
    ]
