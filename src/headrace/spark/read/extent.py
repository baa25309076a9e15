"""The extent of a read: topics, and one offset range of each partition, resolved against the store and the brokers.

Promises that the ranges are fixed here, once, so that every task reads the records that existed when the read was
planned. A missing range is refused. With ``failOnDataLoss=false`` it is cut to the existing offsets, with a warning.
Imports no Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex, TopicId
from headrace.base.limits import SPARK_CATALOG_TRIES_MAX, SPARK_CATALOGS_AT_ONCE_MAX
from headrace.metadata.segments import PartitionCatalog
from headrace.net.client.offsets import EARLIEST as BROKERS_EARLIEST
from headrace.net.client.offsets import LATEST as BROKERS_LATEST
from headrace.spark.brokers import Brokers
from headrace.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from headrace.spark.read.committed import stable_end
from headrace.storage.tier.following import first_at
from headrace.storage.tier.mirror import MirroredTopic
from headrace.storage.tier.reader import DamagedHistory, Store

log = logging.getLogger(__name__)


class ReadTopic(NamedTuple):
    """A topic to read."""

    name: str
    id: TopicId
    partitions: tuple[int, ...]
    """The partitions to read."""
    mirrored: MirroredTopic | None
    """The topic's document in the store; None where the store has none."""


class Extent(NamedTuple):
    """The existing offsets of one partition; the ends are exclusive."""

    start: int
    end: int
    stable: int
    """The last stable offset, with ``isolation=read_committed``; else the end."""


class PartitionRange(NamedTuple):
    """The offsets to read of one partition; the end is exclusive."""

    topic: ReadTopic
    partition: int
    start: int
    end: int
    catalog: PartitionCatalog | None
    """None where the partition has no durable history."""
    first: int
    """The first existing offset, which is never above `start`."""


