"""Reads durable history straight from a store, with no broker running.

Promises: everything it yields was checked: the catalog's hash chain and continuity, every batch's CRC32C, offsets
without a gap. Damage raises `DamagedHistory`, which names topic, partition, offset and object. Never writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

from crc32c import crc32c

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ids import Offset, PartitionIndex, TopicId
from headrace.base.limits import CATALOG_READS_AT_ONCE_MAX, MIRROR_READ_TRIES_MAX
from headrace.base.ports import Buffer, Disk, Objects
from headrace.base.reading import is_natural
from headrace.metadata.segments import CatalogEntry, PartitionCatalog, Run, SegmentDescriptor
from headrace.storage.disk import ReadOnlyDisk
from headrace.storage.objects import open_objects
from headrace.storage.tier.blocks import check_footer
from headrace.storage.tier.chunks import ChunkRef, read_chunk
from headrace.storage.tier.format import TAIL_GUESS_BYTES, SegmentFooter, cuts_of, decode_footer, footer_length
from headrace.storage.tier.marked import TransactionCheck
from headrace.storage.tier.mirror import (
    NAMES,
    MirroredState,
    MirroredTopic,
    read_document,
    segment_document_key,
    segments_prefix,
    state_key,
    topic_document_key,
)
from headrace.storage.tier.packed import PackedPart, batches_of, parts_of, read_parts, walked
from headrace.storage.tier.slices import DamagedHistory, SegmentGone, SegmentSlice
from headrace.wire.batches import BatchHeader, CorruptBatch, check_batch, check_batches, whole_batches

__all__ = [
    "CheckedBatches",
    "DamagedHistory",
    "SegmentGone",
    "SegmentSlice",
    "Store",
    "VerifiedPartition",
    "check_object",
    "check_transactions",
    "rebuilt",
]

READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes requested from the store at a time while batches are read."""

PROBLEMS_NAMED_MAX: Final = 3
"""Differences of one segment's transactions that an error names."""

