"""The transactions and producers that the next durable segment of a partition continues: those in the last footer.

Promises: a transaction that was decided before the last export is continued only where the log has its marker. So one
whose marker was lost with a log is in no later footer. The states that were written last are remembered, up to
EXPORTED_PRODUCERS_BYTES_MAX.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset, TopicPartition
from headrace.base.limits import EXPORTED_PRODUCERS_BYTES_MAX
from headrace.base.ports import Objects
from headrace.broker.partitions.partition import Partition
from headrace.logs import get_logger
from headrace.metadata.segments import SegmentDescriptor
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.reading import read_or_fetch
from headrace.storage.tier.blocks import read_footer
from headrace.storage.tier.producers import producers_of
from headrace.wire.batches import parse_header
from headrace.wire.transactions import AbortedTransaction, decode_marker

log = get_logger(__name__)


class Told(NamedTuple):
    """The content of a footer, as far as the next segment continues it."""

    producers: ProducerStates
    behind: Sequence[AbortedTransaction]
    """Aborted transactions that begin in its segment or below, and whose markers lie behind it."""


class _Written(NamedTuple):
    key: str
    encoded: str
    behind: Sequence[AbortedTransaction]


class Footers:
    """The last footers of all partitions."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._written: OrderedDict[TopicPartition, _Written] = OrderedDict()
        self._bytes = 0

    def keep(
        self, key: TopicPartition, segment: SegmentDescriptor, encoded: str, aborted: Iterable[AbortedTransaction]
    ) -> None:
        """Remember what was written. `encoded`: the producers' states; `aborted`: all that overlap with the segment."""
        before = self._written.pop(key, None)
        self._written[key] = _Written(segment.key, encoded, _behind(segment, aborted))
        self._bytes += len(encoded) - (0 if before is None else len(before.encoded))
        while self._bytes > EXPORTED_PRODUCERS_BYTES_MAX and len(self._written) > 1:
            _, gone = self._written.popitem(last=False)
            self._bytes -= len(gone.encoded)

    def of(self, key: TopicPartition, segment: SegmentDescriptor) -> Told | None:
        """Return the content of the partition's last footer, which is this segment's; None where it is damaged, or has
        no producers. Blocking: in a worker thread. Raises FileNotFoundError: a store that lacks its last object is not
        mounted, or is another one, and nothing more is put there."""
        known = self._written.get(key)
        if known is None or known.key != segment.key or self._objects.size(segment.key) != segment.object_bytes:
            return self._read(segment)
        producers = producers_of(known.encoded)
        return None if producers is None else Told(producers, known.behind)

    def _read(self, segment: SegmentDescriptor) -> Told | None:
        try:
            footer = read_footer(self._objects, segment)
            producers = producers_of(footer.producers)
        except (CorruptData, EOFError) as error:
            log.error(
                "durable history is damaged, and goes on: see to the object", object=segment.key, reason=str(error)
            )
            return None
        return None if producers is None else Told(producers, _behind(segment, footer.aborted_transactions))


def _behind(segment: SegmentDescriptor, aborted: Iterable[AbortedTransaction]) -> Sequence[AbortedTransaction]:
    return tuple(each for each in aborted if each.last_offset > segment.end_offset)


async def continued(
    partition: Partition, told: Told | None, start: Offset
) -> tuple[ProducerStates, Sequence[AbortedTransaction]]:
    """Return the producers at `start`, where the next segment begins, and the aborted transactions that begin below and
    end above it. They continue the last footer. Where that tells nothing (None), they continue what the partition still
    knows of that time. Raises StorageFailure, OSError."""
    known = [each for each in partition.aborted.between(start, Offset(start + 1)) if each.first_offset < start]
    if told is None:
        before = partition.producers.as_of(start, known)
    else:
        # all others were committed, or their markers are lost with a log: neither has an open transaction any more
        before = told.producers
        known += [each for each in told.behind if await _has_marker(partition, each)]
        before.transactions.keep({(each.producer_id, each.first_offset) for each in known})
        before.transactions.put(
            (each.producer_id, Offset(each.first_offset)) for each in partition.producers.open_below(start)
        )
    before.transactions.put((each.producer_id, Offset(each.first_offset)) for each in known)
    return before, known


async def _has_marker(partition: Partition, aborted: AbortedTransaction) -> bool:
    """Whether the log has the marker that a footer tells of. A copy that began behind the footer need not know that
    transaction."""
    at = Offset(aborted.last_offset)
    if not partition.log.log_start_offset <= at < partition.log.log_end_offset:
        return False
    try:
        found = await read_or_fetch(partition.log, at, 1, Offset(at + 1), at_least_one=True)
    except CorruptData:
        return True  # there is a log, though not a sound one
    if not found:
        return False
    header = parse_header(found)
    if not header.is_control or (header.base_offset, header.producer_id) != (at, aborted.producer_id):
        return False
    marker = decode_marker(bytes(found)[: header.size])
    return marker is not None and not marker.committed
