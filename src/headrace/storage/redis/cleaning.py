"""Compaction of a log in Redis: another Stream is written without the records that later ones replaced, and takes the
log's place in one call.

Promises: readers go on, and offsets, epochs and producers do not change. Every call names the leader epoch: a leader
that another has followed changes nothing. Nothing of the log changes before the last call, which is sent again until
its outcome is known. `storage.keeping` decides what stays; `storage.log.compaction.cleaning` lists it.

The slow work goes at the cleaner's pace, in pieces of REDIS_APPEND_BYTES_MAX. A process of its own does it
(`cleaning_child`), or a worker thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.base.errors import StorageFailure
from headrace.base.ids import FIRST_OFFSET, LAST_OFFSET, Offset
from headrace.base.limits import (
    COMPACTION_KEYS_MAX,
    REDIS_APPEND_BYTES_MAX,
    REDIS_BACKOFF_MS_MAX,
    REDIS_BACKOFF_MS_MIN,
    REDIS_CARRIED_AT_ONCE,
)
from headrace.storage.decided import Decided
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.engine.faults import Unreachable
from headrace.storage.keeping import Keeping, add_last
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.server_side.functions import (
    Answer,
    Batch,
    Call,
    CleaningTry,
    IndexEntry,
    PartitionFunctions,
    Status,
)
from headrace.wire.batches import BatchHeader, check_batch
from headrace.wire.transactions import AbortedTransaction

if TYPE_CHECKING:
    from headrace.storage.redis.log import RedisLog

NO_LAG_LIMIT: Final = 2**63 - 1
PACE_BYTES: Final = 256 * 1024
"""Bytes between two looks at the clock."""
LOOK_S: Final = 0.05
"""Longest pause between two looks at a stop."""

Entries = Callable[[int, int], Iterator[tuple[int, bytes]]]
"""Batches of the log below an offset, from the one that holds another, with the offset after each. Raises
RedisFailure."""
Run = Callable[[Call], Answer]
"""Calls a function. Raises RedisFailure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """The input of a cleaning."""

    functions: PartitionFunctions
    cleaning: CleaningTry
    start: Offset
    sources: Sequence[IndexEntry]
    """The ranges to clean, from the one that holds the start."""
    dirty_from: Offset
    """Earlier cleanings reached this offset."""
    now_ms: int
    delete_retention_ms: int
    range_bytes: int
    """Neighbouring small ranges are merged, up to this size in bytes."""
    remembered: frozenset[int]
    tombstones_from: int
    keys_max: int
    aborted: Sequence[AbortedTransaction] = ()
    """All aborted transactions with offsets in the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedStream:
    """The result of a cleaning, in place."""

    clean_to: Offset
    written: Offset
    """The end of its batches."""
    removed: int
    """Bytes."""
    index: Sequence[IndexEntry]
    """The time index up to `clean_to`."""
    bare: Sequence[int] = ()
    """Offsets of the abort markers whose transactions have no batch any more."""


class PartLost(RedisFailure):
    """Redis has not all of the other Stream, or that of a later try. The log is as it was."""


Prepare = Callable[[StreamJob, asyncio.Event, float], Awaitable[CleanedStream]]
"""Writes the other Stream, at most at so many bytes per second. Raises RedisFailure, CorruptData, StorageFailure, and
Stopped soon after the event is set."""


def _unpaced(_: int) -> None:
    return


class Work:
    """One cleaning. Its methods block."""

    def __init__(self, job: StreamJob, entries: Entries, run: Run) -> None:
        self._job = job
        self._decided = Decided(job.aborted)
        self._entries = entries
        self._run = run
        self._pace: Callable[[int], None] = _unpaced
        self._last: dict[bytes, int] = {}
        self._waiting: list[Batch] = []
        self._written = FIRST_OFFSET
        self._size = 0
        self._index: list[IndexEntry] = []
        self._begun = 0
        """Where the range that is put together begins, counted like `_kept`."""
        self._newest = -1
        self._removed = self._kept = 0

    def prepare(self, pace: Callable[[int], None]) -> CleanedStream:
        """Write the other Stream. Raises RedisFailure, CorruptData, Stopped, StorageFailure."""
        job, self._pace = self._job, pace
        clean_to = self._read_keys()
        self._keeping = Keeping(
            last=self._last,
            clean_to=clean_to,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
            tombstones_from=job.tombstones_from,
            decided=self._decided,
        )
        self._call(job.functions.clean(job.cleaning, FIRST_OFFSET, []))
        sources = iter(job.sources)
        source = next(sources)
        for header, raw in self._batches(job.start, clean_to):
            while header.base_offset >= source.end:
                self._end_range(source)
                source = next(sources)
            self._take(header, raw)
        self._send()
        while source.end <= clean_to:
            self._end_range(source)
            if (following := next(sources, None)) is None:
                break
            source = following
        index = [entry._replace(position=entry.position + self._removed) for entry in self._index]
        bare = tuple(self._decided.bare)
        return CleanedStream(clean_to=clean_to, written=self._written, removed=self._removed, index=index, bare=bare)

    def _batches(self, start: int, end: int) -> Iterator[tuple[BatchHeader, bytes]]:
        for _, raw in self._entries(start, end):
            self._pace(len(raw))
            header = check_batch(raw, compacted=True)
            if header.base_offset >= end:
                return
            yield header, raw

    def _read_keys(self) -> Offset:
        """Read the keys as far as they fit in memory, and return that offset. The rest is left to the next cleaning."""
        job, last, end = self._job, self._last, self._job.sources[-1].end
        for header, raw in self._batches(job.dirty_from, end):
            if header.last_offset < job.dirty_from or header.is_control or self._decided.is_aborted(header):
                continue
            if last and len(last) + header.count > job.keys_max:
                return Offset(header.base_offset)
            add_last(last, header, raw, self._decided)
        return end

    def _take(self, header: BatchHeader, raw: bytes) -> None:
        kept = self._keeping.left(header, raw, self._job.remembered)
        self._removed += len(raw)
        if kept is None:
            return
        self._removed -= len(kept)
        self._kept += len(kept)
        self._newest = max(self._newest, check_batch(kept, compacted=True).newest_time)
        if self._waiting and self._size + len(kept) > REDIS_APPEND_BYTES_MAX:
            self._send()
        self._waiting.append(Batch(Offset(header.last_offset + 1), kept))
        self._size += len(kept)

    def _send(self) -> None:
        if self._waiting:
            self._call(self._job.functions.clean(self._job.cleaning, self._written, self._waiting))
            self._written = self._waiting[-1].end
            self._pace(self._size)
        self._waiting, self._size = [], 0

    def _end_range(self, source: IndexEntry) -> None:
        """A source is over: its entry of the time index joins the one before where both are small together. Positions
        are as before, less what was removed: what all of the cleaning removes is added once that is known."""
        newest = self._newest if self._newest >= 0 or self._kept == self._begun else source.timestamp
        entry = IndexEntry(source.end, newest, source.position - self._removed)
        if self._index and (self._kept == self._begun or self._together(entry) <= self._job.range_bytes):
            before = self._index.pop()
            entry = entry._replace(timestamp=max(before.timestamp, newest))
        self._index.append(entry)
        self._begun, self._newest = self._kept, -1

    def _together(self, entry: IndexEntry) -> int:
        """Bytes of the last range in the index and this one."""
        before = self._index[-2].position if len(self._index) > 1 else None
        return self._kept if before is None else entry.position - before

    def _call(self, call: Call) -> Answer:
        answer = self._run(call)
        match answer.status:
            case Status.DONE | Status.MORE:
                return answer
            case Status.FENCED | Status.GONE:
                raise Stopped  # another leads it, in a later epoch, which is to be heard of; or it is deleted
            case Status.AT:
                raise PartLost("Redis has lost a part of the compacted log, as in a failover.")
            case _:
                raise StorageFailure(f"Redis answers a {call.function} of a compaction with {answer}.")

    def put_in_place(self, cleaned: CleanedStream, *, stopping: Callable[[], bool]) -> None:
        """Let the other Stream take the log's place. Raises Stopped or PartLost where nothing has changed; RedisFailure
        where it is not known, and nobody waits any more."""
        job, pause_ms = self._job, REDIS_BACKOFF_MS_MIN
        call = job.functions.replace(
            job.cleaning,
            cleaned.written,
            cleaned.clean_to,
            cleaned.removed,
            cleaned.index,
            REDIS_CARRIED_AT_ONCE,
            cleaned.bare,
        )
        is_unknown = False
        while True:
            try:
                if self._call(call).status is Status.DONE:
                    return
            except PartLost:
                raise
            except RedisFailure as error:
                is_unknown = is_unknown or error.is_unknown
                if stopping():
                    if is_unknown:
                        raise
                    raise Stopped from None
                time.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)


class RedisCleaning:
    """A `Cleaning`."""

    is_committed: Final = False

    def __init__(self, owner: RedisLog, job: StreamJob, entries: Entries, run: Run, prepare: Prepare | None) -> None:
        self._owner = owner
        self._job = job
        self._work = Work(job, entries, run)
        self._prepare = self._in_thread if prepare is None else prepare

    async def _in_thread(self, _: StreamJob, stopping: asyncio.Event, bytes_per_second: float) -> CleanedStream:
        pace = pacer(bytes_per_second, stopping.is_set)
        return await asyncio.get_running_loop().run_in_executor(None, self._work.prepare, pace)

    async def carry_out(self, stopping: asyncio.Event, bytes_per_second: float) -> Offset:
        loop, work = asyncio.get_running_loop(), self._work
        try:
            cleaned = await self._prepare(self._job, stopping, bytes_per_second)
        except RedisFailure as error:
            raise self._put_off(error) from error
        try:
            await loop.run_in_executor(None, partial(work.put_in_place, cleaned, stopping=stopping.is_set))
        except PartLost as error:
            raise self._put_off(error) from error
        except RedisFailure as error:
            self._owner.doubt(f"It is not known whether {self._owner.identity.name} was compacted: {error}")
            raise Stopped from error
        self._owner.install(cleaned)
        return cleaned.clean_to

    def _put_off(self, error: RedisFailure) -> Unreachable:
        return Unreachable(f"The log of {self._owner.identity.name} cannot be compacted now: {error}")

    def end(self) -> None:
        self._owner.end_cleaning()


class RedisCleanable:
    """A `Cleanable`."""

    def __init__(self, owner: RedisLog, entries: Entries, run: Run, prepare: Prepare | None) -> None:
        """`prepare`: None: the slow work is done in a worker thread."""
        self._owner = owner
        self._entries = entries
        self._run = run
        self._prepare = prepare

    def dirtiness(self, now_ms: int, up_to: Offset) -> float:
        owner, config = self._owner, self._owner.config
        if owner.failed or owner.is_cleaning or not config.compact:
            return 0.0
        sources = self._sources(now_ms, up_to)
        clean_to = max(owner.gaps_below, owner.log_start_offset)
        sizes = [size for _, size in sources]
        dirty = [(entry, size) for entry, size in sources if size and entry.end > clean_to]
        if not dirty:
            return 0.0
        ratio = sum(size for _, size in dirty) / sum(sizes)
        return ratio if ratio > config.min_cleanable_dirty_ratio or self._is_late(dirty[0][0], now_ms) else 0.0

    def _is_late(self, oldest: IndexEntry, now_ms: int) -> bool:
        """Whether the first record of the first dirty range has waited longer than allowed."""
        lag_ms = self._owner.config.max_compaction_lag_ms
        return lag_ms < NO_LAG_LIMIT and 0 <= self._owner.marked.oldest_ms(oldest) < now_ms - lag_ms

    def _sources(self, now_ms: int, up_to: Offset) -> list[tuple[IndexEntry, int]]:
        """Ranges that are closed, durable, committed, and old enough where a compaction lag is configured, with the
        bytes of each."""
        owner, found = self._owner, list[tuple[IndexEntry, int]]()
        lag_ms = owner.config.min_compaction_lag_ms
        for entry, size in owner.marked.closed():
            is_young = lag_ms > 0 and entry.timestamp > now_ms - lag_ms
            if entry.end > min(up_to, owner.flushed_end) or (is_young and entry.end > owner.gaps_below):
                break
            if entry.end > owner.log_start_offset:
                found.append((entry, size))
        return found

    def begin_cleaning(
        self,
        now_ms: int,
        up_to: Offset,
        remembered: frozenset[int],
        token: str,
        *,
        tombstones_from: Offset = LAST_OFFSET,
    ) -> RedisCleaning | None:
        owner, sources = self._owner, [entry for entry, _ in self._sources(now_ms, up_to)]
        dirty_from = max(owner.gaps_below, owner.log_start_offset)
        if not sources or sources[-1].end <= dirty_from:
            return None
        job = StreamJob(
            functions=PartitionFunctions(owner.keys, owner.identity.topic_id, owner.claimed_epoch),
            cleaning=owner.begin_cleaning(),
            start=owner.log_start_offset,
            sources=sources,
            dirty_from=dirty_from,
            now_ms=now_ms,
            delete_retention_ms=owner.config.delete_retention_ms,
            range_bytes=owner.range_bytes,
            # Else a reader would never reach the log's end.
            remembered=remembered | {owner.log_end_offset - 1, owner.flushed_end - 1},
            tombstones_from=tombstones_from,
            keys_max=COMPACTION_KEYS_MAX,
            aborted=owner.aborted.between(owner.log_start_offset, sources[-1].end),
        )
        return RedisCleaning(owner, job, self._entries, self._run, self._prepare)


def pacer(bytes_per_second: float, is_over: Callable[[], bool]) -> Callable[[int], None]:
    """Return a function that is called with the bytes as they are handled. It waits so that they do not exceed this
    rate, and raises Stopped soon after the work is to end."""
    started, total, looked_at = time.monotonic(), 0, 0

    def pace(size: int) -> None:
        nonlocal total, looked_at
        if is_over():
            raise Stopped
        total += size
        if total - looked_at < PACE_BYTES:
            return
        looked_at = total
        while (ahead := total / bytes_per_second - (time.monotonic() - started)) > 0:
            time.sleep(min(ahead, LOOK_S))
            if is_over():
                raise Stopped

    return pace
