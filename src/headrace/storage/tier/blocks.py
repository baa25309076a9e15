"""Parts of durable segments, as a broker reads them: whole batches, proven, a few megabytes at a time.

Promises: every byte of a block was proven by a CRC32C of the export before it is returned. The footer is proven by its
own CRC32C, and by the catalog's description of the segment. The batches are proven by the footer's checksums, which
cover the fields that a batch's own CRC omits (base offset, leader epoch).

A block here holds batches as they are in the log. Where the segment is packed, it is made of many compressed ones
(`storage.packed_blocks`), which begin and end where it does.

An old footer has no such checksums. Then the batches' own CRCs, offsets without a gap and the footer's leader epochs
prove the same bytes together. The SHA-256 of a whole object is checked by `Store.verify`. Batches of older compactions
that clients cannot read are mended, once they are proven. All calls block: never make them on the event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import HISTORY_BLOCK_BYTES
from headrace.base.ports import Objects, ReadableObjects
from headrace.metadata.segment_keys import is_undecided
from headrace.metadata.segments import SegmentDescriptor
from headrace.storage.engine.reading import FoundOffset
from headrace.storage.tier.ended import ended, undecided_in
from headrace.storage.tier.format import TAIL_GUESS_BYTES, SegmentFooter, decode_footer, footer_length
from headrace.storage.tier.packed import parts_of, read_parts
from headrace.wire.batches import LENGTH_END, BatchHeader, check_batches, iterate_headers, mend_emptied, small_records
from headrace.wire.transactions import AbortedTransaction, overlapping

_HEAD: Final = Struct(">qi11xi")
"""Fields of a batch: base offset, length, last offset delta."""
_base_of = itemgetter(0)
_position_of = itemgetter(1)


class Plan(NamedTuple):
    """How one segment is read: its footer, and the beginnings of its blocks."""

    segment: SegmentDescriptor
    footer: SegmentFooter
    starts: Sequence[int]
    """The first entry of each block in the footer's index."""

    def block_of(self, offset: int) -> int:
        """The number of the block that holds `offset`, which must lie in the segment."""
        entry = bisect_right(self.footer.index, offset, key=_base_of) - 1
        return bisect_right(self.starts, max(0, entry)) - 1


class Block(NamedTuple):
    """Whole, proven batches. Positions are in `data`."""

    base_offset: int
    next_offset: int
    data: bytes
    marks: Sequence[tuple[int, int]]
    """Base offset and position of some of its batches, in order, beginning with the first."""
    aborted: Sequence[AbortedTransaction] = ()
    """Aborted transactions with offsets in it, in the order of their markers."""
    told_to: int = LAST_OFFSET
    """Transactions in it whose markers lie at this offset or above are not in `aborted`."""

    def read(self, start: int, bytes_max: int, end: int, *, at_least_one: bool) -> memoryview:
        """As `PartitionLog.read`: whole batches below `end`, from the one that holds `start` to the block's end."""
        assert self.base_offset <= start < self.next_offset, "it is in this block"
        if start >= end:
            return memoryview(b"")
        data, marks = self.data, self.marks
        at = first = self._position(start)
        if bytes_max >= len(data) - first and self.next_offset <= end:
            return self._part(first, len(data))
        room = bisect_right(marks, first + bytes_max, key=_position_of) - 1
        below = bisect_right(marks, end, key=_base_of) - 1
        at = max(first, marks[min(room, below)][1])
        while at < len(data):
            base, length, delta = _HEAD.unpack_from(data, at)
            following = at + LENGTH_END + length
            if base + delta >= end or (following - first > bytes_max and not (at_least_one and at == first)):
                break
            at = following
        return self._part(first, at)

    def _part(self, first: int, after: int) -> memoryview:
        """A part of the data, copied where it is less than half. A slow receiver of a small part then does not hold the
        whole block in memory.
        """
        part = memoryview(self.data)[first:after]
        return part if 2 * len(part) >= len(self.data) else memoryview(bytes(part))

    def _position(self, offset: int) -> int:
        """Position of the batch that holds `offset`."""
        data, at = self.data, self.marks[bisect_right(self.marks, offset, key=_base_of) - 1][1]
        while True:
            base, length, delta = _HEAD.unpack_from(data, at)
            if base + delta >= offset:
                return at
            at += LENGTH_END + length


