"""Reads some records of a topic: by place, by time, by key, by what they have in them.

Promises:
- It reads a bounded number of records within a bounded time, and keeps a bounded number of bytes, by connections of its
  own. It says where it stopped before it had enough.
- Each record comes with the state of its transaction, as it was when the record was read.
- Records are decoded, where a schema is known, and masked before anything looks at them: a search finds what is shown,
  and nothing else.
- The event loop goes on meanwhile: masks and tests work in a thread, in short turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import CONSOLE_BROWSE_MS_MAX, CONSOLE_KEPT_BYTES_MAX, CONSOLE_SCAN_RECORDS_MAX
from headrace.base.reading import LONG_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer, Fetched
from headrace.net.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.net.client.states import State
from headrace.net.client.view import TopicView
from headrace.operations.masking import NO_MASK, Mask
from headrace.operations.reaching import Reach
from headrace.operations.schemas.records import NOTHING_TOLD, Decoded, Decoding, Told
from headrace.wire.records import Record, readable_name

WAIT_MS: Final = 250
PARTITION_BYTES: Final = 256 * 1024
BYTES: Final = 4 * 1024 * 1024
TURN_BYTES: Final = 64 * 1024
"""Bytes of records that are looked at in one turn of the loop, or of a thread."""
TURN_RECORDS: Final = 32
"""Records likewise: each may become much larger when it is decoded."""
TURN_S: Final = 0.02
"""Time of such a turn, but for its last record."""
TAIL_S: Final = 1.0
"""Longest that the records of one poll are searched while they come. The others are left out."""
WIDER: Final = 4
"""How much further back the newest records are looked for, where the last offsets held too few of them."""
KEPT: Final = 8
"""Pages of records that are kept while one is looked for."""


class At(StrEnum):
    """The beginning of a page of records."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The records that are asked for."""

    partition: int | None
    """None: all."""
    at: At
    offset: int
    time_ms: int
    key: bytes | None
    """Only records with this key."""
    count: int
    ms_max: int = CONSOLE_BROWSE_MS_MAX
    """Longest that it reads."""
    records_max: int = CONSOLE_SCAN_RECORDS_MAX
    """Records that it looks at."""
    has: str = ""
    """Only records with this in their key, value or headers, in small letters or large ones."""
    test: Callable[[Placed], bool] | None = None
    """Only records of which it is true. It is asked in a thread."""
    committed_only: bool = False
    """Only records that readers under read_committed get."""

    @property
    def is_search(self) -> bool:
        """Whether some records are left out."""
        return self.key is not None or bool(self.has) or self.test is not None

    def is_met(self, placed: Placed) -> bool:
        """Whether this record, decoded and masked, is one of them."""
        record = placed.record
        if self.key is not None and record.key != self.key:
            return False
        if self.has and not _has(record, self.has):
            return False
        return self.test is None or self.test(placed)


class Placed(NamedTuple):
    """A record in its partition."""

    partition: int
    record: Record
    raw: Record | None = None
    """Its bytes as they are stored, masked; None: it is not decoded."""
    told: Told = NOTHING_TOLD
    state: State = None
    """The state of its transaction; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some records, in the order in which a page shows them."""

    records: list[Placed]
    looked_at: int
    """Records that were read for them."""
    is_whole: bool
    """False: it stopped before the end of what there is, and before it had as many as were asked for."""
    first: Mapping[int, int]
    end: Mapping[int, int]
    stable: Mapping[int, int]
    """Last stable offsets, where records of the page are there or above, or with `committed_only` any records. Readers
    under read_committed get none of these yet."""


async def read(
    reach: Reach, topic: TopicView, wanted: Wanted, mask: Mask = NO_MASK, decoding: Decoding | None = None
) -> Page:
    """Read them, decoded and masked. Raises UsageError where there is no such partition, HeadraceError."""
    online = [int(part.index) for part in topic.partitions if part.leader >= 0]
    if wanted.partition is not None:
        if wanted.partition >= len(topic.partitions):
            raise UsageError(f"Topic '{topic.name}' has partitions 0 to {len(topic.partitions) - 1}.")
        online = [index for index in online if index == wanted.partition]
    async with reach() as cluster:
        try:
            async with asyncio.timeout(wanted.ms_max / 1000):
                first = await _at(cluster, topic.name, online, EARLIEST)
                end = await _at(cluster, topic.name, online, LATEST, committed_only=wanted.committed_only)
                high = await _at(cluster, topic.name, online, LATEST) if wanted.committed_only else end
                starts = await _starts(cluster, topic.name, wanted, first, end)
        except TimeoutError:
            raise HeadraceError(
                f"The ends of {len(online):,} partitions of topic '{topic.name}' are not known within "
                f"{wanted.ms_max / 1000:.0f} s: ask for one partition, or again."
            ) from None
        search = _Search(wanted, end, mask, decoding)
        try:
            async with asyncio.timeout(wanted.ms_max / 1000):
                await search.run(cluster, topic.name, starts)
                if wanted.at is At.NEWEST and not wanted.is_search:
                    await search.run_back(cluster, topic.name, starts, first)
        except TimeoutError:
            search.is_whole = False
    search.found.sort(key=_order, reverse=wanted.at is At.NEWEST)
    records = search.found[: wanted.count]
    return Page(
        records=records,
        looked_at=search.looked_at,
        is_whole=search.is_whole,
        first=first,
        end=end,
        stable={index: end[index] for index in end if end[index] < high[index]} or search.held(records),
    )


