"""The transactions of a log, as a compaction meets them: which were aborted, and which have no records left.

All of them are decided: a compaction goes no further than the last stable offset. Sans-IO. Source: Kafka's
CleanedTransactionMetadata.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from headrace.wire.batches import BatchHeader
from headrace.wire.transactions import AbortedTransaction


class Decided:
    """It is told of all batches of transactions in the order of offsets, from the log's first."""

    __slots__ = ("_begun", "_first", "_last", "bare")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._begun: set[int] = set()
        """Producers with a batch behind their last marker."""
        self.bare: list[int] = []
        """Offsets of the abort markers that no batch of their transaction is left before."""
        self.tell(aborted)

    def tell(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Note all transactions that were aborted, as far as their offsets lie in the batches that come next."""
        self._first: dict[int, list[int]] = {}
        self._last: dict[int, list[int]] = {}
        """First and last offsets of each producer's aborted transactions, rising."""
        for each in sorted(aborted, key=lambda each: each.last_offset):
            self._first.setdefault(each.producer_id, []).append(each.first_offset)
            self._last.setdefault(each.producer_id, []).append(each.last_offset)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction, the marker included."""
        lasts = self._last.get(header.producer_id)
        if lasts is None or not header.is_transactional:
            return False
        at = bisect_left(lasts, header.last_offset)
        return at < len(lasts) and self._first[header.producer_id][at] <= header.base_offset

    def on_batch(self, header: BatchHeader) -> None:
        """Note a batch of records, even if none are left in it."""
        self._begun.add(header.producer_id)

    def on_marker(self, header: BatchHeader) -> bool:
        """Note a marker. Returns whether its transaction has no batch any more, so that nobody needs it."""
        is_bare = header.producer_id not in self._begun
        self._begun.discard(header.producer_id)
        if is_bare and self.is_aborted(header):
            self.bare.append(header.last_offset)
        return is_bare
