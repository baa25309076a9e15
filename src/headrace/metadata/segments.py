"""One partition's catalog of durable segments, and its hash chain.

Promises: a catalog has no gap and no overlap, and SHA-256 binds each of its segments to all earlier ones. Never reads
or writes an object: that is the part of `headrace.storage.tier`. `descriptors` defines a segment, `runs` stores the
entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import SEGMENTS_REPLACED_AT_ONCE_MAX
from headrace.base.values import Value
from headrace.metadata.descriptors import (
    CatalogEntry,
    Link,
    SegmentDescriptor,
    Voucher,
    deleted_hash,
    genesis_hash,
    is_hash,
    linked,
    links_from_json,
    lost_link,
    published_hash,
    replaced_hash,
    vouchers_of,
)
from headrace.metadata.runs import Entries, Run
from headrace.metadata.vouchers import unvouched

__all__ = [
    "CatalogEntry",
    "Entries",
    "Link",
    "PartitionCatalog",
    "Run",
    "SegmentDescriptor",
    "Voucher",
    "deleted_hash",
    "genesis_hash",
    "linked",
    "links_from_json",
    "published_hash",
    "replaced_hash",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PartitionCatalog(Value):
    """The durable history of one partition: contiguous segments and the head of their chain. Structurally shared.

    Invariants:
    - Each entry starts one above the end of the entry before it.
    - Its `previous_hash` is that entry's hash, with the deletions since then linked to it.
    - `head` is the last entry's hash with `deletions` linked to it.
    - No entry lies wholly below `log_start_offset`, which is at most `next_offset`.
    - The last replacement of its range vouches for a substitute, and all substitutes with a voucher are here.
    """

    head: str
    entries: Entries = field(default_factory=Entries)
    """Entries by start offset."""
    start_offset: Offset = NO_OFFSET
    """Start offset of the first segment; -1 while there is none."""
    last_start: Offset = NO_OFFSET
    """Start offset of the last segment; -1 while there is none."""
    end_offset: Offset = NO_OFFSET
    """The durable frontier: the last offset that was ever held, inclusive; -1 where none was."""
    log_start_offset: Offset = FIRST_OFFSET
    """Offsets below this are deleted: readers do not get them, though the first segment may still hold them."""
    deletions: tuple[Link, ...] = ()
    """Deletions and replacements since the last entry was published."""
    batch_bytes: int = 0
    """Total of all entries."""

    @classmethod
    def empty(cls, topic_id: TopicId, partition: PartitionIndex) -> PartitionCatalog:
        return cls(head=genesis_hash(topic_id, partition))

    @property
    def next_offset(self) -> Offset:
        """Where the next segment starts. It is 0 in a catalog that never held any, which may also begin higher."""
        return Offset(self.end_offset + 1)

    @property
    def readable_start(self) -> Offset:
        """The first offset that may be read from it; its end where there is none."""
        return max(self.start_offset, self.log_start_offset) if self.entries else self.next_offset

    @property
    def mirrored_end(self) -> Offset:
        """The mirror has everything below this, whenever it was last written, because nothing more is published
        there."""
        return self.last_start if self.entries else self.next_offset

    def joined_start(self, local_start: Offset) -> Offset:
        """The common start of this history and a log that begins at `local_start`. History that a gap separates from
        the log does not count, and neither do deleted offsets."""
        joins = self.entries and self.start_offset < local_start <= self.next_offset
        return max(self.start_offset if joins else local_start, self.log_start_offset)

    @property
    def last(self) -> CatalogEntry | None:
        return self.entries.get(self.last_start)

    def __iter__(self) -> Iterator[CatalogEntry]:
        """The entries in offset order."""
        return self.entries.reaching(-1)

    def above(self, offset: Offset) -> Iterator[CatalogEntry]:
        """The entries that begin above `offset`, which is the end of one of them or below all."""
        return self.entries.reaching(offset + 1)

    def reaching(self, offset: int) -> Iterator[CatalogEntry]:
        """The entries from the one that holds `offset`, or begins above it."""
        return self.entries.reaching(offset)

    def differs_from(self, epochs: Sequence[tuple[LeaderEpoch, Offset]]) -> Offset | None:
        """The offset from which records of a log with these epochs, in order, cannot be the ones in this history. It is
        the start of the first epoch that begins below the end, in a segment that was exported in an older one."""
        for epoch, start in epochs:
            entry = self.entries.holding(start)
            if entry is not None and epoch > entry.descriptor.leader_epoch:
                return start
        return None

    def refusal(self, descriptor: SegmentDescriptor, previous_hash: str) -> str | None:
        """Why this segment may not be published next, as one sentence; None where it may.

        An empty catalog may begin at any offset above what it held: where exports began after retention had cut the
        log's beginning.
        """
        if problem := descriptor.contradiction():
            return f"The segment's descriptor is impossible: {problem}."
        if previous_hash != self.head:
            return f"The segment continues {previous_hash[:16]}, but the catalog's head is {self.head[:16]}."
        start, following = descriptor.start_offset, self.next_offset
        if start != following and (self.entries or start < following):
            return f"The segment starts at {start}, but the catalog goes on at {following}."
        return None

    def published(self, descriptor: SegmentDescriptor) -> PartitionCatalog:
        """This catalog with one more segment. The caller has checked `refusal`."""
        assert self.refusal(descriptor, self.head) is None, descriptor
        head = published_hash(self.head, descriptor)
        entry = CatalogEntry(
            descriptor=descriptor,
            previous_hash=self.head,
            hash=head,
            deletions=self.deletions if self.entries else (),
        )
        return PartitionCatalog(
            head=head,
            entries=self.entries.with_run(Run.of([entry])),
            start_offset=self.start_offset if self.entries else descriptor.start_offset,
            last_start=descriptor.start_offset,
            end_offset=descriptor.end_offset,
            log_start_offset=self.log_start_offset,
            batch_bytes=self.batch_bytes + descriptor.batch_bytes,
        )

    def joined(self, run: Run) -> PartitionCatalog | None:
        """This catalog with the run appended; None where the run does not continue it with its head. The caller has
        checked the run's hashes."""
        links = run.links if self.entries else ()
        goes_on = run.start_offset == self.next_offset if self.entries else run.start_offset >= self.next_offset
        if not goes_on or run.links != links or linked(self.head, links) != run.previous_hash:
            return None
        return PartitionCatalog(
            head=run.hash,
            entries=self.entries.with_run(run),
            start_offset=self.start_offset if self.entries else run.start_offset,
            last_start=run.start_of(len(run) - 1),
            end_offset=run.end_offset,
            log_start_offset=self.log_start_offset,
            batch_bytes=self.batch_bytes + run.batch_bytes,
        )

    def with_links(self, links: Sequence[Link]) -> PartitionCatalog:
        """This catalog with links behind its last entry; their effects on the entries are not applied."""
        return replace(self, head=linked(self.head, links), deletions=(*self.deletions, *links))

    def at(self, head: str) -> PartitionCatalog:
        """This catalog with the head that a committed event names. Where the present head differs, links are lost here;
        events committed behind them are not refused for that."""
        return self if head == self.head or not is_hash(head) else self.with_links([lost_link(head)])

    def unvouched(self) -> str | None:
        """Why its substitutes are not those that the chain vouches for, in a few words; None where they are."""
        return unvouched(self.start_offset, self.entries.unusual(), self.deletions)

    # replacing segments by one

    def replacement_refusal(self, descriptor: SegmentDescriptor, removed: Sequence[str]) -> str | None:
        """Why this segment may not replace those (by their SHA-256, in order), as one sentence; None where it may. All
        of them need one exporter's epoch, which shows where a log differs. The last segment stays, because a log begins
        behind its footer."""
        if problem := descriptor.contradiction():
            return f"The segment's descriptor is impossible: {problem}."
        if len(removed) > SEGMENTS_REPLACED_AT_ONCE_MAX:
            return f"{len(removed)} segments are too many to be replaced at once."
        there = self.between(descriptor.start_offset, descriptor.end_offset)
        if not there or [each.descriptor.sha256 for each in there] != list(removed):
            return f"Offsets {descriptor.start_offset} to {descriptor.end_offset} are not just what is to be replaced."
        last = there[-1].descriptor
        if last.start_offset == self.last_start:
            return f"The last segment, which begins at {self.last_start}, is not replaced."
        if {each.descriptor.leader_epoch for each in there} != {descriptor.leader_epoch}:
            return f"Not all that is to be replaced was exported in leader epoch {descriptor.leader_epoch}."
        if last.last_epoch not in (NO_EPOCH, descriptor.last_epoch) or descriptor.records > sum(
            each.descriptor.records for each in there
        ):
            return "The segment holds what those that it is to replace do not."
        return None

    def between(self, start: int, end: int) -> list[CatalogEntry]:
        """The entries that hold exactly these offsets (inclusive); an empty list where entries hold others, too. At
        most one more than may be replaced at once."""
        found: list[CatalogEntry] = []
        for entry in self.reaching(start):
            found.append(entry)
            if entry.descriptor.end_offset >= end or len(found) > SEGMENTS_REPLACED_AT_ONCE_MAX:
                break
        fits = found and (found[0].descriptor.start_offset, found[-1].descriptor.end_offset) == (start, end)
        return found if fits else []

    def replaced(self, descriptor: SegmentDescriptor) -> PartitionCatalog:
        """This catalog with the segment in the place of all those in its range. The caller has checked
        `replacement_refusal`."""
        there = self.between(descriptor.start_offset, descriptor.end_offset)
        assert there, descriptor
        first, last = there[0], there[-1]
        assert last.descriptor.start_offset != self.last_start, descriptor
        substitute = CatalogEntry(
            descriptor=descriptor,
            previous_hash=first.previous_hash,
            hash=last.hash,
            deletions=first.deletions,
            is_substitute=True,
        )
        hung = [voucher for entry in there[1:] for link in entry.deletions for voucher in vouchers_of(link)]
        carried = dict.fromkeys(
            str(each) for each in hung if self._wants(each) and each.end_offset < descriptor.start_offset
        )
        link = (str(substitute.voucher), *carried)
        size = sum(entry.descriptor.batch_bytes for entry in there)
        return replace(
            self.with_links([link]),
            entries=self.entries.with_substitute(substitute),
            batch_bytes=self.batch_bytes - size + descriptor.batch_bytes,
        )

    def _wants(self, voucher: Voucher) -> bool:
        entry = self.entries.holding(voucher.start_offset)
        return entry is not None and entry.is_substitute and entry.voucher == voucher

    # deleting from the beginning

    def below(self, offset: Offset, count_max: int | None = None) -> list[SegmentDescriptor]:
        """The segments that lie wholly below `offset`, or the first of them."""
        found: list[SegmentDescriptor] = []
        for entry in islice(self, count_max):
            if entry.descriptor.next_offset > offset:
                break
            found.append(entry.descriptor)
        return found

    def deleted(self, log_start_offset: Offset, removed: Link) -> PartitionCatalog:
        """This catalog with its beginning moved up to `log_start_offset`, at most to its end. `removed` is linked to
        the chain: the segments wholly below that offset, of which some may be gone already."""
        start = max(self.log_start_offset, min(log_start_offset, self.next_offset))
        gone = self.below(start)
        first = gone[-1].next_offset if gone else self.start_offset
        left = self.entries.since(first) if gone else self.entries
        return PartitionCatalog(
            head=deleted_hash(self.head, removed) if removed else self.head,
            entries=left,
            start_offset=first if left else NO_OFFSET,
            last_start=self.last_start if left else NO_OFFSET,
            end_offset=self.end_offset,
            log_start_offset=start,
            deletions=(*self.deletions, *([removed] if removed else [])) if left else (),
            batch_bytes=self.batch_bytes - sum(descriptor.batch_bytes for descriptor in gone),
        )

    @property
    def anchor(self) -> PartitionCatalog:
        """The catalog without its entries and deletions; replaying these on it gives the catalog again."""
        first = self.entries.get(self.start_offset)
        if first is None:
            return self
        return PartitionCatalog(
            head=first.previous_hash,
            end_offset=Offset(self.start_offset - 1) if self.log_start_offset else NO_OFFSET,
            log_start_offset=self.log_start_offset,
        )
