"""Compacts durable segments by key: of each key the last record stays, and a tombstone for as long as it is owed.

Promises: what is stored holds every offset of what it is made of, in batches that follow on one another without a gap:
a batch whose records are all replaced stays as an empty one, and neighbours of these, of one leader epoch, become one,
so that whoever reads by offsets notices nothing but that records are missing. What is read was proven by SHA-256, and
what is stored is read back. The same at the same time always gives the same object. Never publishes it; all of it
blocks.

A tombstone goes only where nothing of its key can be left below it: who compacts goes from the first segment on, and
stops at the first that cannot be compacted (decision 0042). More keys than fit in memory take several passes, each from
the first segment on up to the end of the stretch of which it has the keys: so a key's last record below that end is in
this pass's map, or in an earlier one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from headrace.base.ids import LeaderEpoch
from headrace.base.limits import (
    COMPACTION_KEYS_MAX,
    DURABLE_SEGMENT_BYTES_MAX,
    MERGE_READ_BYTES_MAX,
    SEGMENTS_REPLACED_AT_ONCE_MAX,
)
from headrace.base.ports import Objects
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.log.compaction.keeping import Keeping, add_last, sealed
from headrace.storage.tier.merge import made_of, read_proven
from headrace.wire.batches import BatchHeader, check_batches

DELTA_MAX: Final = 2**31 - 2
"""Offsets that one batch can hold, less one."""


def compactable(
    catalog: PartitionCatalog, *, bytes_max: int = DURABLE_SEGMENT_BYTES_MAX
) -> Iterator[tuple[SegmentDescriptor, ...]]:
    """All segments but the last, in offset order, in groups that may each become one: neighbours of one exporter's
    epoch, with at most `bytes_max` of batches together, or one alone."""
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
    read = sum(each.object_bytes for each in group) + one.object_bytes
    is_like = group[-1].leader_epoch == one.leader_epoch
    return is_like and size <= bytes_max and read <= MERGE_READ_BYTES_MAX and len(group) < SEGMENTS_REPLACED_AT_ONCE_MAX


class Keys:
    """For one pass: the last offset of each key in a stretch of history, as far as they fit in memory."""

    def __init__(self, start: int, *, below: int = 2**63 - 1, keys_max: int = COMPACTION_KEYS_MAX) -> None:
        """`start`: where history begins, or how far the pass before has read; from `below` on nothing is read."""
        self._last: dict[bytes, int] = {}
        self._below = below
        self._keys_max = keys_max
        self.read_to = start
        """Where the stretch ends."""
        self.is_full = False
        """What lies behind is for another pass."""

    def read(self, objects: Objects, segment: SegmentDescriptor) -> None:
        """The next one. Raises as `read_proven`."""
        for header, raw in _batches(read_proven(objects, segment)[0], segment):
            if header.next_offset <= self.read_to:
                continue
            if header.next_offset > self._below:
                return
            if self._last and len(self._last) + header.count > self._keys_max:
                self.is_full = True
                return
            add_last(self._last, header, raw)
            self.read_to = header.next_offset

    def keeping(self, *, now_ms: int, delete_retention_ms: int) -> Keeping:
        """What may go below the stretch's end, once all passes before are through, and shown by the mirror. For all
        segments, in order, from the first: see `Keeping`."""
        return Keeping(
            last=self._last,
            clean_to=self.read_to,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
            is_shown_later=True,
        )


def compact_segments(
    objects: Objects,
    segments: Sequence[SegmentDescriptor],
    keeping: Keeping,
    *,
    made_in: LeaderEpoch,
    joins: bool = True,
) -> SegmentDescriptor | None:
    """One segment of what stays of these, which follow on one another; None where one alone stays as it is, or, without
    `joins`, all do. `made_in` as in `merge_segments`, and raises as that."""
    read = [read_proven(objects, segment) for segment in segments]
    there = zip(segments, read, strict=True)
    batches = chain.from_iterable(_batches(held, segment) for segment, (held, _) in there)
    kept: list[bytes] = []
    is_other = joins and len(segments) > 1
    for header, raw in batches:
        kept.append(keeping.kept(header, raw))
        is_other = is_other or kept[-1] is not raw
    if not is_other:
        return None
    tell_all = all(footer.producers is not None for _, footer in read)
    stays = b"".join(_joined(kept) if tell_all else kept)
    return made_of(objects, segments, [stays], [footer for _, footer in read], made_in=made_in)


def _batches(batches: bytes, segment: SegmentDescriptor) -> Iterator[tuple[BatchHeader, bytes]]:
    for at, header in check_batches(batches, gaps_below=segment.next_offset):
        yield header, batches[at : at + header.size]


def _joined(batches: Iterable[bytes]) -> Iterator[bytes]:
    """With one empty batch for empty neighbours of one leader epoch: of producers the footers tell."""
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
    """Nobody's batch, with the offsets of both."""
    return one._replace(
        attributes=0,
        last_offset_delta=other.last_offset - one.base_offset,
        base_timestamp=min(one.base_timestamp, other.base_timestamp),
        max_timestamp=max(one.max_timestamp, other.max_timestamp),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
