"""Durable history wins: decides about the log of a new leader where the catalog has more, or other, records.

Exported records were committed, and readers of history get them. So an offset below the end of history, the durable
frontier, must not be given again. A leader elected cleanly has all committed records, and keeps its log. Only after an
unclean election, or a loss of unflushed records, is there something to decide. The image does not tell whether an
earlier election was unclean. But a log that ends below the frontier lacks committed records, so no acknowledgement
above its end counts. No other sign tells as much.

| the log, against the frontier F (the catalog's end + 1) | done before it leads |
|---|---|
| nothing was ever exported | kept |
| for reading only, or failed | kept: nothing is appended to it |
| it ends below F, and history can be read | gives way: begins at F, and its old records are set aside |
| it ends below F, and the store cannot be read, or lacks an object (not mounted, another one) | not led; tried again |
| it ends below F, and this broker has no store | not led |
| it ends below F, and history is damaged, or does not tell its producers | gives way, with the producers it knows |
| it ends at F or above, and its record before F is of another epoch than history's | kept, but no more exported |
| it ends at F or above | kept |

That is so with `durable.enable=false` too: the records in the catalog stay history. Nothing of a log that gives way is
deleted. Should the catalog be wrong, the log may be the only copy of acknowledged records. It stays in another
directory (`storage.log.recovery.replaced`). The new log's high watermark starts at F (`Partitions`); its producers are
those of the last segment's footer.

While the store does not give these, the partition is not led: a producer's batch from below F, sent again, would be
appended twice. Where the segment is damaged, waiting would not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import FRONTIER_LEADER_RETRY_MS_MAX, HISTORY_RETRY_MS
from headrace.broker.kit.tasks import OnBug, in_thread, started
from headrace.logs import get_logger
from headrace.metadata.segments import PartitionCatalog
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.tier.beginnings import DAMAGE, NotTold

if TYPE_CHECKING:
    from headrace.broker.partitions.logs.frontiers import Frontiers

log = get_logger(__name__)

STORE: Final = "the store (durable.url) can be reached, is the right one, and has all of its objects"
NO_STORE: Final = "set it as on the other brokers and restart, or let a broker lead that has it"


def wins(catalog: PartitionCatalog | None, partition_log: PartitionLog) -> bool:
    """Whether the log is to give way to history before it is led. See the module."""
    if catalog is None or partition_log.read_only is not None or partition_log.failed:
        return False
    return partition_log.log_end_offset < catalog.next_offset


def agrees(catalog: PartitionCatalog, partition_log: PartitionLog) -> bool:
    """Whether the log is known to continue history. It begins at history's end or above, or has its last record, and
    with that all before it (KIP-101)."""
    if partition_log.log_start_offset >= catalog.next_offset:
        return True
    last = catalog.last
    if last is None or last.descriptor.last_epoch == NO_EPOCH or partition_log.log_end_offset < catalog.next_offset:
        return False
    return partition_log.epoch_at(last.descriptor.end_offset) == last.descriptor.last_epoch


class Found(NamedTuple):
    """The beginning of a leader's log."""

    offset: Offset
    epoch: LeaderEpoch
    """The epoch of the record before it; -1: not known."""
    producers: ProducerStates | None
    """The producers as of that offset; None: history does not tell."""


