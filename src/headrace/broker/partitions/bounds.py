"""How far a replica's records may be compacted and deleted, given what its durable history has.

Promises: no record is deleted here before readers find it in history, and none is compacted away that history lacks.
Loop-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.ids import LAST_OFFSET, NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.storage.engine.logs import PartitionLog

if TYPE_CHECKING:
    from headrace.broker.partitions.replica import Replica


def has_history(replica: Replica) -> bool:
    """Whether the replica is exported, or was. This broker may not know yet how far, and may have a copy with gaps
    behind that."""
    return replica.is_exported or (replica.settings.durable and replica.history is not None)


def keeps_all(replica: Replica) -> bool:
    """Whether no record of the replica's log goes because history has it. History of a compacted log has other records
    (decision 0042)."""
    return replica.settings.compact or replica.log.gaps_below > 0


def cleanable_end(replica: Replica) -> Offset:
    """Return the offset below which records may be compacted.

    Exported records may be once history has them, as they were written, in the catalog and in its mirror. The mirror
    may still lack the catalog's last segment; the exporter goes on only once it has it. Nothing is compacted in a log
    that is read behind history: no reader may get values from history without the tombstones behind them.
    """
    if replica.start_offset < replica.log.log_start_offset:
        return Offset(0)
    if not (replica.has_store and has_history(replica)):
        return replica.last_stable_offset
    if replica.history is None:
        return Offset(0)
    end = min(replica.history.mirrored_end, _compared_end(replica, replica.history))
    return min(end, replica.last_stable_offset)


def _compared_end(replica: Replica, history: PartitionCatalog) -> Offset:
    """Return the offset below which the log is known to be what was exported. A copy that ends within a durable segment
    cannot be compared with it yet. It is perhaps to be cut there, or its leader's log went another way."""
    held = last_held(replica.log, history) if history.entries else None
    end = history.next_offset if not history.entries else Offset(0) if held is None else held.descriptor.next_offset
    differs_from = replica.differs_from
    return end if differs_from is None else min(differs_from, end)


def tombstones_kept_from(replica: Replica) -> Offset:
    """Return the offset from which compaction removes no tombstones. History may have values of their keys, and its
    readers go on in the log behind it. The mirror may still have them, even where all of history is deleted."""
    history = replica.history if replica.has_store else None
    return LAST_OFFSET if history is None or not history.next_offset else history.mirrored_end


def deletable_end(replica: Replica) -> Offset:
    """Return the offset below which records may be deleted here. Where the partition is exported, the catalog has all
    of these, as they are here, so that readers find them there."""
    if not (replica.has_store and has_history(replica)):
        return replica.high_watermark
    if replica.history is None:
        return Offset(0)
    return min(_compared_end(replica, replica.history), replica.high_watermark)


def last_held(held: PartitionLog, history: PartitionCatalog) -> CatalogEntry | None:
    """Return the last durable segment that does not end above the log's end."""
    end = held.log_end_offset
    if end > history.end_offset:
        return history.last
    beyond = history.entries.holding(end)
    return None if beyond is None else history.entries.holding(beyond.descriptor.start_offset - 1)


class _Compared(NamedTuple):
    """The facts that a comparison looks at."""

    catalog: str
    epochs: Sequence[tuple[LeaderEpoch, Offset]]
    end: Offset
    """Of the last segment that the log has whole."""
    gaps_below: Offset


class Comparison:
    """Compares a log with its history, again only where one of them has changed."""

    __slots__ = ("_compared", "_result")

    def __init__(self) -> None:
        self._compared: _Compared | None = None
        self._result: Offset | None = None

    def differs_from(self, held: PartitionLog, history: PartitionCatalog) -> Offset | None:
        """Return the offset from which the log differs from the catalog: its records are of a later epoch than the
        exported ones. That happens after an unclean election, or a loss of unflushed records. It is the log's start
        where only one record is seen to be of another epoch. That is the record at the end of history, or of the last
        segment that the log has whole. None: nowhere, as far as the epochs say."""
        last = last_held(held, history)
        end = NO_OFFSET if last is None else last.descriptor.end_offset
        compared = _Compared(history.head, held.epochs, end, held.gaps_below)
        if self._compared != compared:
            self._compared, self._result = compared, _compare(held, history, last)
        return self._result


def _compare(held: PartitionLog, history: PartitionCatalog, last: CatalogEntry | None) -> Offset | None:
    """Return where the log differs. A copy of a compacted log knows of an epoch that begins in a gap only that it
    begins there or later."""
    differs_from = history.differs_from([each for each in held.epochs if each[1] >= held.gaps_below])
    if differs_from is not None or last is None or last.descriptor.last_epoch == NO_EPOCH:
        return differs_from
    end = last.descriptor.end_offset
    is_held = max(held.log_start_offset, held.gaps_below) <= end
    here = held.epoch_at(end) if is_held else NO_EPOCH
    return None if here in (NO_EPOCH, last.descriptor.last_epoch) else held.log_start_offset