def read_footer(objects: ReadableObjects, segment: SegmentDescriptor) -> SegmentFooter:
    """Read a segment's footer, in one range read, or two where the footer is long. Raises CorruptData where it is not
    the segment's, FileNotFoundError, EOFError, StorageFailure.
    """
    size = segment.object_bytes
    tail = _range(objects, segment, size - min(TAIL_GUESS_BYTES, size))
    if (length := footer_length(tail)) > len(tail):
        tail = _range(objects, segment, size - min(length, size))
    footer = decode_footer(tail)
    check_footer(segment, footer)
    return footer


def read_plan(objects: Objects, segment: SegmentDescriptor) -> Plan:
    """As `read_footer`, but without the producers: a plan is kept in memory, and producers may be many."""
    return plan_of(segment, replace(read_footer(objects, segment), producers=None))


def plan_of(segment: SegmentDescriptor, footer: SegmentFooter) -> Plan:
    starts, begun = [0], 0
    for number, entry in enumerate(footer.index):
        if entry.position - begun >= HISTORY_BLOCK_BYTES:
            starts.append(number)
            begun = entry.position
    return Plan(segment, footer, starts)


def _range(objects: ReadableObjects, segment: SegmentDescriptor, start: int) -> bytes:
    return objects.get_range(segment.key, start, segment.object_bytes - start)


def check_footer(segment: SegmentDescriptor, footer: SegmentFooter) -> None:
    """Raises CorruptData where the footer is not that of the catalog's segment."""
    last_epoch = footer.leader_epochs[-1].leader_epoch if footer.leader_epochs else NO_EPOCH
    if segment.last_epoch not in (NO_EPOCH, last_epoch):
        raise CorruptData(f"its footer's last epoch is {last_epoch}, the catalog's {segment.last_epoch}")
    if is_undecided(segment) != bool(footer.undecided_transactions):
        raise CorruptData(
            f"its footer names {len(footer.undecided_transactions)} open transactions, as its key does not"
        )
    for name in ("start_offset", "end_offset", "leader_epoch", "records", "batch_bytes", "crc32c"):
        if getattr(segment, name) != getattr(footer, name):
            raise CorruptData(f"its footer's {name} is {getattr(footer, name)}, the catalog's {getattr(segment, name)}")
    if bool(footer.blocks) != segment.is_packed or footer.blocks[-1:] >= (segment.object_bytes,):
        raise CorruptData(f"its footer tells {len(footer.blocks)} ends of blocks, which its sizes contradict")


def read_block(objects: ReadableObjects, plan: Plan, number: int) -> Block:
    """Read one block in one range read, and prove it. Raises as `read_plan`."""
    footer = plan.footer
    first = plan.starts[number]
    last = plan.starts[number + 1] if number + 1 < len(plan.starts) else len(footer.index)
    entries = footer.index[first:last]
    position = entries[0].position
    has_more = last < len(footer.index)
    end = footer.index[last].position if has_more else footer.batch_bytes
    next_offset = footer.index[last].base_offset if has_more else footer.end_offset + 1
    if footer.blocks:
        data = read_parts(objects, plan.segment.key, parts_of(footer, position, end))
    else:
        data = objects.get_range(plan.segment.key, position, end - position)
    marks = [(entry.base_offset, entry.position - position) for entry in entries]
    if footer.checksums:
        view = memoryview(data)
        for (begin, after), wanted in zip(
            pairwise([*map(_position_of, marks), len(data)]), footer.checksums[first:last], strict=True
        ):
            if crc32c(view[begin:after]) != wanted:
                raise CorruptData(f"its bytes {position + begin} to {position + after} fail their CRC32C")
    else:
        _check_unaided(footer, data, marks[0][0], next_offset)
    if plan.segment.lacks_records:
        data = bytes(mend_emptied(data))
    aborted = overlapping(footer.aborted_transactions, marks[0][0], next_offset)
    told_to = plan.segment.next_offset if undecided_in(footer, next_offset) else LAST_OFFSET
    return Block(marks[0][0], next_offset, data, marks, aborted, told_to)


