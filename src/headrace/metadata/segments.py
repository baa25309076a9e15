"""One partition's catalog of durable segments, and its hash chain.

Promises: a catalog has no gap and no overlap, and each of its segments is bound by SHA-256 to all that came before.
Never reads or writes an object: that is `headrace.storage.tier`. `descriptors` says what a segment is, `runs` how the
entries are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from headrace.base.ids import FIRST_OFFSET, NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import SEGMENTS_REPLACED_AT_ONCE_MAX
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCatalog:
    """The durable history of one partition: contiguous segments and the head of their chain. Structurally shared.

    Invariants: each entry starts one above the end of the one before it and holds its hash, with the deletions since
    then linked to it, as `previous_hash`; `head` is the last entry's hash with `deletions` linked to it; no entry lies
    whole below `log_start_offset`, which is at most `next_offset`; a substitute is vouched for by the last replacement
    of its range, and all that are vouched for are here.
    """

    head: str
    entries: Entries = field(default_factory=Entries)
    """By start offset."""
    start_offset: Offset = NO_OFFSET
    """Of the first segment; -1 while there is none."""
    last_start: Offset = NO_OFFSET
    """Start offset of the last segment; -1 while there is none."""
    end_offset: Offset = NO_OFFSET
    """The durable frontier: the last offset that was ever held, inclusive; -1 where none was."""
    log_start_offset: Offset = FIRST_OFFSET
    """What lies below is deleted: no reader is given it, though the first segment may still hold it."""
    deletions: tuple[Link, ...] = ()
    """And replacements, since the last entry was published."""
    batch_bytes: int = 0
    """Of all entries."""

    @classmethod
    def empty(cls, topic_id: TopicId, partition: PartitionIndex) -> PartitionCatalog:
        return cls(head=genesis_hash(topic_id, partition))

    @property
    def next_offset(self) -> Offset:
        """Where the next segment starts; 0 in a catalog that never held any, which may also begin higher."""
        return Offset(self.end_offset + 1)

    @property
    def readable_start(self) -> Offset:
        """The first offset that may be read of it; its end where there is none."""
        return max(self.start_offset, self.log_start_offset) if self.entries else self.next_offset

    @property
    def mirrored_end(self) -> Offset:
        """What lies below is in the mirror, whenever that was written last: nothing more is published before."""
        return self.last_start if self.entries else self.next_offset

    def joined_start(self, local_start: Offset) -> Offset:
        """Where this history and a log that begins at `local_start` begin together. What a gap parts from the log does
        not count, nor what is deleted."""
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
        """From the entry on that holds `offset`, or begins above it."""
        return self.entries.reaching(offset)

    def differs_from(self, epochs: Sequence[tuple[LeaderEpoch, Offset]]) -> Offset | None:
        """Where a log with these epochs, in order, has records that cannot be those which are here: from the first
        epoch on that begins below the end, in a segment that was exported in an older one."""
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
        """This catalog with these behind its end; None where they do not go on from there, with its head. That their
        hashes are right has been seen to."""
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
        """With what has happened behind its last entry, but for what that did to the entries."""
        return replace(self, head=linked(self.head, links), deletions=(*self.deletions, *links))

    def at(self, head: str) -> PartitionCatalog:
        """This catalog where a committed event says that its head was this one: where it is another, links are lost
        here, and what was committed behind them is not refused for that."""
        return self if head == self.head or not is_hash(head) else self.with_links([lost_link(head)])

    def unvouched(self) -> str | None:
        """Why its substitutes are not those that the chain vouches for, in a few words; None where they are."""
        return unvouched(self.start_offset, self.entries.unusual(), self.deletions)

    # one segment in the place of others

    def replacement_refusal(self, descriptor: SegmentDescriptor, removed: Sequence[str]) -> str | None:
        """Why this segment may not take the place of those (by their SHA-256, in order), as one sentence; None where it
        may. They are of the same exporter's epoch, by which one sees where a log differs; and the last one stays, for
        its footer is what a log begins behind."""
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
        """The entries that hold these offsets (inclusive) and no others; none where they hold others. No more than may
        be replaced at once, and one."""
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
        """The segments that lie whole below `offset`, or the first of them."""
        found: list[SegmentDescriptor] = []
        for entry in islice(self, count_max):
            if entry.descriptor.next_offset > offset:
                break
            found.append(entry.descriptor)
        return found

    def deleted(self, log_start_offset: Offset, removed: Link) -> PartitionCatalog:
        """This catalog with its beginning moved up to `log_start_offset`, at most its end, where it is below; `removed`
        is linked to the chain, and are those that lie whole below it, where they are still here."""
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
        """What is left of it without its entries and deletions: these, replayed on it, give this catalog."""
        first = self.entries.get(self.start_offset)
        if first is None:
            return self
        return PartitionCatalog(
            head=first.previous_hash,
            end_offset=Offset(self.start_offset - 1) if self.log_start_offset else NO_OFFSET,
            log_start_offset=self.log_start_offset,
        )
