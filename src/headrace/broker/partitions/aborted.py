"""The aborted transactions of one partition, as its readers are told of them: from its log, and from blocks of history.

Promise: where the log has none, no batch of what was read is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.ids import LAST_OFFSET, Offset
from headrace.base.ports import Buffer
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.batches import end_of
from headrace.wire.transactions import AbortedTransaction, joined, overlapping

if TYPE_CHECKING:
    from headrace.storage.tier.blocks import Block


class AbortedReads:
    """See the module. All raise StorageFailure, CorruptData or OSError where the disk does not give them."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def within(self, offset: Offset, records: Buffer, block: Block | None = None) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions that overlap with these records, which were read from `offset` on, from the
        log or from a block of history. They are at most as many as the markers in the records and the transactions that
        are open at their end."""
        if not records:
            return ()
        if block is None:
            index = self._log.aborted
            return index.between(offset, end_of(records)) if index is not None and index.has_any else ()
        if block.told_to == LAST_OFFSET and not block.aborted:
            return ()
        end = end_of(records)
        told = overlapping(block.aborted, offset, end)
        return told if block.told_to == LAST_OFFSET else joined(told, self.between(offset, end))

    def between(self, start: Offset, end: Offset) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with offsets in [start, end) whose markers are in the log."""
        index = self._log.aborted
        return index.between(start, end) if index is not None and index.has_any else ()

    def are_all_known_in(self, block: Block) -> bool:
        """Whether a block of history and the log together have all aborted transactions in it."""
        return self._log.log_start_offset <= block.told_to
