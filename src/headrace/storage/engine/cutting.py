"""The port for the log's two ends: what retention drops, and where a log begins again.

A log is seen as ranges of offsets, one behind the other. The last one is open; the others are closed, and nothing is
added to them any more. An engine of files has one segment for each. Retention drops whole ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset

NO_GAPS: Final = Offset(0)
"""Compaction never ran: no offset has a gap below it."""


class Range(NamedTuple):
    """A part of a log that is exported, dropped and compacted as one."""

    base_offset: Offset
    next_offset: Offset
    """The offset after its last record."""
    size: int
    """Bytes."""
    is_closed: bool
    """Nothing is appended to it any more, and all of it is flushed."""


class Retention(Protocol):
    """A log, as old records leave it."""

    def ranges(self) -> Sequence[Range]:
        """All ranges, in offset order. The first may begin below the log's start."""

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> Offset:
        """Drop the oldest ranges that exceed a retention, none that reaches above `up_to`. Returns the log's start.

        `local` applies the local retentions, since everything below `up_to` is kept in another place too.
        `by_start_alone` drops only ranges that lie below the log's start, or that compaction has emptied.
        `before_drop` is called where any are dropped.

        The log's start moves now. The records go with the next flush, after the new start is durable. Ends the open
        range where all of it is too old. Records without timestamps never grow old.
        """

    def delete_records_before(self, offset: Offset) -> Offset:
        """Move the log's start up to `offset` (KIP-107) and return the new start, which is durable with the next flush.
        Records go as in `apply_retention`, which also drops those that a cleaning holds now.
        """


class Beginning(Protocol):
    """A log, as its leader begins it at another offset. Both calls block, in a worker thread, with no ticket out and no
    other call under way.
    """

    def settle_empty(self, producers: bytes | None) -> None:
        """Make an empty log durable: its identity, its start offset, and the state of its producers from before. Called
        before anything else uses the log. Raises StorageFailure, after which this object is of no use. NoRoom: the log
        may be opened again.
        """

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> str | None:
        """Durably set the contents aside, for good. The next append is at `offset`, behind an entry of `epoch`, with
        `producers` as the latest snapshot. Returns where the old contents are, for an operator; None where the log was
        empty. A crash on the way leaves the log as it was, or a log that begins at `offset`, with all old contents
        kept. Raises StorageFailure; NoRoom as `Copying.truncate_to`.
        """
