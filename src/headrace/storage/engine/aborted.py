"""The capability of logs that know which transactions were aborted, for readers under read_committed.

The entries follow from the batches: every abort marker that ends a transaction makes one. So a log need not have them
durably before a producer snapshot covers their markers. Recovery reads the batches behind that snapshot again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.base.ids import Offset
from headrace.wire.transactions import AbortedTransaction


class AbortedIndex(Protocol):
    """The aborted transactions of one log, in the order of their markers. They leave it with their markers."""

    @property
    def has_any(self) -> bool:
        """Whether `between` may find any."""

    def add(self, transaction: AbortedTransaction) -> None:
        """Keep a transaction whose abort marker is in the log, and behind those of all others. It is durable with the
        next producer snapshot. Raises StorageFailure.
        """

    def between(self, start: Offset, end: Offset) -> Sequence[AbortedTransaction]:
        """Return all transactions with offsets in [start, end), in the order of their markers. A marker may lie far
        behind `end`. Raises StorageFailure, and CorruptData where an entry cannot be read.
        """

    def forget_from(self, offset: Offset) -> None:
        """Forget those whose markers are at `offset` or above, as they are read again from the batches. Blocks. Called
        in a worker thread, before the log is used. Raises StorageFailure.
        """
