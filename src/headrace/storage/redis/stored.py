"""A log's batches as Redis has them: read one after the other, and looked through for a time.

Promises: it knows nothing of what is on its way to Redis, and changes nothing. All calls block: they are for worker
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.engine.faults import Unreachable
from headrace.storage.engine.reading import FoundOffset
from headrace.storage.redis.cleaning import Entries
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.server_side.functions import IndexEntry
from headrace.wire.batches import check_batch, parse_header, small_records


class StoredBatches:
    """All raise Unreachable. `entries` asks Redis. `known_end`: the end that Redis is known to have."""

    def __init__(self, name: str, entries: Entries, known_end: Callable[[], Offset]) -> None:
        self._name: Final = name
        self._entries: Final = entries
        self._known_end: Final = known_end

    def since(self, start: int) -> Iterator[bytes]:
        """Return the batches from the one that holds `start`."""
        try:
            for _, batch in self._entries(start, self._known_end()):
                yield batch
        except RedisFailure as error:
            raise Unreachable(f"The log of {self._name} cannot be read: {error}") from error

    def first_at(self, timestamp: int, marks: Sequence[IndexEntry], start: Offset, end: Offset) -> FoundOffset | None:
        """Return the first record from `start` on that is at or after `timestamp`, in batches that begin below `end`.
        `marks`: the time index, which spares ranges that are older."""
        begun = start
        for mark in marks:
            if mark.timestamp >= timestamp and (found := self._first_in(begun, mark.end, timestamp, start)) is not None:
                return found
            begun = max(begun, mark.end)
        return self._first_in(begun, end, timestamp, start)

    def newest(self, marks: Sequence[IndexEntry], start: Offset, end: Offset) -> FoundOffset | None:
        """Return the first record of the highest timestamp. As `first_at`."""
        highest = max([mark.timestamp for mark in marks[1:]], default=-1)
        if marks:  # its range may begin below the log's start, with records that are deleted
            highest = max(highest, self._highest(start, marks[0].end))
        highest = max(highest, self._highest(max(start, marks[-1].end) if marks else start, end))
        return self.first_at(highest, marks, start, end) if highest >= 0 else None

    def _highest(self, start: int, end: int) -> int:
        """The highest timestamp of the records from offset `start` on, in batches that begin below `end`; -1: none."""
        highest = -1
        for batch in self.since(start):
            header = parse_header(batch)
            if header.base_offset >= end:
                break
            records = small_records(batch) if header.base_offset < start else None
            if records is None:
                highest = max(highest, header.newest_time)
            else:
                highest = max([highest, *(record.timestamp for record in records if record.offset >= start)])
        return highest

    def _first_in(self, begun: Offset, end: Offset, timestamp: int, start: Offset) -> FoundOffset | None:
        """The first record in a range at or after `timestamp`, and not below `start`."""
        for batch in self.since(begun):
            header = check_batch(batch, compacted=True)
            if header.base_offset >= end:
                return None
            if header.max_timestamp < timestamp:
                continue
            epoch = LeaderEpoch(header.leader_epoch)
            records = small_records(batch)
            if records is None:
                return FoundOffset(Offset(max(header.base_offset, begun)), header.max_timestamp, epoch)
            for record in records:
                if record.timestamp >= timestamp and record.offset >= start:
                    return FoundOffset(Offset(record.offset), record.timestamp, epoch)
        return None