class DataLoss(UsageError):  # noqa: N818 - a state of the data
    """Requested or planned offsets no longer exist. All values are in args, so that it survives pickling."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        super().__init__(topic, partition, start, end, reason)

    def __str__(self) -> str:
        topic, partition, start, end, reason = self.args
        return (
            f"Offsets {start} to {end} (end exclusive) of topic '{topic}', partition {partition} are gone: "
            f"{reason.rstrip('.')}. Read from where there is something, or with failOnDataLoss=false to go on without."
        )


class Sources:
    """The store and the brokers of one read, and cached answers of theirs. For one thread."""

    def __init__(self, options: ReadOptions, *, store: Store | None = None, brokers: Brokers | None = None) -> None:
        self.options = options
        self.store = store if store is not None or options.store is None else Store.open(options.store)
        self.brokers = (
            brokers
            if brokers is not None or options.bootstrap is None
            else Brokers(options.bootstrap, options.security)
        )
        self._mirrored: dict[TopicId, MirroredTopic] = {}
        self._stable: dict[tuple[TopicId, int], tuple[str, int]] = {}
        """The last stable offsets in the store, each with the head of the catalog that it was read by."""

    def close(self) -> None:
        """Idempotent."""
        if self.brokers is not None:
            self.brokers.close()

    # topics

    def topics(self) -> list[ReadTopic]:
        """The topics that the options select, each once, by name or id. Raises UsageError, ClientError, CorruptData."""
        found = self._from_brokers(self.brokers) if self.brokers is not None else self._from_store()
        if not found:
            raise UsageError(f"No topic's name matches '{self.options.selection.pattern}': see option topicPattern.")
        found = list({topic.id: topic for topic in found}.values())
        self._check_named(found)
        return found

    def _from_brokers(self, brokers: Brokers) -> list[ReadTopic]:
        selection = self.options.selection
        if selection.pattern is not None:
            views = brokers.topics(selection.pattern)
        else:
            views = [brokers.topic(name) for name in selection.assigned or selection.topics]
        return [
            self._selected(view.name, view.id, len(view.partitions), self._mirrored_topic(view.id)) for view in views
        ]

    def _mirrored_topic(self, topic_id: TopicId) -> MirroredTopic | None:
        """The topic's document in the store, requested until the store has one."""
        if self.store is None:
            return None
        if topic_id not in self._mirrored and (found := self.store.topic_of(topic_id)) is not None:
            self._mirrored[topic_id] = found
        return self._mirrored.get(topic_id)

    def _from_store(self) -> list[ReadTopic]:
        selection = self.options.selection
        assert self.store is not None, "the options name a store or brokers"
        if selection.pattern is not None:
            there = [topic for topic in self.store.topics() if re.fullmatch(selection.pattern, topic.name)]
            if len({topic.name for topic in there}) < len(there):
                there = [self.store.topic(name) for name in sorted({topic.name for topic in there})]
        else:
            there = [self.store.topic(name) for name in selection.assigned or selection.topics]
        return [self._selected(topic.name, topic.topic_id, topic.partitions, topic) for topic in there]

    def _selected(self, name: str, topic_id: TopicId, count: int, mirrored: MirroredTopic | None) -> ReadTopic:
        assigned = self.options.selection.assigned
        if assigned is None:
            return ReadTopic(name, topic_id, tuple(range(count)), mirrored)
        wanted = tuple(sorted({*assigned.get(name, ()), *assigned.get(str(topic_id), ())}))
        _check_partitions(name, wanted, count)
        return ReadTopic(name, topic_id, wanted, mirrored)

    def _check_named(self, topics: Sequence[ReadTopic]) -> None:
        """Check that every partition named in offsets is read. Raises UsageError."""
        known = {name: topic for topic in topics for name in (topic.name, str(topic.id))}
        for option, bound in (("startingOffsets", self.options.starting), ("endingOffsets", self.options.ending)):
            for name, offsets in bound.offsets.items():
                if name not in known:
                    other = self.options.selection.option
                    raise UsageError(f"Option {option} names topic '{name}', which option {other} does not.")
                if unread := set(offsets) - set(known[name].partitions):
                    _check_partitions(name, unread, len(known[name].partitions))

    # offsets

    def catalogs(self, topic: ReadTopic) -> dict[int, PartitionCatalog | None]:
        """Catalogs of the topic's partitions. Raises DamagedHistory."""
        if self.store is None or topic.mirrored is None:
            return dict.fromkeys(topic.partitions)
        with ThreadPoolExecutor(SPARK_CATALOGS_AT_ONCE_MAX) as pool:
            found = pool.map(lambda partition: self.catalog(topic, partition), topic.partitions)
            return dict(zip(topic.partitions, found, strict=True))

    def catalog(self, topic: ReadTopic, partition: int) -> PartitionCatalog | None:
        """One partition's catalog; None where it has no durable history. Raises DamagedHistory."""
        if self.store is None or topic.mirrored is None:
            return None
        catalog = steady_catalog(self.store, topic.mirrored, partition)
        return catalog if catalog.end_offset >= 0 else None

    def extents(self, topic: ReadTopic, catalogs: Mapping[int, PartitionCatalog | None]) -> dict[int, Extent]:
        """The existing offsets of each partition. Raises ClientError."""
        if self.brokers is None:
            return {
                partition: self._durable_extent(topic, partition, catalog) for partition, catalog in catalogs.items()
            }
        starts = self.brokers.offsets(topic.name, catalogs, BROKERS_EARLIEST)
        ends = self.brokers.offsets(topic.name, catalogs, BROKERS_LATEST)
        stable = ends
        if self.options.committed_only:
            stable = self.brokers.offsets(topic.name, catalogs, BROKERS_LATEST, committed_only=True)
        return {
            partition: _extent(*(found[PartitionIndex(partition)].offset for found in (starts, ends, stable)))
            for partition in catalogs
        }

    def _durable_extent(self, topic: ReadTopic, partition: int, catalog: PartitionCatalog | None) -> Extent:
        if catalog is None:
            return Extent(0, 0, 0)
        stable = int(catalog.next_offset)
        if self.options.committed_only and self.store is not None:
            head, known = self._stable.get((topic.id, partition), ("", 0))
            try:
                stable = known if head == catalog.head else stable_end(self.store, topic.name, partition, catalog)
                self._stable[topic.id, partition] = catalog.head, stable
            except DamagedHistory:  # the tasks will report it
                pass
        return Extent(catalog.readable_start, catalog.next_offset, max(stable, catalog.readable_start))

    def resolved(
        self,
        topic: ReadTopic,
        bound: Bound,
        extents: Mapping[int, Extent],
        catalogs: Mapping[int, PartitionCatalog | None],
    ) -> dict[int, int]:
        """The offset that a bound stands for in each partition. Named offsets are taken as they are."""
        if bound.timestamp_ms is not None:
            return self._at_time(topic, bound.timestamp_ms, extents, catalogs)
        named = {**bound.offsets.get(str(topic.id), {}), **bound.offsets.get(topic.name, {})}
        found = {}
        for partition, extent in extents.items():
            offset = named.get(partition, bound.rest)
            found[partition] = extent.start if offset == EARLIEST else extent.stable if offset == LATEST else offset
        return found

    def _at_time(
        self,
        topic: ReadTopic,
        timestamp_ms: int,
        extents: Mapping[int, Extent],
        catalogs: Mapping[int, PartitionCatalog | None],
    ) -> dict[int, int]:
        """The first offset whose record is at or after the timestamp; the end where there is none."""
        found: dict[int, int | None] = {}
        if self.brokers is not None:
            if timestamp_ms < 0:  # brokers give negative timestamps other meanings
                return {partition: extent.start for partition, extent in extents.items()}
            answers = self.brokers.offsets(topic.name, extents, timestamp_ms)
            found = {int(partition): answer.offset for partition, answer in answers.items() if answer.offset >= 0}
        elif self.store is not None:
            for partition, catalog in catalogs.items():
                if catalog is not None:
                    found[partition] = first_at(self.store, topic.name, partition, catalog, timestamp_ms)
        offsets = {}
        for partition, extent in extents.items():
            offset = found.get(partition)
            offsets[partition] = extent.stable if offset is None else min(offset, extent.stable)  # more may have come
        return offsets

    def ranges(self) -> list[PartitionRange]:
        """The offset vector of a batch read. Partitions in which nothing is read are left out."""
        return [each for each in self.vector() if each.start < each.end]

    def vector(self) -> list[PartitionRange]:
        """As `ranges`, for all partitions."""
        found = []
        for topic in self.topics():
            catalogs = self.catalogs(topic)
            extents = self.extents(topic, catalogs)
            starts = self.resolved(topic, self.options.starting, extents, catalogs)
            ends = self.resolved(topic, self.options.ending, extents, catalogs)
            for partition, extent in extents.items():
                start, end = self.there(topic, partition, starts[partition], ends[partition], extent)
                end = max(start, self._decided(topic, partition, end, extent))
                found.append(PartitionRange(topic, partition, start, end, catalogs[partition], extent.start))
        return found

    def _decided(self, topic: ReadTopic, partition: int, end: int, extent: Extent) -> int:
        """The end of a batch read: nothing is read of transactions that are open, or behind them."""
        if end > extent.stable:
            log.warning(
                "Topic '%s', partition %d is read to its last stable offset, %d: a transaction is open there.",
                topic.name,
                partition,
                extent.stable,
            )
        return min(end, extent.stable)

    def there(self, topic: ReadTopic, partition: int, start: int, end: int, extent: Extent) -> tuple[int, int]:
        """The range, where all of it exists. Otherwise raises DataLoss, or with ``failOnDataLoss=false`` cuts it."""
        by_time = self.options.starting.timestamp_ms is not None or self.options.ending.timestamp_ms is not None
        if by_time and end < start:
            return start, start
        if extent.start <= start <= end <= extent.end:
            return start, end
        if start > end:
            raise UsageError(
                f"Offsets {start} to {end} of topic '{topic.name}', partition {partition} were asked for, which is no "
                f"range; {extent.start} to {extent.end} (end exclusive) are there."
            )
        reason = f"offsets {extent.start} to {extent.end} (end exclusive) are there"
        loss = DataLoss(topic.name, partition, start, end, reason)
        if self.options.fail_on_loss:
            raise loss
        log.warning("%s", loss)
        return max(start, extent.start), min(end, extent.end)


