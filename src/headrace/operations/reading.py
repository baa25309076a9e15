"""Reads some records of a topic: by place, by time, by key, by what they have in them.

Promises:
- It reads a bounded number of records within a bounded time, and keeps a bounded number of bytes, by connections of its
  own. It says where it stopped before it had enough.
- Records are decoded, where a schema is known, and masked before anything looks at them: a search finds what is shown,
  and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import CONSOLE_BROWSE_MS_MAX, CONSOLE_KEPT_BYTES_MAX, CONSOLE_SCAN_RECORDS_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer, Fetched
from headrace.net.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.net.client.view import TopicView
from headrace.operations.masking import NO_MASK, Mask
from headrace.operations.reaching import Reach
from headrace.operations.schemas.records import NOTHING_TOLD, Decoded, Decoding, Told
from headrace.wire.records import Record, readable_name

WAIT_MS: Final = 250
PARTITION_BYTES: Final = 256 * 1024
BYTES: Final = 4 * 1024 * 1024
TURN_BYTES: Final = 64 * 1024
"""Bytes of records that are looked at in one turn of the loop."""
TURN_RECORDS: Final = 32
"""Records likewise: each may become much larger when it is decoded."""
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
    test: Callable[[int, Record], bool] | None = None
    """Only records, with their partitions, of which it is true."""

    @property
    def is_search(self) -> bool:
        """Whether some records are left out."""
        return self.key is not None or bool(self.has) or self.test is not None

    def is_met(self, partition: int, record: Record) -> bool:
        """Whether this record, masked, is one of them."""
        if self.key is not None and record.key != self.key:
            return False
        if self.has and not _has(record, self.has):
            return False
        return self.test is None or self.test(partition, record)


class Placed(NamedTuple):
    """A record in its partition."""

    partition: int
    record: Record
    raw: Record | None = None
    """Its bytes as they are stored, masked; None: it is not decoded."""
    told: Told = NOTHING_TOLD


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
                end = await _at(cluster, topic.name, online, LATEST)
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
        except TimeoutError:
            search.is_whole = False
    search.found.sort(key=_order, reverse=wanted.at is At.NEWEST)
    return Page(
        records=search.found[: wanted.count],
        looked_at=search.looked_at,
        is_whole=search.is_whole,
        first=first,
        end=end,
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


def _turns(records: Sequence[Record]) -> Iterator[list[Record]]:
    """As many as one turn of the loop looks at: a mask, a decoder or a test may look long at one."""
    some: list[Record] = []
    bytes_ = 0
    for record in records:
        some.append(record)
        bytes_ += _size(record)
        if bytes_ > TURN_BYTES or len(some) == TURN_RECORDS:
            yield some
            some, bytes_ = [], 0
    if some:
        yield some


def _placed(partition: int, found: Decoded) -> Placed:
    return Placed(partition, found.record, None if found.raw is found.record else found.raw, found.told)


def _masked(placed: Sequence[Placed], mask: Mask) -> list[Placed]:
    return [Placed(each.partition, mask(each.record)) for each in placed]


async def _decoded(placed: Sequence[Placed], mask: Mask, decoding: Decoding) -> list[Placed]:
    found = await decoding.read([each.record for each in placed], mask)
    return [_placed(each.partition, one) for each, one in zip(placed, found, strict=True)]


def _order(placed: Placed) -> tuple[int, int, int]:
    return placed.record.timestamp, placed.partition, placed.record.offset


async def _at(cluster: Cluster, topic: str, partitions: list[int], at: int) -> dict[int, int]:
    return {
        int(index): int(found.offset) for index, found in (await list_offsets(cluster, topic, partitions, at)).items()
    }


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
        self._kept_bytes = 0
        self.found: list[Placed] = []
        self.looked_at = 0
        self.is_whole = True

    async def run(self, cluster: Cluster, topic: str, starts: Mapping[int, int]) -> None:
        async with Consumer(cluster, wait_ms=WAIT_MS, bytes_max=BYTES, partition_bytes_max=PARTITION_BYTES) as consumer:
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

    async def _take(self, fetched: Fetched) -> None:
        index, wanted = int(fetched.partition), self._wanted
        for some in _turns([record for record in fetched.records if record.offset < self._end[index]]):
            if self._has_enough(index):
                break
            for found in await self._shown(some):
                if self._has_enough(index):
                    break
                self.looked_at += 1
                if wanted.is_met(index, found.record):
                    self._counts[index] = self._counts.get(index, 0) + 1
                    self.found.append(_placed(index, found))
                    self._kept_bytes += _kept(self.found[-1])
            await asyncio.sleep(0)
        if len(self.found) > KEPT * wanted.count or self._kept_bytes > CONSOLE_KEPT_BYTES_MAX:
            self.found.sort(key=_order, reverse=wanted.at is At.NEWEST)
            del self.found[wanted.count :]
            self._kept_bytes = sum(map(_kept, self.found))
        await asyncio.sleep(0)

    async def _shown(self, records: Sequence[Record]) -> Sequence[Decoded]:
        if self._decoding is not None:
            return await self._decoding.read(records, self._mask)
        return [Decoded(shown, shown) for shown in map(self._mask, records)]

    def _has_enough(self, index: int) -> bool:
        """The newest with a key are behind those that were found first."""
        if self._wanted.at is At.NEWEST:
            return False
        return self._counts.get(index, 0) >= self._wanted.count


async def tail(
    reach: Reach,
    topic: TopicView,
    partition: int | None,
    most: int,
    mask: Mask = NO_MASK,
    decoding: Decoding | None = None,
) -> AsyncIterator[tuple[list[Placed], int]]:
    """The records that come from now on, decoded and masked, at most so many at once, and the number of the others."""
    async with reach() as cluster:
        online = [int(part.index) for part in topic.partitions if part.leader >= 0]
        some = online if partition is None else [index for index in online if index == partition]
        async with Consumer(cluster, wait_ms=WAIT_MS, bytes_max=BYTES, partition_bytes_max=PARTITION_BYTES) as consumer:
            for index, end in (await _at(cluster, topic.name, some, LATEST)).items():
                consumer.assign(topic.name, index, end)
            while consumer.positions:
                begun = time.monotonic()
                fetched = [each for each in await consumer.poll() if each.records]
                placed = [Placed(int(each.partition), record) for each in fetched for record in each.records]
                placed.sort(key=_order, reverse=True)
                if decoding is None:
                    shown = await asyncio.to_thread(_masked, placed[:most], mask)
                else:
                    shown = await _decoded(placed[:most], mask, decoding)
                yield shown, max(0, len(placed) - most)
                await asyncio.sleep(max(0.0, WAIT_MS / 1000 - (time.monotonic() - begun)))
