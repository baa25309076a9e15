"""Looks for damage: at once where a log could not be read, and everywhere at a slow pace.

A fetch gives bytes as they are in the file, and a client need not check them. So every segment is read once in
`log.scrub.interval.ms`, with every CRC, at most at `log.scrub.io.max.bytes.per.second`. One segment is read at a time.
Damage is noted durably and logged in one line before reads of it are refused. It never changes a log's bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from headrace.base.ids import Offset
from headrace.base.limits import SUSPICIONS_MAX
from headrace.base.ports import Clock
from headrace.broker.kit.tasks import OnBug, started, wait_for_event
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.broker.partitions.taking_up import tell_damage
from headrace.logs import get_logger
from headrace.storage.engine.files import Examination
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

T = TypeVar("T")

FIRST_PASS_AFTER_S: Final = 3600.0
"""A broker that has just started has other things to do."""
AGAIN_AFTER_S: Final = 60.0
"""A segment that was examined on suspicion is not examined again so soon: an unreadable part is already noted as
damaged."""
REST_S_MIN: Final = 0.001
"""Less than this may not move a clock of floats at all."""
BUSY_S: Final = 0.5
"""The pause while a cleaning holds a log that is to be examined."""


class Examiner:
    """One per broker. Loop-only."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        clock: Clock,
        interval_ms: int,
        bytes_per_second: int,
        on_bug: OnBug,
    ) -> None:
        """`interval_ms`: -1: nothing is looked at without suspicion."""
        self._partitions = partitions
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._bytes_per_second = bytes_per_second
        self._on_bug = on_bug
        self._suspicions: dict[tuple[Replica, Offset], None] = {}
        self._examined: WeakKeyDictionary[PartitionLog, dict[Offset, float]] = WeakKeyDictionary()
        self._pass: Iterator[tuple[Replica, Offset]] | None = None
        self._next_pass = 0.0
        """When the next look at everything is due, in monotonic seconds; set at the start."""
        self._at: PartitionLog | None = None
        self._letting_go = False
        self._stopping = False
        self._wake = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._next_pass = self._clock.monotonic() + min(self._interval_s, FIRST_PASS_AFTER_S)
        self._task = started(self._work(), "examiner", self._on_bug)

    async def stop(self) -> None:
        """Stop. Nothing is being examined on return."""
        self._stopping = self._letting_go = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def suspect(self, partition: Replica, offset: Offset | None) -> bool:
        """Note that a log could not be read at `offset` (None: somewhere). Returns whether it will be examined now: not
        before the start, nor where that was just done."""
        partition_log, now = partition.log, self._clock.monotonic()
        examinable = partition_log.examining
        if self._task is None or self._stopping or partition_log.read_only is not None:
            return False
        if examinable is None or not examinable.segments:
            return False
        bases = examinable.segments if offset is None else [examinable.segment_of(offset)]
        examined = self._examined.get(partition_log, {})
        due = [base for base in bases if now - examined.get(base, -AGAIN_AFTER_S) >= AGAIN_AFTER_S]
        for base in due:
            if len(self._suspicions) < SUSPICIONS_MAX:
                self._suspicions[partition, base] = None
        self._wake.set()
        return bool(due)

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        """End the work on these logs, which are about to end."""
        for suspicion in [each for each in self._suspicions if each[0].log in logs]:
            del self._suspicions[suspicion]
        if self._at is not None and self._at in logs:
            self._letting_go = True
            self._wake.set()
            await self._free.wait()

    async def _work(self) -> None:
        while not self._stopping:
            self._wake.clear()
            if self._suspicions:
                suspicion = next(iter(self._suspicions))
                del self._suspicions[suspicion]
                await self._examine(*suspicion, is_suspected=True)
            elif (due := self._due()) is not None:
                await self._examine(*due, is_suspected=False)
            else:
                await self._rest()

    async def _rest(self) -> None:
        left = self._next_pass - self._clock.monotonic() if self._interval_s >= 0 else None
        await wait_for_event(self._wake, None if left is None else max(left, REST_S_MIN))

    def _due(self) -> tuple[Replica, Offset] | None:
        """Return the next segment of the pass over all of them."""
        now = self._clock.monotonic()
        if self._pass is None and self._interval_s >= 0 and now >= self._next_pass:
            self._pass, self._next_pass = self._everything(), now + self._interval_s
        found = None if self._pass is None else next(self._pass, None)
        if found is None:
            self._pass = None
        return found

    def _everything(self) -> Iterator[tuple[Replica, Offset]]:
        for partition in self._partitions.replicas:
            for base in () if (examinable := partition.log.examining) is None else examinable.segments:
                yield partition, base

    async def _examine(self, partition: Replica, base: Offset, *, is_suspected: bool) -> None:
        partition_log = partition.log
        if partition.availability is not ErrorCode.NONE:
            return  # its log may belong to a worker thread, which cuts it
        partition.write_out()
        examinable = partition_log.examining
        if partition.availability is not ErrorCode.NONE or examinable is None or base not in examinable.segments:
            return
        examination = examinable.begin_examination(base)
        if examination is None:
            if is_suspected:
                self._suspicions[partition, base] = None
            await asyncio.sleep(BUSY_S)
            return
        self._at, self._letting_go = partition_log, self._stopping
        self._free.clear()
        done = False
        try:
            done = await self._read(examination, is_suspected=is_suspected)
        except OSError as error:
            log.warning("a segment could not be examined", path=examination.place, reason=str(error))
        finally:
            found = examination.end(done=done)
            self._at = None
            self._free.set()
        if is_suspected and not self._letting_go:  # even where it failed: it would only be read again, and fail again
            self._suspicions.pop((partition, base), None)  # the suspicions that came meanwhile
            self._examined.setdefault(partition_log, {})[base] = self._clock.monotonic()
        if done:
            tell_damage(partition.topic, partition.topic_partition.partition, partition_log, found)
            if found:
                partition.on_damage()
                partition.events.on_damaged(partition.topic_partition)
        if examination.has_rebuilt:
            log.warning("an index did not say what is in its segment; made anew", path=examination.place)

    async def _read(self, examination: Examination, *, is_suspected: bool) -> bool:
        """Read a step at a time; False where it was cut off."""
        try:
            while not await _in_thread(examination.step):
                if not (is_suspected or self._suspicions):
                    await self._pause(examination.bytes_stepped / self._bytes_per_second)
                if self._letting_go:
                    return False
            await _in_thread(examination.conclude)
        finally:
            await _in_thread(examination.close)
        return True

    async def _pause(self, seconds: float) -> None:
        """Pause; less where a suspicion comes."""
        await wait_for_event(self._wake, seconds)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