def _has(record: Record, text: str) -> bool:
    wanted = text.casefold()
    for name, value in record.headers:
        if wanted in readable_name(name).casefold() or _is_in(wanted, value):
            return True
    return _is_in(wanted, record.key) or _is_in(wanted, record.value)


def _is_in(wanted: str, data: bytes | None) -> bool:
    return data is not None and wanted in data.decode(errors="replace").casefold()


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _kept(placed: Placed) -> int:
    return _size(placed.record) + (0 if placed.raw is None else _size(placed.raw))


def _turns(placed: Iterable[Placed]) -> Iterator[list[Placed]]:
    """As many as one turn of the loop looks at: a mask, a decoder or a test may look long at one."""
    some: list[Placed] = []
    bytes_ = 0
    for each in placed:
        some.append(each)
        bytes_ += _size(each.record)
        if bytes_ > TURN_BYTES or len(some) == TURN_RECORDS:
            yield some
            some, bytes_ = [], 0
    if some:
        yield some


async def _chosen(
    some: Sequence[Placed], wanted: Wanted, mask: Mask, decoding: Decoding | None, room: int
) -> tuple[list[Placed], int]:
    """The wanted ones of these, decoded and masked, and the number that was looked at. There is room for so many; below
    0: for all of them."""
    if decoding is not None:
        some, mask = await _decoded(some, mask, decoding), NO_MASK
    kept, looked_at = list[Placed](), 0
    while looked_at < len(some) and len(kept) != room:
        if wanted.test is None and not mask:
            await asyncio.sleep(0)
            found, looked_at = _looked(some, looked_at, wanted, mask, room - len(kept))
        else:  # a thread that nobody waits for any more is soon over, and has changed nothing
            found, looked_at = await asyncio.to_thread(_looked, some, looked_at, wanted, mask, room - len(kept))
        kept += found
    return kept, looked_at


def _looked(some: Sequence[Placed], first: int, wanted: Wanted, mask: Mask, room: int) -> tuple[list[Placed], int]:
    """The wanted ones from this one on, masked, and the place where the turn was over."""
    begun, kept = time.monotonic(), list[Placed]()
    for at in range(first, len(some)):
        shown = some[at]._replace(record=mask(some[at].record)) if mask else some[at]
        if wanted.is_met(shown):
            kept.append(shown)
        if len(kept) == room or time.monotonic() - begun > TURN_S:
            return kept, at + 1
    return kept, len(some)


async def _decoded(placed: Sequence[Placed], mask: Mask, decoding: Decoding) -> list[Placed]:
    found = await decoding.read([each.record for each in placed], mask)
    return [_placed(each, one) for each, one in zip(placed, found, strict=True)]


def _placed(placed: Placed, found: Decoded) -> Placed:
    raw = None if found.raw is found.record else found.raw
    return placed._replace(record=found.record, raw=raw, told=found.told)


def _order(placed: Placed) -> tuple[int, int, int]:
    return placed.record.timestamp, placed.partition, placed.record.offset


async def _at(
    cluster: Cluster, topic: str, partitions: list[int], at: int, *, committed_only: bool = False
) -> dict[int, int]:
    found = await list_offsets(cluster, topic, partitions, at, committed_only=committed_only)
    return {int(index): int(each.offset) for index, each in found.items()}


def _consumer(cluster: Cluster, wanted: Wanted) -> Consumer:
    return Consumer(
        cluster,
        wait_ms=WAIT_MS,
        bytes_max=BYTES,
        partition_bytes_max=PARTITION_BYTES,
        committed_only=wanted.committed_only,
        tells_states=True,
    )


def _all_of(fetched: Fetched) -> Iterator[Placed]:
    for record, state in zip(fetched.records, fetched.states, strict=True):
        yield Placed(int(fetched.partition), record, state=state)


async def _starts(
    cluster: Cluster, topic: str, wanted: Wanted, first: Mapping[int, int], end: Mapping[int, int]
) -> dict[int, int]:
    """The first offset to read in each partition."""
    if wanted.at is At.TIME:
        found = await _at(cluster, topic, list(first), wanted.time_ms)
        return {index: end[index] if offset < 0 else offset for index, offset in found.items()}
    if wanted.at is At.OFFSET:
        return {index: min(max(low, wanted.offset), end[index]) for index, low in first.items()}
    if wanted.at is At.NEWEST and not wanted.is_search:
        return {index: max(low, end[index] - wanted.count) for index, low in first.items()}
    if wanted.at is At.NEWEST:
        reach = wanted.records_max // max(1, len(first))
        return {index: max(low, end[index] - reach) for index, low in first.items()}
    return dict(first)