CheckedBatches: TypeAlias = list[tuple[int, BatchHeader]]
"""Positions in a buffer and headers of whole, checked batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPartition:
    """The result of `Store.verify` for a sound partition."""

    partition: PartitionIndex
    start_offset: Offset
    end_offset: Offset
    """Inclusive; -1 where there is no history."""
    segments: int
    records: int
    object_bytes: int
    head: str


class Store:
    """A store opened for reading. It is not bound to a cluster: it may hold the history of several."""

    def __init__(self, objects: Objects, url: str = "") -> None:
        self._objects = objects
        self._url = url

    @classmethod
    def open(cls, url: str, disk: Disk | None = None) -> Store:
        """Open a store; the right to read is enough. Raises UsageError where the URL names no store."""
        return cls(open_objects(url, disk or ReadOnlyDisk()), url)

    @property
    def objects(self) -> Objects:
        """All objects in the store."""
        return self._objects

    def topics(self) -> list[MirroredTopic]:
        """All topics that are not deleted, by name. Raises CorruptData."""
        found = []
        for meta in self._objects.list(NAMES):
            document = read_document(self._objects, meta.key)
            if document is not None:
                found.append(MirroredTopic.from_json(document))
        return sorted((topic for topic in found if not topic.deleted), key=lambda topic: (topic.name, topic.topic_id))

    def topic(self, name: str) -> MirroredTopic:
        """A topic by name or id. Raises UsageError where there is none, or several of this name."""
        topics = self.topics()
        found = [topic for topic in topics if name in (topic.name, str(topic.topic_id))]
        if not found:
            there = ", ".join(topic.name for topic in topics[:20]) or "none at all"
            raise UsageError(f"The store {self._url} holds no topic '{name}'; it holds: {there}.")
        if len(found) > 1:
            ids = ", ".join(str(topic.topic_id) for topic in found)
            raise UsageError(f"The store {self._url} holds several topics '{name}': name one by its id ({ids}).")
        return found[0]

    def topic_of(self, topic_id: TopicId) -> MirroredTopic | None:
        """A topic by id; None where its document is missing. Raises CorruptData."""
        document = read_document(self._objects, topic_document_key(topic_id))
        return None if document is None else MirroredTopic.from_json(document)

    def catalog(self, topic: MirroredTopic, partition: PartitionIndex) -> PartitionCatalog:
        """One partition's catalog, with chain and continuity verified. It is empty where nothing was exported yet.
        Where the mirror is written meanwhile, the newer state counts. Raises DamagedHistory.
        """
        document = self._state_document(topic, partition)
        for left in reversed(range(MIRROR_READ_TRIES_MAX)):
            if document is None:
                break
            try:
                state = MirroredState.from_json(document)
                with ThreadPoolExecutor(CATALOG_READS_AT_ONCE_MAX) as pool:  # ends here, even after an error
                    return rebuilt(topic, partition, state, self._pieces(topic, partition, state, pool))
            except CorruptData as error:
                now = self._state_document(topic, partition)
                if not left or now == document:
                    raise _as_damage(topic, partition, error) from error
                document = now
        return PartitionCatalog.empty(topic.topic_id, partition)

    def _state_document(self, topic: MirroredTopic, partition: PartitionIndex) -> dict[str, object] | None:
        """Raises DamagedHistory."""
        try:
            return read_document(self._objects, state_key(topic.topic_id, partition))
        except CorruptData as error:
            raise _as_damage(topic, partition, error) from error

    def _pieces(
        self, topic: MirroredTopic, partition: PartitionIndex, state: MirroredState, pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, CatalogEntry | Run]]:
        """The pieces of the catalog in order, each with its start offset from the document's name. Entries that `state`
        does not count are left out: they are being written.

        The caller owns the pool. A generator that waited for threads at its end would deadlock if the garbage collector
        ended it while another thread was starting.
        """
        if not state.segments:
            return
        chunks = pool.map(lambda ref: self._chunk_of(topic, partition, ref), state.chunks)
        for ref, run in zip(state.chunks, chunks, strict=True):
            if run is None:
                low = max(ref.start_offset, state.start_offset)
                lost = self._listed(topic, partition, low, ref.end_offset)
                yield from self._singles(topic, partition, lost, pool)
            elif (first := run.floor(state.start_offset - 1) + 1) < len(run):
                yield run.start_of(first), run.part(first)
        behind: Sequence[Offset] | None = state.singles
        if behind is None:
            behind = self._listed(topic, partition, state.start_offset, state.last_start)
        yield from self._singles(topic, partition, behind, pool)

    def _chunk_of(self, topic: MirroredTopic, partition: PartitionIndex, ref: ChunkRef) -> Run | None:
        """A chunk; None where it is lost or damaged. Its entries then have to be read from other documents."""
        try:
            return read_chunk(self._objects, topic.topic_id, partition, ref)
        except CorruptData:
            return None

    def _listed(self, topic: MirroredTopic, partition: PartitionIndex, low: int, high: int) -> list[Offset]:
        """Start offsets of the entries with a document of their own, from `low` to `high`."""
        prefix = segments_prefix(topic.topic_id, partition)
        names = (meta.key.removeprefix(prefix) for meta in self._objects.list(prefix))
        return [Offset(int(name)) for name in names if is_natural(name) and low <= int(name) <= high]

    def _singles(
        self, topic: MirroredTopic, partition: PartitionIndex, starts: Sequence[Offset], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[int, CatalogEntry]]:
        keys = [segment_document_key(topic.topic_id, partition, start) for start in starts]
        for at, key, document in zip(starts, keys, pool.map(self._document_of, keys), strict=True):
            try:
                if isinstance(document, CorruptData):
                    raise document
                yield at, CatalogEntry.from_json(document)
            except CorruptData as error:
                raise DamagedHistory(topic.name, partition, at, key, error) from error

    def _document_of(self, key: str) -> dict[str, object] | CorruptData | None:
        try:
            return read_document(self._objects, key)
        except CorruptData as error:
            return error

    def footer(self, topic: str, partition: int, descriptor: SegmentDescriptor) -> SegmentFooter:
        """A segment's footer, in one range read, or two where it is long. Raises DamagedHistory."""
        try:
            tail = self._tail(descriptor, min(TAIL_GUESS_BYTES, descriptor.object_bytes))
            if (length := footer_length(tail)) > len(tail):
                tail = self._tail(descriptor, min(length, descriptor.object_bytes))
            footer = decode_footer(tail)
            check_footer(descriptor, footer)
        except FileNotFoundError as error:
            raise SegmentGone(topic, partition, descriptor.start_offset, descriptor.key, error) from error
        except (CorruptData, EOFError) as error:
            raise DamagedHistory(topic, partition, descriptor.start_offset, descriptor.key, error) from error
        return footer

    def _tail(self, descriptor: SegmentDescriptor, length: int) -> bytes:
        return self._objects.get_range(descriptor.key, descriptor.object_bytes - length, length)

    def slices(
        self, topic: str, partition: int, catalog: PartitionCatalog, start: int, end: int, *, slice_bytes: int
    ) -> list[SegmentSlice]:
        """Cut the range [start, end) into slices of about `slice_bytes`, at batch boundaries, in offset order.

        Reads only the footers of segments that must be cut. The range must lie within the catalog.
        """
        found: list[SegmentSlice] = []
        for entry in catalog.reaching(start):
            segment = entry.descriptor
            if segment.start_offset >= end:
                break
            whole = start <= segment.start_offset and segment.next_offset <= end
            is_small = whole and segment.batch_bytes <= slice_bytes + slice_bytes // 2
            footer = None if is_small and not segment.is_packed else self.footer(topic, partition, segment)
            if footer is None or is_small:
                cuts = [(int(segment.start_offset), 0), (int(segment.next_offset), segment.batch_bytes)]
            else:
                cuts = cuts_of(footer, start, end, slice_bytes)
            for (base, position), (after, end_position) in pairwise(cuts):
                complete = position == 0 and end_position == segment.batch_bytes
                found.append(
                    SegmentSlice(
                        topic=topic,
                        partition=partition,
                        key=segment.key,
                        position=position,
                        end_position=end_position,
                        base_offset=base,
                        end_offset=after,
                        first_offset=max(start, base),
                        next_offset=min(end, after),
                        crc32c=segment.crc32c if complete else None,
                        is_thinned=segment.lacks_records,
                        blocks=() if footer is None else parts_of(footer, position, end_position),
                    )
                )
        return found

    def read(self, part: SegmentSlice, *, read_bytes: int = READ_BYTES) -> Iterator[tuple[Buffer, CheckedBatches]]:
        """The slice's batches in buffers of about `read_bytes` (one batch at least), all of them checked.

        Raises DamagedHistory. Objects are read by ranges; a batch is never split.
        """
        position, expected, checksum = part.position, part.base_offset, 0
        while position < part.end_position:
            try:
                buffer = self._whole_batches(part, position, read_bytes)
                batches = check_batches(buffer, gaps_below=part.end_offset if part.is_thinned else 0)
            except (CorruptData, EOFError, FileNotFoundError) as error:
                raise self._locate(part, position, expected, error) from error
            for _, header in batches:
                if header.base_offset != expected:
                    raise part.damaged(expected, f"A batch begins at offset {header.base_offset}.")
                expected = header.next_offset
            checksum = crc32c(buffer, checksum)
            position += len(buffer)
            yield buffer, batches
        if expected != part.end_offset:
            raise part.damaged(expected, f"Its batches end before offset {part.end_offset}.")
        if part.crc32c not in (None, checksum):
            raise part.damaged(part.base_offset, "The segment fails its CRC32C.")

    def read_bytes(self, part: SegmentSlice, position: int, length: int) -> bytes:
        """Bytes of its batches as they are, unchecked: whole blocks of them where it is packed. Raises SegmentGone,
        DamagedHistory.
        """
        try:
            if part.blocks:
                return read_parts(self._objects, part.key, part.blocks_between(position, position + length))
            return self._objects.get_range(part.key, position, length)
        except (CorruptData, EOFError, FileNotFoundError) as error:
            raise part.damaged(part.base_offset, error) from error

    def found_blocks(self, part: SegmentSlice, object_bytes: int) -> tuple[PackedPart, ...]:
        """The blocks of a whole packed segment whose footer is unreadable, as far as their headers lead. Raises
        SegmentGone, DamagedHistory.
        """
        try:
            return tuple(walked(self._objects.get_range(part.key, 0, object_bytes), part.end_position))
        except (EOFError, FileNotFoundError) as error:
            raise part.damaged(part.base_offset, error) from error

    def _whole_batches(self, part: SegmentSlice, position: int, read_bytes: int) -> Buffer:
        wanted = min(read_bytes, part.end_position - position)
        if part.blocks:
            return read_parts(self._objects, part.key, part.blocks_between(position, position + wanted))
        buffer = self._objects.get_range(part.key, position, wanted)
        whole = whole_batches(buffer)
        if not whole and wanted < part.end_position - position:
            wanted = min(part.end_position - position, 12 + int.from_bytes(buffer[8:12], "big"))
            buffer = self._objects.get_range(part.key, position, wanted)
            whole = whole_batches(buffer)
        if not whole:
            raise CorruptBatch("A batch is longer than its segment.")
        return memoryview(buffer)[:whole]

    def _locate(self, part: SegmentSlice, position: int, expected: int, error: Exception) -> DamagedHistory:
        """Find the first bad batch, so that the error names its offset."""
        try:
            for buffer in self._rest(part, position):
                at = 0
                while at < len(buffer):
                    header = check_batch(buffer, at, compacted=part.is_thinned)
                    expected, at = header.next_offset, at + header.size
        except (CorruptData, EOFError, FileNotFoundError) as first:
            return part.damaged(expected, first)
        return part.damaged(expected, error)

    def _rest(self, part: SegmentSlice, position: int) -> Iterator[Buffer]:
        if not part.blocks:
            yield self._objects.get_range(part.key, position, part.end_position - position)
        for block in part.blocks_between(position, part.end_position):
            yield read_parts(self._objects, part.key, [block])

    def batches(
        self, topic: MirroredTopic, partition: PartitionIndex, start: int, end: int
    ) -> Iterator[tuple[memoryview, BatchHeader]]:
        """Every batch that holds a record of [start, end), in order, checked. Raises DamagedHistory."""
        catalog = self.catalog(topic, partition)
        for part in self.slices(topic.name, partition, catalog, start, end, slice_bytes=1 << 40):
            for buffer, batches in self.read(part):
                view = memoryview(buffer)
                for at, header in batches:
                    if header.next_offset > start and header.base_offset < end:
                        yield view[at : at + header.size], header

    def verify(self, topic: MirroredTopic, partition: PartitionIndex) -> VerifiedPartition:
        """Read all of one partition and prove it: chain, SHA-256, CRC32C, footers, batches, continuity.

        Raises DamagedHistory at the first part that is not sound.
        """
        catalog = self.catalog(topic, partition)
        records = size = 0
        transactions = TransactionCheck()
        for entry in catalog:
            self.verify_segment(topic.name, partition, entry.descriptor, transactions)
            records += entry.descriptor.records
            size += entry.descriptor.object_bytes
        return VerifiedPartition(
            partition=partition,
            start_offset=catalog.start_offset,
            end_offset=catalog.end_offset,
            segments=len(catalog.entries),
            records=records,
            object_bytes=size,
            head=catalog.head,
        )

    def verify_segment(
        self, topic: str, partition: int, segment: SegmentDescriptor, transactions: TransactionCheck
    ) -> None:
        """Read one object and prove it: SHA-256, CRC32C, footer, batches, offsets, transactions. `transactions` was
        told of all segments before it. Raises DamagedHistory."""
        try:
            body = self._objects.get(segment.key)
            check_transactions(segment, body, check_object(segment, body), transactions)
        except (CorruptData, FileNotFoundError) as error:
            transactions.forget()
            raise DamagedHistory(topic, partition, segment.start_offset, segment.key, error) from error


