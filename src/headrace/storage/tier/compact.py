"""Compacts durable segments by key: the last record of each key stays, and a tombstone for its time.

Records of aborted transactions go, and their keys replace nothing. A marker goes `delete.retention.ms` after a round
that found no batch of its transaction, as in logs (`storage.decided`).

Promises:
- The result holds every offset of its sources, in batches without a gap between them. A batch whose records are all
  replaced stays as an empty one, and neighbouring empty ones of one leader epoch become one. So a reader by offsets
  notices only that records are missing.
- A footer tells of an aborted transaction as long as the marker is there, which goes last.
- Sources are proven by SHA-256, and the stored object is read back.
- Equal input at one time always gives one and the same object.

Never publishes the result. All of it blocks.

A tombstone is removed only where no record of its key can be left below it. So compaction starts at the first segment,
and stops at the first that cannot be compacted (decision 0042). If the keys do not fit in memory, it takes several
passes. Each starts at the first segment and reaches the end of the stretch whose keys it has. So a key's last record
below that end is in the map of this pass, or of an earlier one. No pass goes beyond a transaction whose end history
does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch
from headrace.base.limits import (
    COMPACTION_KEYS_MAX,
    DURABLE_SEGMENT_BYTES_MAX,
    MERGE_READ_BYTES_MAX,
    SEGMENTS_REPLACED_AT_ONCE_MAX,
)
from headrace.base.ports import Objects
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.decided import Decided
from headrace.storage.keeping import Keeping, add_last, sealed
from headrace.storage.tier.blocks import read_footer
from headrace.storage.tier.ended import Ended, ended
from headrace.storage.tier.format import SegmentFooter
from headrace.storage.tier.merge import made_of, read_bytes_of, read_proven
from headrace.wire.batches import BatchHeader, check_batches, parse_header
from headrace.wire.compression import Compression
from headrace.wire.transactions import marker_in

DELTA_MAX: Final = 2**31 - 2
"""Maximum number of offsets in one batch, less one."""


def compactable(
    catalog: PartitionCatalog, *, bytes_max: int = DURABLE_SEGMENT_BYTES_MAX
) -> Iterator[tuple[SegmentDescriptor, ...]]:
    """All segments but the last, in offset order, in groups that may each become one. A group is a single segment, or
    neighbours of one exporter's epoch with at most `bytes_max` bytes of batches together.
    """
    group: list[SegmentDescriptor] = []
    for entry in catalog:
        one = entry.descriptor
        if one.start_offset == catalog.last_start:
            break
        if group and not _fits(group, one, bytes_max):
            yield tuple(group)
            group = []
        group.append(one)
    if group:
        yield tuple(group)


def _fits(group: Sequence[SegmentDescriptor], one: SegmentDescriptor, bytes_max: int) -> bool:
    size = sum(each.batch_bytes for each in group) + one.batch_bytes
    read = sum(read_bytes_of(each) for each in group) + read_bytes_of(one)
    is_like = group[-1].leader_epoch == one.leader_epoch
    return is_like and size <= bytes_max and read <= MERGE_READ_BYTES_MAX and len(group) < SEGMENTS_REPLACED_AT_ONCE_MAX


class Keys:
    """The last offset of each key in a stretch of history, as far as they fit in memory, for one pass."""

    def __init__(self, start: int, *, below: int = 2**63 - 1, keys_max: int = COMPACTION_KEYS_MAX) -> None:
        """`start`: the start of history, or the end of the previous pass's stretch. From `below` on nothing is read."""
        self._last: dict[bytes, int] = {}
        self._keys_max = keys_max
        self.below = below
        """The offset from which on nothing is read: as given, or where a transaction begins whose end is unknown."""
        self.read_to = start
        """End of the stretch."""
        self.is_full = False
        """The memory is full. Later keys are left to another pass."""
        self._begun: dict[int, int] = {}
        """Producers with records of a transaction in the stretch whose marker has not come, with their offsets."""

    @property
    def is_read(self) -> bool:
        """Whether the stretch is full, and the markers of all its transactions were seen."""
        return self.is_full and not self._begun

    def read(self, objects: Objects, segment: SegmentDescriptor, history: PartitionCatalog | None = None) -> None:
        """Read the next segment. `history` holds those behind it. Raises as `read_proven`, and CorruptData where a
        transaction was aborted and no footer tells that: its keys would replace those of others for ever."""
        batches, footer = read_proven(objects, segment)
        told = _ended(objects, segment, footer, history)
        self.below = min([self.below, *(each.first_offset for each in told.undecided)])
        decided = Decided(told.aborted)
        for header, raw in _batches(batches, segment):
            if header.next_offset <= self.read_to:
                continue
            if header.next_offset > self.below or self.is_read:
                return
            if self._last and len(self._last) + header.count > self._keys_max and not decided.is_aborted(header):
                self.is_full = True
            self._check_told(header, raw, decided)
            if not self.is_full:
                add_last(self._last, header, raw, decided)
                self.read_to = header.next_offset

    def _check_told(self, header: BatchHeader, raw: bytes, decided: Decided) -> None:
        if not (header.is_transactional and header.count):
            return
        if not header.is_control:
            if not (self.is_full or decided.is_aborted(header)):
                self._begun.setdefault(header.producer_id, header.base_offset)
            return
        first, marker = self._begun.pop(header.producer_id, None), marker_in(raw, 0, header)
        if first is not None and marker is not None and not marker.committed:
            raise CorruptData(
                f"The transaction of producer {header.producer_id} from offset {first} was aborted at "
                f"{header.base_offset}, and no footer of durable history tells that: it is not compacted."
            )

    def keeping(self, *, now_ms: int, delete_retention_ms: int) -> Keeping:
        """The rule for records below the stretch's end, once all earlier passes are complete and published in the
        mirror. It must be applied to all segments, in order, from the first: see `Keeping`.
        """
        return Keeping(
            last=self._last,
            clean_to=self.read_to,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
            decided=Decided(),
            is_shown_later=True,
        )


