"""A consumer's position in one partition, and the records and markers that it got. It filters as Java's consumer does.

Nothing here asks a broker: readers of the simulator and of real processes hand over the answers that they get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.sim.cluster.transactions.history import NO_PRODUCER, Logged, Partition, Poll, Seen
from headrace.wire.batches import check_batch, decode_records, iterate_headers
from headrace.wire.transactions import decode_marker


class Reading:
    """The state, as the module says."""

    def __init__(self, reader: str, partition: Partition, *, committed_only: bool, position: int = 0) -> None:
        self.reader = reader
        self.partition = partition
        self.committed_only = committed_only
        self.position = position
        self.stable = self.high_watermark = -1
        """As the last answer told them."""
        self.log: list[Logged] = []
        """Records and markers, where it is not for committed ones only."""

    @property
    def is_at_the_end(self) -> bool:
        """Whether it has got all, and no transaction is open."""
        return self.high_watermark == self.stable == self.position and self.high_watermark >= 0

    def take(
        self,
        data: bytes | memoryview,
        aborted: Iterable[tuple[int, int]],
        *,
        stable: int,
        high_watermark: int,
        answered: int,
        begins: int = 0,
    ) -> Poll:
        """Take an answer of that moment. `aborted`: first offsets and producers, as it lists them.

        Raises CorruptData on anything that is no sound batch; the position is as before then.
        """
        start = self.position
        self.stable, self.high_watermark = stable, high_watermark
        found = list(logged_in(data, start))
        if found:
            self.position = found[-1].offset + 1
        if not self.committed_only:
            self.log += found
        kept = committed_of(found, aborted) if self.committed_only else found
        records = tuple(Seen(each.offset, each.value) for each in kept if each.value is not None)
        return Poll(
            self.reader,
            self.partition,
            self.committed_only,
            start,
            self.position,
            records,
            stable,
            high_watermark,
            answered,
            begins,
        )


def logged_in(data: bytes | memoryview, position: int) -> Iterator[Logged]:
    """The records and markers at and above `position`. Raises CorruptData on anything that is no sound batch."""
    for at, header in iterate_headers(data):
        batch = memoryview(data)[at : at + header.size]
        check_batch(data, at, at + header.size)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        if header.is_control:
            marker = decode_marker(batch)
            commits = None if marker is None else marker.committed
            if header.last_offset >= position:
                yield Logged(header.last_offset, producer_id, header.producer_epoch, None, commits)
            continue
        for record in decode_records(batch):
            if record.offset >= position:
                yield Logged(record.offset, producer_id, header.producer_epoch, record.value)


def committed_of(found: Iterable[Logged], aborted: Iterable[tuple[int, int]]) -> Iterator[Logged]:
    """The records of no aborted transaction. `aborted`: their first offsets and producers, as an answer lists them."""
    waiting = sorted(aborted)
    dropped: set[int] = set()
    for each in found:
        while waiting and waiting[0][0] <= each.offset:
            dropped.add(waiting.pop(0)[1])
        if each.commits is not None:
            if not each.commits:
                dropped.discard(each.producer_id)
        elif each.producer_id not in dropped:
            yield each