def told_later(objects: ReadableObjects, plan: Plan, block: Block, later: Iterable[SegmentDescriptor]) -> Block:
    """The block, with the transactions in it that later segments tell to be aborted; `later` are all of these. Raises
    as `read_plan`.
    """
    found = ended(plan.footer, block.next_offset, (read_footer(objects, segment) for segment in later))
    aborted = overlapping(found.aborted, block.base_offset, block.next_offset)
    return block._replace(aborted=aborted, told_to=found.told_to)


def _check_unaided(footer: SegmentFooter, data: bytes, expected: int, next_offset: int) -> None:
    for _, header in check_batches(data):
        epoch = epoch_at(footer, header.base_offset)
        if header.base_offset != expected or header.leader_epoch != epoch:
            raise CorruptData(
                f"a batch of epoch {header.leader_epoch} begins at offset {header.base_offset}, where one of epoch "
                f"{epoch} should at {expected}"
            )
        expected = header.next_offset
    if expected != next_offset:
        raise CorruptData(f"its batches end at offset {expected} where {next_offset} should follow")


def epoch_at(footer: SegmentFooter, offset: int) -> LeaderEpoch:
    """Leader epoch of the batch that holds `offset`."""
    at = bisect_right(footer.leader_epochs, offset, key=lambda entry: entry.start_offset)
    return LeaderEpoch(footer.leader_epochs[max(0, at - 1)].leader_epoch)


def first_at_or_after(objects: Objects, plan: Plan, timestamp: int, start: int) -> FoundOffset | None:
    """The first record at or above offset `start` whose timestamp is at least `timestamp`. Raises as `read_plan`."""
    index = plan.footer.index
    from_time = bisect_right(index, timestamp - 1, key=lambda entry: entry.max_timestamp_ms) - 1
    from_offset = bisect_right(index, start, key=_base_of) - 1
    number = bisect_right(plan.starts, max(0, from_time, from_offset)) - 1
    for each in range(number, len(plan.starts)):
        block = read_block(objects, plan, each)
        for at, header in iterate_headers(block.data):
            if header.last_offset >= start and header.max_timestamp >= timestamp:
                found = _in_batch(block.data[at : at + header.size], header, timestamp, start)
                if found is not None:
                    return found
    return None


def _in_batch(batch: bytes, header: BatchHeader, timestamp: int, start: int) -> FoundOffset | None:
    records = small_records(batch)
    epoch = LeaderEpoch(header.leader_epoch)
    if records is None:  # its first offset: a reader from there misses no record
        return FoundOffset(Offset(max(header.base_offset, start)), header.max_timestamp, epoch)
    for record in records:
        if record.timestamp >= timestamp and record.offset >= start:
            return FoundOffset(Offset(record.offset), record.timestamp, epoch)
    return None


def highest_from(objects: Objects, plan: Plan, start: int) -> int:
    """The highest timestamp of the batches that reach to offset `start` or above. Raises as `read_plan`."""
    return max((header.max_timestamp for header in _headers_from(objects, plan, start)), default=-1)


def _headers_from(objects: Objects, plan: Plan, start: int) -> Iterator[BatchHeader]:
    for number in range(plan.block_of(start), len(plan.starts)):
        for _, header in iterate_headers(read_block(objects, plan, number).data):
            if header.last_offset >= start:
                yield header
