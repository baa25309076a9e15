"""Drives compaction: chooses the log that is due, runs the slow work, and installs its results on the loop.

One log at a time, the dirtiest first.

Promises:
- Only records below the last stable offset, in closed segments, are compacted; in exported partitions, only those that
  history has.
- Readers are never stopped, and never see a mixture of before and after.
- The cleaning of a log has ended before the log is closed or deleted.
- A cleaning that fails leaves the log as it was, and is logged. It is not tried again on that log until the broker
  restarts.
- A cleaning that fails after its swap was durable takes the partition offline, and recovery completes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.base.errors import OUT_OF_DESCRIPTORS, OUT_OF_ROOM, CorruptData, StorageFailure
from headrace.base.limits import CLEANER_PAUSE_MS_MIN
from headrace.base.ports import Clock, Random
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions import bounds
from headrace.broker.partitions.condition import listed
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.storage.engine.cleaning import Cleaning, Stopped
from headrace.storage.engine.faults import Unreachable
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.ailments import State
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)


class Pace(NamedTuple):
    """The current configs."""

    interval_ms: int
    """Between two looks for logs that are due (log.cleaner.backoff.ms)."""
    bytes_per_second: float
    """log.cleaner.io.max.bytes.per.second."""


class Cleaner:
    """One per broker. Loop-only."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        clock: Clock,
        random: Random,
        pace: Callable[[MetadataImage], Pace],
        image: MetadataImage,
        on_bug: OnBug,
    ) -> None:
        self._on_bug = on_bug
        self._pace_by = pace
        self._pace = pace(image)
        self._partitions = partitions
        self._clock = clock
        self._random = random
        self._failed: set[PartitionLog] = set()
        """Logs that are not compacted any more, or not before they change."""
        self._given_up: set[PartitionLog] = set()
        """The part of `_failed` that an error keeps from compaction."""
        self._put_off: set[PartitionLog] = set()
        """Logs that are not compacted before the next look."""
        self._at: PartitionLog | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._letting_go = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = started(self._work(), "cleaner", self._on_bug)

    async def stop(self) -> None:
        """Stop. No cleaning is under way on return."""
        self._stopping.set()
        self._woken.set()
        self._letting_go.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def on_delta(self, delta: ImageDelta) -> None:
        """Adopt changed configs. A cleaning under way at another rate begins again: at the old rate it might take for
        ever."""
        if delta.before.broker_configs is delta.after.broker_configs:
            return
        pace = self._pace_by(delta.after)
        if pace.bytes_per_second != self._pace.bytes_per_second:
            self._letting_go.set()
        self._pace = pace
        self._woken.set()

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        """End the work on these logs, which are about to end."""
        for some in (self._failed, self._given_up, self._put_off):
            some.difference_update(logs)
        if self._at is not None and self._at in logs:
            self._letting_go.set()
            await self._free.wait()

    async def _work(self) -> None:
        while not self._stopping.is_set():
            partition = self._dirtiest()
            if partition is not None:
                await self._clean(partition)
                continue
            self._woken.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), max(self._pace.interval_ms, CLEANER_PAUSE_MS_MIN) / 1000)
            self._put_off.clear()

    def _dirtiest(self) -> Replica | None:
        now_ms = self._clock.now_ms()
        found: Replica | None = None
        most = 0.0
        for partition in self._partitions.replicas:
            usable = partition.availability is ErrorCode.NONE and partition.log not in self._failed
            if not (partition.settings.compact and usable) or partition.log in self._put_off or partition.lacks_room:
                continue
            if (cleanable := partition.log.cleaning) is None:
                continue
            _roll_if_late(partition, now_ms)
            try:
                dirtiness = cleanable.dirtiness(now_ms, partition.cleanable_end)
            except (OSError, CorruptData) as error:
                self._give_up(partition, error)
                continue
            if dirtiness > most:
                found, most = partition, dirtiness
        return found

    def states(self) -> Iterator[State]:
        """Iterate over problems: logs that are not compacted any more."""
        given_up = [role for role in self._partitions.replicas if role.log in self._given_up] if self._given_up else []
        if given_up:
            names = listed([f"{role.topic}-{role.topic_partition.partition}" for role in given_up])
            text = f"{len(given_up)} of its compacted partitions are not compacted any more ({names})"
            todo = "its log says why of each; mend that, then restart the broker"
            yield State(kind="cleaning given up", text=text, todo=todo)

    def _give_up(self, partition: Replica, error: Exception) -> None:
        """Give a log up after a failure. Where damage is the cause, the log is examined, and the records before the
        damage may be compacted another time. Where the disk is full, or too many files are open, it is tried again
        before long."""
        if isinstance(error, OSError) and error.errno in (*OUT_OF_ROOM, *OUT_OF_DESCRIPTORS):
            self._put_off.add(partition.log)
            log.warning(
                "a log could not be compacted for want of room or of file descriptors; it is tried again",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                reason=str(error),
            )
            return
        self._failed.add(partition.log)
        self._given_up.add(partition.log)
        partition.on_unreadable(error, None)
        log.error(
            "a log could not be compacted, and is left as it is until the broker is restarted",
            topic=partition.topic,
            partition=partition.topic_partition.partition,
            reason=str(error),
        )

    async def _clean(self, partition: Replica) -> None:
        cleanable = partition.log.cleaning
        assert cleanable is not None, "it was the dirtiest"
        token = f"{self._random.getrandbits(64):016x}"
        up_to, remembered = partition.cleanable_end, partition.producers.remembered()
        tombstones_from = bounds.tombstones_kept_from(partition)
        try:
            cleaning = cleanable.begin_cleaning(
                self._clock.now_ms(), up_to, remembered, token, tombstones_from=tombstones_from
            )
        except (OSError, CorruptData) as error:
            self._give_up(partition, error)
            return
        if cleaning is None:
            self._failed.add(partition.log)
            return
        self._at = partition.log
        self._letting_go.clear()
        self._free.clear()
        if self._stopping.is_set():
            self._letting_go.set()
        try:
            await self._carry_out(partition, cleaning)
        finally:
            cleaning.end()
            self._at = None
            self._free.set()

    async def _carry_out(self, partition: Replica, cleaning: Cleaning) -> None:
        before = partition.log.size_bytes
        try:
            clean_to = await cleaning.carry_out(self._letting_go, self._pace.bytes_per_second)
        except Stopped:
            return
        except Unreachable as error:
            self._put_off.add(partition.log)
            log.info("a log is compacted later", topic=partition.topic, reason=str(error))
        except (OSError, CorruptData, StorageFailure) as error:
            self._give_up(partition, error)
            if cleaning.is_committed:
                partition.fail_cleaning(error)
        else:
            log.info(
                "compacted",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                clean_to=clean_to,
                bytes_before=before,
                bytes_after=partition.log.size_bytes,
            )


def _roll_if_late(partition: Replica, now_ms: int) -> None:
    """Roll the active segment. It is never cleaned, so it must not stay active for longer than
    `max.compaction.lag.ms`."""
    since_ms = partition.open_since_ms
    if since_ms is not None and now_ms - since_ms > partition.log.config.max_compaction_lag_ms:
        partition.roll()