class _Search:
    """Reads until there is enough."""

    def __init__(self, wanted: Wanted, end: Mapping[int, int], mask: Mask, decoding: Decoding | None) -> None:
        self._wanted = wanted
        self._mask = mask
        self._decoding = decoding
        self._end = end
        self._counts: dict[int, int] = {}
        self._stable: dict[int, int] = {}
        self._kept_bytes = 0
        self.found: list[Placed] = []
        self.looked_at = 0
        self.is_whole = True

    async def run(self, cluster: Cluster, topic: str, starts: Mapping[int, int]) -> None:
        async with _consumer(cluster, self._wanted) as consumer:
            for index, start in starts.items():
                if start < self._end[index]:
                    consumer.assign(topic, index, start)
            while consumer.positions:
                for fetched in await consumer.poll():
                    await self._take(fetched)
                for (name, index), position in list(consumer.positions.items()):
                    if position >= self._end[index] or self._has_enough(index):
                        consumer.unassign(name, index)
                is_over = self.looked_at >= self._wanted.records_max or self._kept_bytes > CONSOLE_KEPT_BYTES_MAX
                if is_over and consumer.positions:
                    self.is_whole = False
                    return

    async def run_back(self, cluster: Cluster, topic: str, starts: Mapping[int, int], first: Mapping[int, int]) -> None:
        """The last offsets may have markers, or nothing: read what is before them, until each partition has enough."""
        reach, self._end = self._wanted.count, dict(starts)
        while self.is_whole:
            reach *= WIDER
            few = [index for index, end in self._end.items() if end > first[index] and self._is_short(index)]
            if not few:
                return
            further = {index: max(first[index], self._end[index] - reach) for index in few}
            await self.run(cluster, topic, further)
            self._end |= further

    def _is_short(self, index: int) -> bool:
        return self._counts.get(index, 0) < self._wanted.count

    def held(self, records: Iterable[Placed]) -> dict[int, int]:
        """The last stable offsets of partitions, where one of these records is there or above."""
        some = {each.partition for each in records if each.record.offset >= self._stable.get(each.partition, LONG_MAX)}
        return {index: self._stable[index] for index in sorted(some)}

    async def _take(self, fetched: Fetched) -> None:
        index, wanted = int(fetched.partition), self._wanted
        end = self._end[index]
        self._stable[index] = int(fetched.last_stable_offset)
        for some in _turns(takewhile(lambda each: each.record.offset < end, _all_of(fetched))):
            if self._has_enough(index):
                break
            kept, looked_at = await _chosen(some, wanted, self._mask, self._decoding, self._room(index))
            self.looked_at += looked_at
            self.found += kept
            self._counts[index] = self._counts.get(index, 0) + len(kept)
            self._kept_bytes += sum(map(_kept, kept))
        if len(self.found) > KEPT * wanted.count or self._kept_bytes > CONSOLE_KEPT_BYTES_MAX:
            self.found.sort(key=_order, reverse=wanted.at is At.NEWEST)
            del self.found[wanted.count :]
            self._kept_bytes = sum(map(_kept, self.found))
        await asyncio.sleep(0)

    def _room(self, index: int) -> int:
        """The newest are behind those that were found first."""
        if self._wanted.at is At.NEWEST:
            return -1
        return self._wanted.count - self._counts.get(index, 0)

    def _has_enough(self, index: int) -> bool:
        return self._room(index) == 0


async def tail(
    reach: Reach,
    topic: TopicView,
    wanted: Wanted,
    most: int,
    mask: Mask = NO_MASK,
    decoding: Decoding | None = None,
) -> AsyncIterator[tuple[list[Placed], int]]:
    """The wanted records that come from now on, decoded and masked, at most so many at once. With them comes the number
    of those that were not looked at. Of `wanted` the beginning and the counts do not matter."""
    async with reach() as cluster:
        online = [int(part.index) for part in topic.partitions if part.leader >= 0]
        some = online if wanted.partition is None else [index for index in online if index == wanted.partition]
        async with _consumer(cluster, wanted) as consumer:
            ends = await _at(cluster, topic.name, some, LATEST, committed_only=wanted.committed_only)
            for index, end in ends.items():
                consumer.assign(topic.name, index, end)
            while consumer.positions:
                begun = time.monotonic()
                fetched = [each for each in await consumer.poll() if each.records]
                placed = [one for each in fetched for one in _all_of(each)]
                placed.sort(key=_order, reverse=True)
                kept, looked_at = await _newest(placed, wanted, most, mask, decoding)
                yield kept, len(placed) - looked_at
                await asyncio.sleep(max(0.0, WAIT_MS / 1000 - (time.monotonic() - begun)))


async def _newest(
    placed: Sequence[Placed], wanted: Wanted, most: int, mask: Mask, decoding: Decoding | None = None
) -> tuple[list[Placed], int]:
    """The first of these that are wanted, and the number that was looked at."""
    begun, found, looked_at = time.monotonic(), list[Placed](), 0
    for some in _turns(placed if wanted.is_search else placed[:most]):
        if len(found) == most or time.monotonic() - begun >= TAIL_S:
            break
        kept, number = await _chosen(some, wanted, mask, decoding, most - len(found))
        found += kept
        looked_at += number
    return found, looked_at
