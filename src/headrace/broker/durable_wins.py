"""Durable history wins: what becomes of a log whose broker is to lead, where the catalog says more or otherwise.

What was exported was committed, and whoever reads history is given it, so no log may hold anything else below its end,
the durable frontier, nor may an offset below it be given again. A leader elected cleanly has all that was committed,
and keeps its log; only after an unclean election, or a loss of what was not flushed, is there something to decide:

| the log, against the frontier F (the catalog's end + 1) | done before it leads |
|---|---|
| nothing was ever exported, or there is no store here | kept |
| for reading only, failed, or compacted | kept: nothing is appended to it, or it is not what history has |
| it ends below F | begun anew at F |
| it begins at F or above | kept |
| its record before F is of the epoch of the catalog's last record | kept: all below is the same (KIP-101) |
| its record before F is of another epoch | begun anew at F |
| that record cannot be read | kept: what is not known to differ is not dropped |
| the catalog does not tell that epoch (of earlier versions) | kept: the exporter stops where it sees a difference |

Logs have no gaps, so one that is cut below F, where it differs, can only go on at F: nothing of it stays. What it had
below F is in history, and what it had above it followed on something else. Its high watermark starts at F, or higher
where more is known (`Partitions`); its producers are those of the last segment's footer. While the store does not give
that, the partition is not led: a producer's batch from below F, sent again, would be appended once more. Where the
segment is damaged there is nothing to wait for, and it is led without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from headrace.base.errors import CorruptData, HeadraceError, StorageFailure
from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import HISTORY_RETRY_MS
from headrace.broker.frontiers import Frontiers
from headrace.broker.opening import in_thread
from headrace.broker.tasks import OnBug, started
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.replica.producers import ProducerStates
from headrace.storage.engine import PartitionLog
from headrace.storage.tier.frontier import Beginning
from headrace.wire.batches import parse_header

log = structlog.get_logger(__name__)


def wins(catalog: PartitionCatalog | None, partition_log: PartitionLog) -> bool:
    """Whether the log is to be begun anew at the frontier before it is led. See the module."""
    if catalog is None or catalog.next_offset == 0:
        return False
    if partition_log.read_only is not None or partition_log.failed or partition_log.is_compacted:
        return False
    frontier = catalog.next_offset
    if partition_log.log_end_offset < frontier:
        return True
    if partition_log.log_start_offset >= frontier or catalog.last is None:
        return False
    last = catalog.last.descriptor
    here = partition_log.epoch_at(last.end_offset)
    return _differs(here, last) and _differs(_epoch_of_record(partition_log, last.end_offset), last)


def _differs(epoch: LeaderEpoch, last: SegmentDescriptor) -> bool:
    return NO_EPOCH not in (epoch, last.last_epoch) and epoch != last.last_epoch


def _epoch_of_record(partition_log: PartitionLog, offset: Offset) -> LeaderEpoch:
    """As its batch says, where that can be read."""
    try:
        batch = partition_log.read(offset, 1, partition_log.log_end_offset, at_least_one=True)
        return LeaderEpoch(parse_header(batch).leader_epoch) if batch else NO_EPOCH
    except (CorruptData, StorageFailure, OSError):
        return NO_EPOCH


class DurableWins:
    """Carries that out: one per broker, whether or not it has a durable store. Loop-only."""

    def __init__(self, on_bug: OnBug) -> None:
        self.frontiers: Frontiers | None = None
        """None: there is no store, and nothing to be won."""
        self.again: Callable[[TopicPartition], None] = lambda _: None
        """Told of a partition whose beginning is known now: it is to be given its role."""
        self._on_bug = on_bug
        self._found: dict[TopicPartition, tuple[str, Beginning]] = {}
        """Of those that wait for their role, with the head of the catalog that it was read by."""
        self._reading: dict[TopicPartition, tuple[str, asyncio.Task[None]]] = {}

    def stop(self) -> None:
        for _, task in self._reading.values():
            task.cancel()
        self._reading.clear()

    def forget(self, key: TopicPartition) -> None:
        """It is not held here any more."""
        self._found.pop(key, None)
        if (reading := self._reading.pop(key, None)) is not None:
            reading[1].cancel()

    def wins(self, catalog: PartitionCatalog | None, partition_log: PartitionLog) -> bool:
        return self.frontiers is not None and wins(catalog, partition_log)

    async def begin_anew(
        self, key: TopicPartition, catalog: PartitionCatalog, partition_log: PartitionLog
    ) -> ProducerStates | None:
        """Its producers, once the log was begun at the frontier; None: where that is, is still to be read, and `again`
        is told then. No flush of the log is under way. Raises StorageFailure."""
        head, beginning = self._found.pop(key, (None, None))
        if beginning is None or head != catalog.head:
            self._read(key, catalog)
            return None
        log.error(
            "a leader's log gives way to durable history: what it had from there on is dropped, and what was neither "
            "exported nor copied by anybody is lost",
            log=partition_log.directory.name,
            log_start=partition_log.log_start_offset,
            log_end=partition_log.log_end_offset,
            frontier=beginning.offset,
        )
        offset, epoch, producers = beginning
        snapshot = producers.snapshot() if len(producers) else b""
        await in_thread(partial(partition_log.restart_at, offset, epoch=epoch, producers=snapshot))
        return producers

    def _read(self, key: TopicPartition, catalog: PartitionCatalog) -> None:
        known = self._reading.get(key)
        if known is not None and known[0] == catalog.head:
            return
        if known is not None:
            known[1].cancel()
        task = started(self._look(key, catalog), "reading of a durable frontier", self._on_bug)
        self._reading[key] = catalog.head, task

    async def _look(self, key: TopicPartition, catalog: PartitionCatalog) -> None:
        """Until it is read; it is for whoever gives roles to see whether anybody still needs it."""
        assert self.frontiers is not None, "something was won"
        beginning: Beginning | None = None
        is_told = False
        while beginning is None:
            try:
                beginning = await self.frontiers.read(catalog)
            except (CorruptData, EOFError) as error:  # what is not there at all may be a store that is not mounted
                log.error(
                    "a leader's log begins behind damaged durable history: producers from before are not known, and a "
                    "batch that one of them sends again is appended once more",
                    topic_id=str(key.topic_id),
                    partition=key.partition,
                    frontier=catalog.next_offset,
                    reason=str(error),
                )
                epoch = NO_EPOCH if catalog.last is None else catalog.last.descriptor.last_epoch
                beginning = Beginning(catalog.next_offset, epoch, ProducerStates())
            except (HeadraceError, OSError) as error:
                if not is_told:
                    is_told = True
                    log.error(
                        "a partition is not led: its log ends below durable history, or is not what that has, and "
                        "history cannot be read; see that the store (durable.url) can be reached",
                        topic_id=str(key.topic_id),
                        partition=key.partition,
                        frontier=catalog.next_offset,
                        reason=str(error),
                    )
                await asyncio.sleep(HISTORY_RETRY_MS / 1000)
        self._found[key] = catalog.head, beginning
        del self._reading[key]
        self.again(key)
