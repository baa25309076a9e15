"""Reads one task's parts: from the store, from brokers, and from wherever a range moved since it was planned.

Promises:

- Every record of the parts is read once, in order within a partition, without control batches. With
  ``isolation=read_committed``, the default, none is of an aborted transaction.
- A range that retention removed from a log is searched in the store. An object that is gone is searched by the present
  catalog.
- Records behind an open transaction raise StillOpenError. They are not lost, and none is skipped.
- Records that are nowhere raise DataLoss, which names them. With ``failOnDataLoss=false`` there is a warning.
- Gaps that compaction left are no loss.
- Damage raises DamagedHistory, or is written to the quarantine and skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import groupby
from typing import Any, NoReturn

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import PartitionIndex
from headrace.base.limits import SPARK_CATALOG_TRIES_MAX, SPARK_EMPTY_FETCHES_MAX
from headrace.metadata.segments import PartitionCatalog
from headrace.net.client.batches import FetchedBatches
from headrace.net.client.cluster import UnknownTopicError
from headrace.net.client.errors import ClientError
from headrace.net.client.offsets import EARLIEST
from headrace.spark.brokers import Brokers
from headrace.spark.options import ReadOptions
from headrace.spark.read.columns import Columns
from headrace.spark.read.committed import Hidden, HiddenInAnswer, HiddenInStore, UndecidedError, aborted_in
from headrace.spark.read.decode import Rows, added, rows_for
from headrace.spark.read.extent import DataLoss, steady_catalog
from headrace.spark.read.plan import HotPart, Part, Place, StorePart, Task, durable_parts
from headrace.spark.read.quarantine import Quarantine
from headrace.spark.read.repeats import KEPT, KeptKey, Once, decoded, without_repeats
from headrace.spark.read.salvage import Bad, Good, blocks_found, salvaged, walk
from headrace.storage.tier.format import INDEX_INTERVAL_BYTES, SegmentFooter
from headrace.storage.tier.packed import parts_of
from headrace.storage.tier.reader import DamagedHistory, SegmentGone, SegmentSlice, Store
from headrace.wire.batches import BatchHeader, end_of

log = logging.getLogger(__name__)


class UnreachableError(ClientError):
    """Only brokers have these planned offsets, and no broker returns them. All values are in args, so that it survives
    pickling.
    """

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        super().__init__(topic, partition, start, end, reason)

    def __str__(self) -> str:
        topic, partition, start, end, reason = self.args
        return (
            f"Offsets {start} to {end} (end exclusive) of topic '{topic}', partition {partition} cannot be fetched, "
            f"and the store does not hold them: {reason}"
        )


class StillOpenError(HeadraceError):
    """Planned offsets lie behind a transaction that is open. All values are in args, so that it survives pickling."""

    def __init__(self, topic: str, partition: int, start: int, end: int, stable: int) -> None:
        super().__init__(topic, partition, start, end, stable)

    def __str__(self) -> str:
        topic, partition, start, end, stable = self.args
        return (
            f"Offsets {start} to {end} (end exclusive) of topic '{topic}', partition {partition} cannot be read yet, "
            f"as a transaction is open at offset {stable}: restart the query once it has ended "
            "(`headrace txn find-hanging` shows one that never will), or set isolation=read_uncommitted."
        )


class TaskReader:
    """Reads one task. A context manager, for one thread."""

    def __init__(
        self, options: ReadOptions, columns: Columns, *, store: Store | None = None, brokers: Brokers | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._store = store if store is not None or options.store is None else Store.open(options.store)
        self._brokers = (
            brokers
            if brokers is not None or options.bootstrap is None
            else Brokers(options.bootstrap, options.security)
        )
        self._quarantine = None if options.quarantine is None else Quarantine(options.quarantine)
        self._at = 0
        """The next wanted offset of the part that is being read."""
        self._start = 0
        """With dropped repeats: a loss below this offset does not count."""
        self._key = ""
        """The object, or broker, that was read last."""

    def __enter__(self) -> TaskReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._brokers is not None:
            self._brokers.close()

    def read(self, task: Task) -> Iterator[Any]:
        """pyarrow.RecordBatch of up to 32,768 rows."""
        for place, parts in groupby(task.parts, key=lambda part: part.place):
            if (window := self._options.repeat_window) is None:
                yield from self._place(place, parts, self._columns)
            else:
                key = KeptKey(task.stream, place.topic_id, place.partition, window)
                yield from self._once(place, list(parts), task.once[place], key)

    def _place(self, place: Place, parts: Iterable[Part], columns: Columns) -> Iterator[Any]:
        rows = rows_for(columns, place.topic, place.partition)
        for part in parts:
            yield from self._part(part, rows)
        yield from self._rest(place, rows)

    def _once(self, place: Place, parts: list[Part], once: Once, key: KeptKey) -> Iterator[Any]:
        """The wanted rows without repeats. Earlier records are searched, as far as this worker has not seen them in the
        stream.
        """
        self._start, memory = once.start, KEPT.take(key, once.start)
        left = [part._replace(start=max(part.start, memory.end)) for part in parts if part.end > memory.end]
        yield from without_repeats(self._place(place, left, decoded(self._columns)), memory, once, self._columns)
        memory.end = max(memory.end, parts[-1].end)
        KEPT.put(key, memory)

    def _rest(self, place: Place, rows: Rows) -> Iterator[Any]:
        if rows.rows:
            try:
                last = rows.take()
            except CorruptData as error:
                raise DamagedHistory(place.topic, place.partition, self._at, self._key, error) from error
            yield last

    def _part(self, part: Part, rows: Rows) -> Iterator[Any]:
        self._at = part.start
        try:
            if isinstance(part, StorePart):
                yield from self._segment(part, rows)
            else:
                yield from self._fetched(part, rows)
        except (SegmentGone, ClientError) as error:
            yield from self._elsewhere(part, rows, error)

    # the store

    def _segment(self, part: StorePart, rows: Rows) -> Iterator[Any]:
        """Raises SegmentGone, DamagedHistory."""
        assert self._store is not None, "it was planned of one"
        cut, footer = None, None
        try:
            cut, footer = self._cut(self._store, part)
            hidden = self._hidden(self._store, part, footer)
            if cut is not None:
                for buffer, batches in self._store.read(cut):
                    yield from self._add(part.place, cut.key, buffer, batches, self._at, part.end, rows, hidden)
        except SegmentGone:
            raise
        except UndecidedError as error:
            if self._brokers is None:
                self._unreachable(part.place, part.end, error)
            self._at = max(self._at, part.start)
            yield from self._fetched(HotPart(part.place, self._at, part.end), rows)
        except DamagedHistory:
            if self._quarantine is None:
                raise
            yield from self._around(self._store, part, cut, footer, rows)
        self._at = max(self._at, part.end)

    def _hidden(self, store: Store, part: StorePart, footer: SegmentFooter | None) -> Hidden | None:
        if not self._options.committed_only:
            return None
        return HiddenInStore(lambda: aborted_in(store, part, footer, lambda: self._catalog(part.place)))

    def _cut(self, store: Store, part: StorePart) -> tuple[SegmentSlice | None, SegmentFooter | None]:
        """The slice of the segment to read: all of it, or the batches that its index finds. None: nothing."""
        segment, place = part.segment, part.place
        begun = max(part.start, self._at)
        small = segment.batch_bytes <= 2 * INDEX_INTERVAL_BYTES
        is_all = part.is_whole and begun <= segment.start_offset and (part.time_from_ms is None or small)
        if is_all and not segment.is_packed:
            return whole_slice(part), None
        footer = store.footer(place.topic, place.partition, segment)
        return index_slice(part, footer, begun), footer

    def _around(
        self, store: Store, part: StorePart, cut: SegmentSlice | None, footer: SegmentFooter | None, rows: Rows
    ) -> Iterator[Any]:
        """The good batches of a damaged segment, from where the read stopped. The rest goes to the quarantine."""
        marks: list[tuple[int, int]] = []
        try:
            footer = footer or store.footer(part.place.topic, part.place.partition, part.segment)
            marks = [(entry.base_offset, entry.position) for entry in footer.index]
        except SegmentGone:
            raise
        except DamagedHistory:
            pass
        if cut is None:  # its index is unreadable: all of it is searched
            cut = whole_slice(part)
        try:
            if part.segment.is_packed and not cut.blocks:
                cut, marks = blocks_found(store, cut, part.segment.object_bytes)
            hidden = self._hidden(store, part, footer)
            for found in salvaged(store, cut, marks):
                yield from self._salvaged(found, part.place, cut.key, part.end, rows, hidden)
        except SegmentGone:
            raise
        except DamagedHistory as error:
            yield from self._salvaged(
                Bad(self._at, cut.end_offset - 1, str(error.reason)), part.place, cut.key, part.end, rows, None
            )

    def _salvaged(
        self, found: Good | Bad, place: Place, key: str, end: int, rows: Rows, hidden: Hidden | None
    ) -> Iterator[Any]:
        if isinstance(found, Good):
            yield from self._add(place, key, found.data, found.batches, self._at, end, rows, hidden)
        elif found.last >= self._at and found.first < end:
            self._set_aside(place, max(found.first, self._at), min(found.last, end - 1), key, found.reason)
            self._at = min(found.last + 1, end)

    def _set_aside(self, place: Place, first: int, last: int, key: str, reason: object) -> None:
        assert self._quarantine is not None
        self._quarantine.put(place.topic, place.partition, first, last, key, str(reason))

    # brokers

    def _fetched(self, part: HotPart, rows: Rows) -> Iterator[Any]:
        """Raises ClientError, StillOpenError, DataLoss, DamagedHistory."""
        assert self._brokers is not None, "it was planned of brokers"
        place, end, empty = part.place, part.end, 0
        asked, pending = -1, None
        try:
            while self._at < end:
                if pending is None or asked != self._at:
                    asked, pending = self._at, self._begin(place, self._at)
                answer, pending = pending.result(), None
                following = end_of(answer.data) if answer.data else self._at
                if following <= self._at:
                    empty += 1
                    if empty >= SPARK_EMPTY_FETCHES_MAX:
                        self._nothing_comes(place, answer, end)
                        empty = 0
                    continue
                empty = 0
                if following < min(end, answer.end):
                    asked, pending = following, self._begin(place, following)
                yield from self._answer(place, answer, end, rows)
        finally:
            if pending is not None:
                pending.cancel()

    def _nothing_comes(self, place: Place, answer: FetchedBatches, end: int) -> None:
        """Handle missing batches. Offsets beyond the log's end are lost, but not those behind an open transaction. If
        the log has them but never returns a whole batch, that is damage. Raises StillOpenError, DataLoss,
        DamagedHistory.
        """
        ends_at = answer.end
        if ends_at <= self._at < answer.high_watermark:
            raise StillOpenError(place.topic, place.partition, self._at, end, ends_at)
        if ends_at <= self._at:
            self._lose(place, end, f"the log on {answer.broker} ends at {ends_at}, and nothing more comes")
            return
        origin, reason = f"broker {answer.broker}", f"No whole batch comes, though the log ends at {ends_at}."
        if self._quarantine is None:
            raise DamagedHistory(place.topic, place.partition, self._at, origin, reason)
        following = min(end, ends_at)
        self._set_aside(place, self._at, following - 1, origin, reason)
        self._at = following

    def _begin(self, place: Place, offset: int) -> Future[FetchedBatches]:
        assert self._brokers is not None
        committed_only = self._options.committed_only
        return self._brokers.fetch(place.topic, place.topic_id, place.partition, offset, committed_only=committed_only)

    def _answer(self, place: Place, answer: FetchedBatches, end: int, rows: Rows) -> Iterator[Any]:
        origin = f"broker {answer.broker}"
        found = [*walk(answer.data, self._at, answer.end, gaps=True)]
        bad = [each for each in found if isinstance(each, Bad)]
        if bad and self._quarantine is None:
            raise DamagedHistory(place.topic, place.partition, bad[0].first, origin, bad[0].reason)
        hidden = HiddenInAnswer(answer.aborted) if self._options.committed_only else None
        for each in found:
            yield from self._salvaged(each, place, origin, end, rows, hidden)
        if not bad:
            self._at = max(self._at, min(end_of(answer.data), end))  # the next batch may lie behind a gap

    # elsewhere

    def _elsewhere(self, part: Part, rows: Rows, cause: Exception) -> Iterator[Any]:
        """Read the rest of a part that is not where it was planned to be."""
        place, end, tries = part.place, part.end, 0
        gone = part.segment.key if isinstance(part, StorePart) else ""
        while self._at < end:
            before = self._at
            catalog = self._catalog(place)
            if catalog is not None and catalog.readable_start <= self._at < catalog.next_offset:
                try:
                    for each in durable_parts(place, catalog, self._at, end):
                        if each.segment.key == gone:  # still in the catalog: not removed by retention
                            self._missing(each, cause)
                        else:
                            yield from self._segment(each, rows)
                except SegmentGone as error:
                    cause, gone = error, error.key
            else:
                yield from self._from_brokers(place, end, catalog, rows, cause)
            tries = tries + 1 if self._at == before else 0
            if tries == SPARK_CATALOG_TRIES_MAX:
                raise cause

    def _missing(self, part: StorePart, cause: Exception) -> None:
        """An object is not where the catalog says, which is damage."""
        if self._quarantine is None:
            raise cause
        self._set_aside(part.place, max(part.start, self._at), part.end - 1, part.segment.key, cause)
        self._at = part.end

    def _from_brokers(
        self, place: Place, end: int, catalog: PartitionCatalog | None, rows: Rows, cause: Exception
    ) -> Iterator[Any]:
        """Read offsets that the store lacks. Those that brokers lack too are lost."""
        begin = self._broker_start(place, end, cause)
        if begin is not None and begin <= self._at:
            try:
                yield from self._fetched(HotPart(place, self._at, end), rows)
            except ClientError as error:
                self._unreachable(place, end, error)
            return
        starts = [end] if begin is None else [end, begin]
        if catalog is not None and catalog.entries:
            starts.append(catalog.readable_start)
        self._lose(place, min(start for start in starts if start > self._at), str(cause))

    def _broker_start(self, place: Place, end: int, cause: Exception) -> int | None:
        """The beginning of the log of this very topic; None where there is none, or there are no brokers."""
        if self._brokers is None:
            return None
        try:
            if self._brokers.topic(place.topic).id != place.topic_id:
                return None
            offsets = self._brokers.offsets(place.topic, [place.partition], EARLIEST)
            return offsets[PartitionIndex(place.partition)].offset
        except UnknownTopicError:
            return None
        except ClientError:
            self._unreachable(place, end, cause)

    def _unreachable(self, place: Place, end: int, cause: Exception) -> NoReturn:
        raise UnreachableError(place.topic, place.partition, self._at, end, str(cause)) from cause

    def _catalog(self, place: Place) -> PartitionCatalog | None:
        if self._store is None:
            return None
        mirrored = self._store.topic_of(place.topic_id)
        if mirrored is None:
            return None
        catalog = steady_catalog(self._store, mirrored, place.partition)
        return catalog if catalog.end_offset >= 0 else None

    def _lose(self, place: Place, end: int, reason: str) -> None:
        """Raises DataLoss, or continues behind the lost range."""
        loss = DataLoss(place.topic, place.partition, self._at, end, reason)
        if self._options.fail_on_loss and end > self._start:
            raise loss
        log.warning("%s", loss)
        self._at = end

    # rows

    def _add(
        self,
        place: Place,
        key: str,
        data: Any,
        batches: Iterable[tuple[int, BatchHeader]],
        start: int,
        end: int,
        rows: Rows,
        hidden: Hidden | None,
    ) -> Iterator[Any]:
        """Add checked batches, of which the records from `start` up to `end` are wanted, unless they are hidden."""
        view, self._key = memoryview(data), key
        for at, header in batches:
            if header.base_offset >= end:
                break
            is_hidden = header.is_control
            if header.is_transactional and hidden is not None:
                is_hidden = hidden.hides(view, at, header)
            if header.next_offset > start and header.count and not is_hidden:
                try:
                    yield from self._unpacked(added(view, at, header, start, end), rows)
                except CorruptData as error:
                    if self._quarantine is None:
                        raise DamagedHistory(place.topic, place.partition, header.base_offset, key, error) from error
                    first, last = max(header.base_offset, start), min(header.next_offset, end) - 1
                    self._set_aside(place, first, last, key, error)
            self._at = max(self._at, min(header.next_offset, end))

    def _unpacked(self, add: Callable[[Rows], Iterator[Any]], rows: Rows) -> Iterator[Any]:
        if self._quarantine is None:
            yield from add(rows)
            return
        own = rows.fresh()  # no row of a batch that turns out bad may be returned
        found = [*add(own)]
        if own.rows:
            found.append(own.take())
        yield from found


def whole_slice(part: StorePart) -> SegmentSlice:
    """All of the part's segment."""
    segment = part.segment
    return SegmentSlice(
        topic=part.place.topic,
        partition=part.place.partition,
        key=segment.key,
        position=0,
        end_position=segment.batch_bytes,
        base_offset=int(segment.start_offset),
        end_offset=int(segment.next_offset),
        first_offset=part.start,
        next_offset=part.end,
        crc32c=segment.crc32c,
        is_thinned=segment.lacks_records,
    )