def check_object(segment: SegmentDescriptor, body: bytes) -> CheckedBatches:
    """Prove a whole object (SHA-256, CRC32C, footer, batches, offsets) and return its batches. Raises CorruptData."""
    if len(body) != segment.object_bytes or hashlib.sha256(body).hexdigest() != segment.sha256:
        raise CorruptData("it fails its SHA-256")
    footer = decode_footer(body)
    check_footer(segment, footer)
    batches = batches_of(body, footer)
    if crc32c(batches) != segment.crc32c:
        raise CorruptData("its batches fail their CRC32C")
    found = check_batches(batches, gaps_below=segment.next_offset if segment.lacks_records else 0)
    _check_contents(segment, found)
    return found


def check_transactions(
    segment: SegmentDescriptor, body: bytes, found: CheckedBatches, transactions: TransactionCheck
) -> None:
    """Prove what a checked object tells of transactions. Raises CorruptData."""
    footer = decode_footer(body)
    if transactions.has_work(footer, (header for _, header in found)):
        problems = list(transactions.problems(footer, batches_of(body, footer), is_thinned=segment.lacks_records))
        if problems:
            raise CorruptData("; ".join(problems[:PROBLEMS_NAMED_MAX]))


def _as_damage(topic: MirroredTopic, partition: PartitionIndex, error: CorruptData) -> DamagedHistory:
    """The error as DamagedHistory. Where its place is unknown, it names the mirror's state."""
    if isinstance(error, DamagedHistory):
        return error
    return DamagedHistory(topic.name, partition, 0, state_key(topic.topic_id, partition), error)


