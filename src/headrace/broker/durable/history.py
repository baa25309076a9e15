"""Durable history, as this broker's clients read it: blocks of durable segments, in memory for a while.

Promises:
- Nothing is read on the event loop, and nothing there waits for the store.
- A block is read once for all its readers, by a few threads that do nothing else.
- Every block was verified before it is given out (`storage.tier.blocks`).
- Memory is bounded by `durable.cache.bytes`, and by the reads under way.
- A failure of the store is logged once, and the store is asked again after a pause.

Loop-only, but for the reads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

from headrace.base.errors import CorruptData, HeadraceError, StorageFailure
from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset, TopicPartition
from headrace.base.limits import (
    HISTORY_FAILURES_REMEMBERED_MAX,
    HISTORY_READ_AHEAD_BLOCKS,
    HISTORY_READS_AT_ONCE_MAX,
    HISTORY_READS_WAITING_MAX,
    HISTORY_RETRY_MS,
)
from headrace.base.ports import Clock, Objects
from headrace.broker.kit.store_threads import StoreThreads
from headrace.logs import get_logger
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.engine.reading import EpochEnd, FoundOffset
from headrace.storage.tier.blocks import (
    Block,
    Plan,
    epoch_at,
    first_at_or_after,
    highest_from,
    read_block,
    read_plan,
    told_later,
)

log = get_logger(__name__)

T = TypeVar("T")
Name: TypeAlias = tuple[str, int]
"""A block: its object's key, and its number there."""
FIRST_LOOK: Final = -1
"""Stands for a number: the segment's footer, with the block that is wanted first."""


class HistoryUnavailable(StorageFailure):
    """Durable history cannot be read now, or is damaged."""


class Loaded(NamedTuple):
    plan: Plan
    number: int
    block: Block


Loading: TypeAlias = asyncio.Future[Loaded]