def steady_catalog(store: Store, topic: MirroredTopic, partition: int) -> PartitionCatalog:
    """Read the catalog, again where a deletion under way looks like damage. Raises DamagedHistory."""
    for _ in range(SPARK_CATALOG_TRIES_MAX - 1):
        try:
            return store.catalog(topic, PartitionIndex(partition))
        except DamagedHistory:
            continue
    return store.catalog(topic, PartitionIndex(partition))


def _extent(start: int, end: int, stable: int) -> Extent:
    """`stable` was asked for later, and may be above the end."""
    return Extent(start, max(end, stable), stable)


def begun_at(topic: ReadTopic, partition: int, catalog: PartitionCatalog | None) -> int:
    """The first offset of the partition's durable history. It may be above 0, where retention had cut the log before. 0
    where it is no longer known, because the very first segment is gone.
    """
    first = None if catalog is None else catalog.entries.get(catalog.start_offset)
    before_all = PartitionCatalog.empty(topic.id, PartitionIndex(partition)).head
    return int(first.descriptor.start_offset) if first is not None and first.previous_hash == before_all else 0


def _check_partitions(topic: str, wanted: Iterable[int], count: int) -> None:
    if beyond := [partition for partition in wanted if partition >= count]:
        raise UsageError(f"Topic '{topic}' has {count} partitions, so there is no {min(beyond)}.")