def rebuilt(
    topic: MirroredTopic,
    partition: PartitionIndex,
    state: MirroredState,
    pieces: Iterable[tuple[int, CatalogEntry | Run]],
) -> PartitionCatalog:
    """Build the catalog of `state` from its pieces: entries or runs with their start offsets, in order. Its chain and
    continuity are verified. Raises DamagedHistory.
    """
    catalog = PartitionCatalog.empty(topic.topic_id, partition)
    if state.log_start_offset:  # earlier entries are not there to be proven
        catalog = replace(catalog, log_start_offset=state.log_start_offset, end_offset=state.end_offset)
        catalog = replace(catalog, head=state.head)
    for at, piece in pieces:
        run = (piece if isinstance(piece, Run) else Run.of([piece])) if catalog.entries else _first(piece)
        if not catalog.entries and state.log_start_offset:
            catalog = replace(catalog, head=run.previous_hash, end_offset=Offset(at - 1))
        joined = catalog.joined(run) if run.start_offset == at else None
        if joined is None:
            reason = f"It continues {run.previous_hash[:16]}, and does not go on from {catalog.head[:16]}."
            raise DamagedHistory(topic.name, partition, at, run.entry(0).descriptor.key, reason)
        catalog = joined
    catalog = catalog.with_links(state.deletions)
    problem = catalog.unvouched()
    if problem or MirroredState.of(catalog, state.raft_index) != state:
        at, key = catalog.end_offset + 1, state_key(topic.topic_id, partition)
        reason = problem or "The segments listed are not those that it counts."
        raise DamagedHistory(topic.name, partition, at, key, reason)
    return catalog


def _first(piece: CatalogEntry | Run) -> Run:
    """The first run of a catalog, without the links before it, which belong to no entry."""
    return (piece if isinstance(piece, Run) else Run.of([piece])).without_links()


def _check_contents(segment: SegmentDescriptor, batches: Sequence[tuple[int, BatchHeader]]) -> None:
    expected = int(segment.start_offset)
    for _, header in batches:
        if header.base_offset != expected:
            raise CorruptData(f"a batch begins at offset {header.base_offset} where {expected} should follow")
        expected = header.next_offset
    if expected != segment.next_offset or sum(header.count for _, header in batches) != segment.records:
        raise CorruptData(f"its batches end at offset {expected - 1}")
