"""A stream's offsets: where it starts, how far each micro-batch goes, and the tasks between two offsets.

Promises:

- Offsets never go back, except in a topic made again under its name, with ``failOnDataLoss=false``.
- Limits are kept, exactly in records and approximately in bytes, though each batch makes progress.
- Offsets of a checkpoint that are gone, or belong to another topic of that name, raise DataLoss.
- With ``isolation=read_committed`` no offset is above the last stable one.
- Offsets before everything that a store ever had are no loss to a stream that began when the store was empty.

A new partition is read from its start. Imports no Spark.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import uuid4

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex, TopicId
from headrace.metadata.segments import PartitionCatalog
from headrace.spark.options import ReadOptions
from headrace.spark.read.extent import DataLoss, Extent, PartitionRange, ReadTopic, Sources, begun_at
from headrace.spark.read.plan import Task, bytes_of, cut_off, hot_sizes, plan_tasks
from headrace.spark.read.positions import Positions, StreamOffsets, TopicOffsets, formatted, is_same, merged, parsed
from headrace.storage.tier.following import followed

log = logging.getLogger(__name__)
NO_MORE: Final = "the topic or partition does not exist any more"


class Limits(NamedTuple):
    """Limits of one micro-batch; None: no limit."""

    records: int | None = None
    bytes: int | None = None


class Follower:
    """The driver's side of one stream. Not thread-safe."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._stream = str(uuid4())
        """Identifies one run of the stream: its memory of repeats is not used by others."""
        self.sources = Sources(options)
        self._catalogs: dict[tuple[TopicId, int], PartitionCatalog] = {}
        self._target: Positions | None = None
        self._initial: Positions | None = None

    def close(self) -> None:
        self.sources.close()

    def initial(self) -> StreamOffsets:
        """The offsets where a stream without a checkpoint starts."""
        found = {}
        for topic in self._topics():
            catalogs = self._topic_catalogs(topic)
            extents = self.sources.extents(topic, catalogs)
            starts = self.sources.resolved(topic, self._options.starting, extents, catalogs)
            for partition, start in starts.items():
                if not extents[partition].start <= start <= extents[partition].end:
                    starts[partition] = self._where_there_is_something(topic.name, partition, start, extents[partition])
            found[topic.name] = TopicOffsets(str(topic.id), starts, {})
        self._initial = found
        return formatted(found)

    def stop_at_what_is_there(self) -> None:
        """For the trigger available-now: later records are not read."""
        self._target = self._there()

    def newest(self) -> StreamOffsets:
        """The end of all existing records."""
        return formatted({name: topic._replace(begun={}) for name, topic in self._there().items()})

    def latest(self, start: StreamOffsets, limits: Limits) -> StreamOffsets:
        """The end of a batch that begins at `start`. Raises DataLoss."""
        begins = parsed(start)
        there = self._there() if self._target is None else self._target
        if _ends_before(there, begins):
            self._check_there(begins, self._there(undecided=True))
        ends = merged(begins, there, first=begins == self._initial)
        if is_same(begins, ends):
            return start
        return formatted(ends if limits == Limits() else self._limited(begins, ends, limits))

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[Task]:
        """The tasks between two offsets. Raises DataLoss."""
        begins, ends = parsed(start), parsed(end)
        if begins != self._initial:
            self._check_onwards(begins, ends)
        return plan_tasks(self.sources, self.ranges(begins, ends), stream=self._stream)

    # inner

    def _topics(self) -> list[ReadTopic]:
        """The selected topics. Raises UsageError for two of one name, which a store may have."""
        topics = self.sources.topics()
        names = [topic.name for topic in topics]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(
                f"Two topics are called '{twice[0]}': a stream follows one of a name, so give one by its id."
            )
        return topics

    def _there(self, *, undecided: bool = False) -> Positions:
        """The ends that may be read to; `undecided`: of all that exists."""
        found = {}
        for topic in self._topics():
            extents = self.sources.extents(topic, self._topic_catalogs(topic))
            ends = {partition: extent.end if undecided else extent.stable for partition, extent in extents.items()}
            starts = {partition: extent.start for partition, extent in extents.items()}
            found[topic.name] = TopicOffsets(str(topic.id), ends, starts)
        return found

    def _check_there(self, start: Positions, there: Positions) -> None:
        """Raises DataLoss where a log ends below `start`, or is another one."""
        for name, topic in start.items():
            new = there.get(name)
            for partition, offset in topic.next.items():
                if new is not None and not topic.is_of(new.id):
                    self._gone(name, partition, offset, offset, _made_anew(topic.id, new.id))
                    continue
                end = None if new is None else new.next.get(partition)
                if end is None:
                    self._gone(name, partition, offset, offset, NO_MORE)
                elif end < offset:
                    self._gone(name, partition, end, offset, f"the log ends at {end}")

    def _topic_catalogs(self, topic: ReadTopic) -> dict[int, PartitionCatalog | None]:
        return self._asked(topic, topic.partitions)

    def _catalog(self, topic: ReadTopic, partition: int) -> PartitionCatalog | None:
        if self.sources.store is None or topic.mirrored is None:
            return None
        known = self._catalogs.get((topic.id, partition))
        if known is None:
            found = self.sources.catalog(topic, partition)
        else:
            found = followed(self.sources.store, topic.mirrored, PartitionIndex(partition), known)
        if found is not None:
            self._catalogs[topic.id, partition] = found
        return found

    def _check_onwards(self, start: Positions, end: Positions) -> None:
        """Raises DataLoss where a log lost its end. Spark 4.1 asks for a stream's end without giving its beginning, so
        that shows only here.
        """
        for name, topic in end.items():
            before = start.get(name)
            if before is not None and before.is_of(topic.id):
                for partition, to in topic.next.items():
                    if to < (at := before.next.get(partition, 0)):
                        self._gone(name, partition, to, at, f"the log ends at {to}")

    def ranges(self, start: Positions, end: Positions) -> list[PartitionRange]:
        topics = {topic.name: topic for topic in self._topics()}
        found = []
        for name, ends in end.items():
            before, topic = start.get(name), topics.get(name)
            known = before.next if before is not None and before.is_of(ends.id) else {}
            begun = {**known, **ends.begun}
            moved = {partition: to for partition, to in ends.next.items() if to > begun.get(partition, -1)}
            if topic is None or not ends.is_of(str(topic.id)):
                reason = NO_MORE if topic is None else _made_anew(ends.id, str(topic.id))
                for partition, to in moved.items():
                    self._gone(name, partition, begun.get(partition, 0), to, reason)
                continue
            catalogs = self._asked(topic, moved)
            extents = self.sources.extents(topic._replace(partitions=tuple(moved)), catalogs)
            for partition, to in moved.items():
                at = begun.get(partition, extents[partition].start)
                if at == 0:  # recorded where a store had nothing yet; with brokers it is true
                    at = begun_at(topic, partition, catalogs[partition])
                at, to = self.sources.there(topic, partition, min(at, to), to, extents[partition])
                if at < to:
                    first = extents[partition].start
                    found.append(
                        PartitionRange(topic, partition, at, to, self._needed(topic, partition, at, to), first)
                    )
        return found

    def _asked(self, topic: ReadTopic, partitions: Iterable[int]) -> dict[int, PartitionCatalog | None]:
        """The partitions' catalogs. None are read where there are brokers, which know the offsets better."""
        if self.sources.brokers is not None:
            return dict.fromkeys(partitions)
        return {partition: self._catalog(topic, partition) for partition in partitions}

    def _needed(self, topic: ReadTopic, partition: int, start: int, end: int) -> PartitionCatalog | None:
        """The partition's catalog, renewed unless the few wanted bytes come sooner from the brokers."""
        known = self._catalogs.get((topic.id, partition))
        if self.sources.brokers is not None and known is not None and start >= known.next_offset:
            each = PartitionRange(topic, partition, start, end, known, start)
            if bytes_of(each, hot_sizes(self.sources, [each])) <= self._options.task_bytes:
                return known
        return self._catalog(topic, partition)

    def _limited(self, start: Positions, end: Positions, limits: Limits) -> Positions:
        ranges = self.ranges(start, end)
        sizes = hot_sizes(self.sources, ranges)
        ends = {(each.topic.name, each.partition): each.end for each in ranges}
        if limits.bytes is not None:
            backlogs = [max(1, math.ceil(bytes_of(each, sizes))) for each in ranges]
            for each, own, share in zip(ranges, backlogs, shares(backlogs, limits.bytes), strict=True):
                if share < own:
                    least = each.start + (share > 0)
                    ends[each.topic.name, each.partition] = max(least, cut_off(each, sizes, share))
        if limits.records is not None:
            left = [ends[each.topic.name, each.partition] - each.start for each in ranges]
            for each, share in zip(ranges, shares(left, limits.records), strict=True):
                ends[each.topic.name, each.partition] = each.start + share
        if ranges and all(ends[each.topic.name, each.partition] <= each.start for each in ranges):
            longest = max(ranges, key=lambda each: each.end - each.start)
            ends[longest.topic.name, longest.partition] = longest.start + 1
        return {
            name: topic._replace(
                next={partition: ends.get((name, partition), offset) for partition, offset in topic.next.items()}
            )
            for name, topic in end.items()
        }

    def _gone(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        loss = DataLoss(topic, partition, start, end, reason)
        if self._options.fail_on_loss:
            raise loss
        log.warning("%s", loss)

    def _where_there_is_something(self, topic: str, partition: int, start: int, extent: Extent) -> int:
        text = (
            f"Option startingOffsets names offset {start} of topic '{topic}', partition {partition}; "
            f"{extent.start} to {extent.end} are there: start there, or with failOnDataLoss=false."
        )
        if self._options.fail_on_loss:
            raise UsageError(text)
        log.warning("%s", text)
        return min(max(start, extent.start), extent.end)


def _ends_before(there: Positions, start: Positions) -> bool:
    """Whether any offset of `start` does not exist."""
    return any(
        name not in there
        or not topic.is_of(there[name].id)
        or any(there[name].next.get(partition, -1) < offset for partition, offset in topic.next.items())
        for name, topic in start.items()
    )


def _made_anew(known: str, now: str) -> str:
    return f"the topic was made anew, its id is {now} and was {known}"


def shares(wanted: list[int], limit: int) -> list[int]:
    """The share of each, together `limit` where more is wanted. Half of the limit is shared evenly, so that none waits
    for a large one, and the rest in proportion.
    """
    if sum(wanted) <= limit:
        return wanted
    sure = [min(each, limit // (2 * len(wanted))) for each in wanted]
    left = [each - own for each, own in zip(wanted, sure, strict=True)]
    return [own + more for own, more in zip(sure, _in_proportion(left, limit - sum(sure)), strict=True)]


def _in_proportion(wanted: list[int], limit: int) -> list[int]:
    """Shares in proportion, together `limit`; more than that is wanted."""
    total = sum(wanted)
    found = [each * limit // total for each in wanted]
    by_rest = sorted(range(len(wanted)), key=lambda at: -(wanted[at] * limit % total))
    for at in by_rest[: limit - sum(found)]:
        found[at] += 1
    return found