def index_slice(part: StorePart, footer: SegmentFooter, start: int) -> SegmentSlice | None:
    """The stretches between index entries that may hold wanted offsets, from `start` on, with late enough times. They
    are neighbours. None where there are none.
    """
    index = footer.index
    ends = [(after.base_offset, after.position, after.max_timestamp_ms) for after in index[1:]] + [
        (int(footer.end_offset) + 1, footer.batch_bytes, footer.last_timestamp_ms)
    ]
    chosen = [
        (entry, end)
        for entry, end in zip(index, ends, strict=True)
        if end[0] > start
        and entry.base_offset < part.end
        and (part.time_from_ms is None or end[2] >= part.time_from_ms)
    ]
    if not chosen:
        return None
    first, (end_offset, end_position, _) = chosen[0][0], chosen[-1][1]
    is_whole = (first.position, end_position) == (0, footer.batch_bytes)
    return SegmentSlice(
        topic=part.place.topic,
        partition=part.place.partition,
        key=part.segment.key,
        position=first.position,
        end_position=end_position,
        base_offset=first.base_offset,
        end_offset=end_offset,
        first_offset=max(start, first.base_offset),
        next_offset=min(part.end, end_offset),
        crc32c=footer.crc32c if is_whole else None,
        is_thinned=part.segment.lacks_records,
        blocks=parts_of(footer, first.position, end_position),
    )