def compact_segments(
    objects: Objects,
    segments: Sequence[SegmentDescriptor],
    keeping: Keeping,
    *,
    made_in: LeaderEpoch,
    joins: bool = True,
    codec: Compression = Compression.NONE,
    history: PartitionCatalog | None = None,
) -> SegmentDescriptor | None:
    """One segment of the kept records of these, which must be contiguous. Returns None where a single one stays as it
    is, or, without `joins`, all do. `history` holds the segments behind these. `made_in`, `codec` and errors: as in
    `merge_segments`.
    """
    read = [read_proven(objects, segment) for segment in segments]
    footers = [footer for _, footer in read]
    tell_all = all(footer.producers is not None for footer in footers)
    kept: list[bytes] = []
    unmarked: set[int] = set()
    is_other = joins and len(segments) > 1
    for segment, (held, footer) in zip(segments, read, strict=True):
        if keeping.decided is not None:
            keeping.decided.tell(_ended(objects, segment, footer, history).aborted)
        for header, raw in _batches(held, segment):
            one = keeping.kept(header, raw)
            kept.append(_of_nobody(header, one) if tell_all else one)
            is_other = is_other or kept[-1] is not raw
            if header.is_control and one is not raw and not parse_header(one).count:
                unmarked.add(header.base_offset)
    if not is_other:
        return None
    stays = b"".join(_joined(kept) if tell_all else kept)
    return made_of(objects, segments, [stays], footers, made_in=made_in, codec=codec, unmarked=unmarked)


def _ended(
    objects: Objects, segment: SegmentDescriptor, footer: SegmentFooter, history: PartitionCatalog | None
) -> Ended:
    """How its transactions ended. Raises as `read_proven`."""
    return ended(footer, segment.next_offset, () if history is None else _footers_behind(objects, segment, history))


def _footers_behind(objects: Objects, segment: SegmentDescriptor, history: PartitionCatalog) -> Iterator[SegmentFooter]:
    for entry in history.reaching(segment.next_offset):
        try:
            yield read_footer(objects, entry.descriptor)
        except EOFError as error:
            raise CorruptData(f"Object '{entry.descriptor.key}' is shorter than it was: {error}") from error


def _batches(batches: bytes, segment: SegmentDescriptor) -> Iterator[tuple[BatchHeader, bytes]]:
    for at, header in check_batches(batches, gaps_below=segment.next_offset):
        yield header, batches[at : at + header.size]


def _of_nobody(header: BatchHeader, kept: bytes) -> bytes:
    """Returns an empty batch of a transaction as one of no producer, so that the marker can go, and any other as it is.
    The footers keep the producers' state.
    """
    if not header.is_transactional or (left := parse_header(kept)).count:
        return kept
    return sealed(_spanning(left, left), b"")


def _joined(batches: Iterable[bytes]) -> Iterator[bytes]:
    """The batches, with one empty batch for empty neighbours of one leader epoch. The footers keep the producers'
    state.
    """
    empty: BatchHeader | None = None
    waiting = b""
    for raw in batches:
        [(_, header)] = check_batches(raw, gaps_below=2**63 - 1)
        if header.count or header.is_control:
            yield waiting
            yield raw
            empty, waiting = None, b""
        elif empty is not None and _join(empty, header):
            empty = _spanning(empty, header)
            waiting = sealed(empty, b"")
        else:
            yield waiting
            empty, waiting = header, raw
    yield waiting


def _join(one: BatchHeader, other: BatchHeader) -> bool:
    return one.leader_epoch == other.leader_epoch and other.last_offset - one.base_offset <= DELTA_MAX


def _spanning(one: BatchHeader, other: BatchHeader) -> BatchHeader:
    """A batch of no producer, with the offsets of both."""
    return one._replace(
        attributes=0,
        last_offset_delta=other.last_offset - one.base_offset,
        base_timestamp=min(one.base_timestamp, other.base_timestamp),
        max_timestamp=max(one.max_timestamp, other.max_timestamp),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