class DurableWins:
    """Lets logs give way: one per broker, whether or not it has a durable store. Loop-only."""

    def __init__(
        self,
        *,
        frontiers: Frontiers | None,
        wanted: Callable[[TopicPartition], PartitionCatalog | None],
        again: Callable[[TopicPartition], None],
        waits: dict[TopicPartition, str],
        on_bug: OnBug,
    ) -> None:
        """`frontiers`: None: there is no store here, and history cannot be read. `wanted` returns the history of a
        partition that this broker is to lead; None where it is not, or not any more. `again` is called with a partition
        whose beginning is known now, so that it gets its role. `waits` gets why partitions wait
        (`Partitions.waits`)."""
        self._frontiers = frontiers
        self._wanted = wanted
        self._again = again
        self._waits = waits
        self._on_bug = on_bug
        self._found: dict[TopicPartition, tuple[str, Found]] = {}
        """The beginnings of partitions that wait for their role, each with the head of the catalog that it was read
        by."""
        self._reading: dict[TopicPartition, asyncio.Task[None]] = {}

    def stop(self) -> None:
        for task in self._reading.values():
            task.cancel()
        self._reading.clear()

    def forget(self, key: TopicPartition) -> None:
        """Forget a partition that this broker does not hold any more."""
        self._found.pop(key, None)
        self._waits.pop(key, None)
        if (reading := self._reading.pop(key, None)) is not None:
            reading.cancel()

    async def begin_anew(
        self, key: TopicPartition, catalog: PartitionCatalog, partition_log: PartitionLog, known: ProducerStates
    ) -> ProducerStates | None:
        """Let the log give way and return its producers. None: where it is to begin is still to be read, and `again` is
        called then. `known`: its producers now. No flush of the log is under way. Raises StorageFailure."""
        head, found = self._found.pop(key, (None, None))
        if found is None or head != catalog.head:
            self._read(key)
            return None
        offset, epoch, in_history = found
        producers = _still_true(known, catalog, partition_log) if in_history is None else in_history
        was = (partition_log.log_start_offset, partition_log.log_end_offset)
        snapshot = producers.snapshot() if len(producers) else b""
        kept_in = await in_thread(partial(partition_log.give_way, offset, epoch=epoch, producers=snapshot))
        log.error(
            "a leader's log gave way to durable history, which goes on above its end: what it had is set aside, and "
            "what was neither exported nor is held by another broker is nowhere else",
            log=partition_log.identity.name,
            log_start=was[0],
            log_end=was[1],
            frontier=offset,
            kept_in=kept_in,
        )
        return producers

    def _read(self, key: TopicPartition) -> None:
        if self._frontiers is None:
            if key not in self._waits:
                self._waits[key] = NO_STORE
                log.error(
                    "a partition is not led: its log ends below durable history, and this broker has no durable store "
                    f"(durable.url); {NO_STORE}",
                    topic_id=str(key.topic_id),
                    partition=key.partition,
                )
        elif key not in self._reading:
            self._reading[key] = started(
                self._look(key, self._frontiers), "reading of a durable frontier", self._on_bug
            )

    async def _look(self, key: TopicPartition, frontiers: Frontiers) -> None:
        """Read the beginning, until that succeeds or nobody needs it any more."""
        pause_ms = HISTORY_RETRY_MS
        while (catalog := self._wanted(key)) is not None:
            try:
                offset, epoch, producers = await frontiers.read(catalog)
                self._found[key] = catalog.head, Found(offset, epoch, producers)
                break
            except DAMAGE as error:
                self._found[key] = catalog.head, _without_producers(key, catalog, error)
                break
            except (HeadraceError, OSError) as error:
                is_told = key in self._waits
                self._waits[key] = f"see that {STORE} ({error})"
                if not is_told:
                    log.error(
                        "a partition is not led: its log ends below durable history, and that cannot be read; see that "
                        + STORE,
                        topic_id=str(key.topic_id),
                        partition=key.partition,
                        frontier=catalog.next_offset,
                        reason=str(error),
                    )
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, FRONTIER_LEADER_RETRY_MS_MAX)
        del self._reading[key]
        self._waits.pop(key, None)
        if key in self._found:
            self._again(key)


def _without_producers(key: TopicPartition, catalog: PartitionCatalog, error: Exception) -> Found:
    problem = (
        "a leader's log begins behind durable history that does not tell its producers"
        if isinstance(error, NotTold)
        else "a leader's log begins behind damaged durable history"
    )
    log.error(
        f"{problem}: those are known that its log knew before, and a batch that another one sends again is appended "
        "once more",
        topic_id=str(key.topic_id),
        partition=key.partition,
        frontier=catalog.next_offset,
        reason=str(error),
    )
    epoch = NO_EPOCH if catalog.last is None else catalog.last.descriptor.last_epoch
    return Found(catalog.next_offset, epoch, None)


def _still_true(known: ProducerStates, catalog: PartitionCatalog, partition_log: PartitionLog) -> ProducerStates:
    """Return the producers of a log that ends below history, without batches that are seen not to be in history. To
    recognise these would be to acknowledge lost records."""
    differs_from = catalog.differs_from(partition_log.epochs)
    return known.as_of(partition_log.log_end_offset if differs_from is None else differs_from)