class Cache:
    """The blocks and plans that were read last, up to `bytes_max`; at least one, of any size."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Name, tuple[Plan | Block, int]] = OrderedDict()
        self.size = 0
        """Bytes."""

    def get(self, name: Name) -> Plan | Block | None:
        found = self._kept.get(name)
        if found is None:
            return None
        self._kept.move_to_end(name)
        return found[0]

    def put(self, name: Name, thing: Plan | Block, size: int) -> None:
        if (known := self._kept.pop(name, None)) is not None:
            self.size -= known[1]
        self._kept[name] = (thing, size)
        self.size += size
        while self.size > self._bytes_max and len(self._kept) > 1:
            _, (_, gone) = self._kept.popitem(last=False)
            self.size -= gone


class History:
    """One per broker that has a durable store."""

    def __init__(self, objects: Objects, *, cache_bytes: int, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._cache = Cache(cache_bytes)
        self._flights: dict[Name, Loading] = {}
        self._failures: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """By object: the reason, and when it may be asked again, in monotonic seconds. The exception itself is not
        kept: raised for reader after reader, it would hold the frames of all of them."""
        self._told: set[str] = set()
        """Objects whose damage was logged, while it lasts."""
        self._is_out = False
        """The store has failed, and was not read since."""
        self._threads = StoreThreads(HISTORY_READS_AT_ONCE_MAX, "history")

    def stop(self) -> None:
        """Read nothing more. Reads under way are not waited for."""
        self._threads.stop()

    @property
    def cached_bytes(self) -> int:
        return self._cache.size

    # blocks

    def find(self, key: TopicPartition, catalog: PartitionCatalog, offset: int) -> Block | Loading | None:
        """Return the block that holds `offset`, where it is in memory; else its read, which goes on whoever waits.
        None: too many reads wait. Raises HistoryUnavailable."""
        segment = _holding(catalog, offset)
        plan = self._plan(segment)
        number = FIRST_LOOK if plan is None else plan.block_of(offset)
        block = None if plan is None else self._cache.get((segment.key, number))
        if plan is not None and isinstance(block, Block) and not _is_outdated(block, catalog):
            self._read_ahead(key, catalog, plan, number)
            return block
        self._check_failures(segment.key)
        return self._load(catalog, segment, plan, number, offset)

    def _plan(self, segment: SegmentDescriptor) -> Plan | None:
        found = self._cache.get((segment.key, FIRST_LOOK))
        return found if isinstance(found, Plan) else None

    def _load(
        self, catalog: PartitionCatalog, segment: SegmentDescriptor, plan: Plan | None, number: int, offset: int
    ) -> Loading | None:
        name = (segment.key, number)
        if (flight := self._flights.get(name)) is not None:
            return flight
        if len(self._flights) >= HISTORY_READS_WAITING_MAX:
            return None
        work = partial(_load, self._objects, catalog, segment, plan, offset)
        flight = self._flights[name] = self._threads.run(work)
        flight.add_done_callback(partial(self._on_loaded, name))
        return flight

    def _on_loaded(self, name: Name, flight: Loading) -> None:
        """Note a finished read, before its waiters hear of it."""
        del self._flights[name]
        if flight.cancelled():
            return
        if (error := flight.exception()) is not None:
            self._on_failure(name[0], error)
            return
        self._on_success(name[0])
        plan, number, block = flight.result()
        if name[1] == FIRST_LOOK:
            self._cache.put(name, plan, _size_of(plan))
        self._cache.put((name[0], number), block, len(block.data) + len(block.aborted) * _ABORTED_BYTES)

    def _read_ahead(self, key: TopicPartition, catalog: PartitionCatalog, plan: Plan, number: int) -> None:
        """Read the next blocks. One thread is left for reads that clients wait for."""
        segment = plan.segment
        for _ in range(HISTORY_READ_AHEAD_BLOCKS):
            number += 1
            if number == len(plan.starts):
                following = catalog.entries.get(segment.next_offset)
                if following is None:
                    return
                segment = following.descriptor
                known, number = self._plan(segment), 0
                if known is None:
                    number = FIRST_LOOK
                else:
                    plan = known
            is_idle = len(self._flights) < HISTORY_READS_AT_ONCE_MAX - 1
            if self._cache.get((segment.key, number)) is None and is_idle and segment.key not in self._failures:
                if number == FIRST_LOOK:
                    self._load(catalog, segment, None, number, segment.start_offset)
                else:
                    self._load(catalog, segment, plan, number, plan.footer.index[plan.starts[number]].base_offset)
            if number == FIRST_LOOK:
                return

    # failures

    def _check_failures(self, key: str) -> None:
        known = self._failures.get(key)
        if known is not None and self._clock.monotonic() < known[1]:
            raise HistoryUnavailable(known[0])

    def _on_failure(self, key: str, error: BaseException) -> None:
        is_damage = isinstance(error, (CorruptData, EOFError, FileNotFoundError))
        if not is_damage and not isinstance(error, (HeadraceError, OSError)):
            log.error("durable history cannot be read: a mistake of ours", object=key, exc_info=error)
        elif is_damage and key not in self._told:
            if len(self._told) >= HISTORY_FAILURES_REMEMBERED_MAX:
                self._told.clear()
            self._told.add(key)
            log.error(
                "durable history is damaged: fetches of it are answered with KAFKA_STORAGE_ERROR, all else is served; "
                "put back a sound copy of the object, or let consumers seek behind it",
                object=key,
                reason=str(error),
            )
        elif not is_damage and not self._is_out:
            self._is_out = True
            log.error(
                "durable history cannot be read, and is asked for again: see that the store (durable.url) can be "
                "reached; what is on this broker is served meanwhile",
                object=key,
                reason=str(error),
            )
        reason = f"Object '{key}' of durable history cannot be read: {error}"
        self._failures.pop(key, None)
        self._failures[key] = (reason, self._clock.monotonic() + HISTORY_RETRY_MS / 1000)
        if len(self._failures) > HISTORY_FAILURES_REMEMBERED_MAX:
            self._failures.popitem(last=False)

    def _on_success(self, key: str) -> None:
        self._failures.pop(key, None)
        self._told.discard(key)
        if self._is_out:
            self._is_out = False
            log.info("durable history can be read again")

    async def check_stored(self, segment: SegmentDescriptor) -> None:
        """Ask the store itself whether it has the segment. Raises HeadraceError, OSError."""
        await self._threads.run(partial(self._objects.size, segment.key))

    # Questions about a whole history. All raise HistoryUnavailable.

    async def epoch_at(self, key: TopicPartition, catalog: PartitionCatalog, offset: Offset) -> LeaderEpoch:
        """Return the leader epoch of the batch that holds `offset`."""
        plan = await self._plan_of(_holding(catalog, offset))
        return epoch_at(plan.footer, offset)

    async def end_of_epoch(self, catalog: PartitionCatalog, epoch: LeaderEpoch, local_start: Offset) -> EpochEnd:
        """Return the largest epoch not above `epoch`, and where it ended. `epoch` is older than all in the log, which
        begins at `local_start`. Where history has no epoch so old, it is said to have ended where history begins, as on
        Kafka."""
        count = catalog.entries.count(0, local_start - 1)
        low, high = 0, count
        while low < high:  # the first segment that holds a later epoch
            middle = (low + high) // 2
            plan = await self._plan_of(catalog.entries.at(middle).descriptor)
            if plan.footer.leader_epochs[-1].leader_epoch > epoch:
                high = middle
            else:
                low = middle + 1
        found, end = NO_EPOCH, local_start
        if low > 0:
            before = await self._plan_of(catalog.entries.at(low - 1).descriptor)
            found = LeaderEpoch(before.footer.leader_epochs[-1].leader_epoch)
        if low < count:
            plan = await self._plan_of(catalog.entries.at(low).descriptor)
            for begun, start in plan.footer.leader_epochs:
                if begun > epoch:
                    end = Offset(start)
                    break
                found = LeaderEpoch(begun)
        end = max(min(end, local_start), catalog.readable_start)
        return EpochEnd(epoch if found == NO_EPOCH else found, end)

    async def first_at_or_after(
        self, catalog: PartitionCatalog, timestamp: int, local_start: Offset
    ) -> FoundOffset | None:
        """Return the first record below `local_start` whose time is at least `timestamp`."""
        start = catalog.readable_start
        for begin, last_ms in catalog.entries.times():
            if begin >= local_start:
                break
            if last_ms >= timestamp:
                segment = catalog.entries[Offset(begin)].descriptor
                plan = await self._plan_of(segment)
                found = await self._read(segment.key, partial(first_at_or_after, self._objects, plan, timestamp, start))
                if found is not None:
                    return found if found.offset < local_start else None
        return None

    async def highest(self, catalog: PartitionCatalog, local_start: Offset) -> FoundOffset | None:
        """Return the first record below `local_start` with the highest time there; None where no record has a time."""
        start, top, where = catalog.readable_start, -1, None
        for begin, highest in catalog.entries.times():
            if begin >= local_start:
                break
            if begin < start:
                segment = catalog.entries[Offset(begin)].descriptor
                plan = await self._plan_of(segment)
                highest = await self._read(segment.key, partial(highest_from, self._objects, plan, start))
            if highest > top:
                top, where = highest, begin
        if where is None:
            return None
        segment = catalog.entries[Offset(where)].descriptor
        plan = await self._plan_of(segment)
        found = await self._read(segment.key, partial(first_at_or_after, self._objects, plan, top, start))
        return None if found is None or found.offset >= local_start else found

    async def _plan_of(self, segment: SegmentDescriptor) -> Plan:
        if (plan := self._plan(segment)) is not None:
            return plan
        plan = await self._read(segment.key, partial(read_plan, self._objects, segment))
        self._cache.put((segment.key, FIRST_LOOK), plan, _size_of(plan))
        return plan

    async def _read(self, key: str, work: Callable[[], T]) -> T:
        self._check_failures(key)
        try:
            found = await self._threads.run(work)
        except (HeadraceError, OSError, EOFError) as error:
            self._on_failure(key, error)
            raise HistoryUnavailable(self._failures[key][0]) from error
        self._on_success(key)
        return found


_INDEX_ENTRY_BYTES: Final = 256
"""The approximate size of an index entry in memory."""
_ABORTED_BYTES: Final = 256
"""The approximate size of an aborted transaction in memory."""


def _size_of(plan: Plan) -> int:
    footer = plan.footer
    return len(footer.index) * _INDEX_ENTRY_BYTES + len(footer.aborted_transactions) * _ABORTED_BYTES


def _is_outdated(block: Block, catalog: PartitionCatalog) -> bool:
    """Whether later segments, which have come since it was read, may tell of aborted transactions in it."""
    return block.told_to < catalog.next_offset


def _load(
    objects: Objects, catalog: PartitionCatalog, segment: SegmentDescriptor, plan: Plan | None, offset: int
) -> Loaded:
    """Read the block at `offset`. Runs in a worker thread."""
    plan = plan or read_plan(objects, segment)
    number = plan.block_of(offset)
    later = (entry.descriptor for entry in catalog.reaching(segment.next_offset))
    return Loaded(plan, number, told_later(objects, plan, read_block(objects, plan, number), later))


def _holding(catalog: PartitionCatalog, offset: int) -> SegmentDescriptor:
    found = catalog.entries.holding(offset)
    assert found is not None, "a catalog has no gap"
    return found.descriptor
