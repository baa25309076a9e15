"""One partition's log on a `Disk`: see `headrace.storage.engine.logs` for every promise it keeps.

It appends, reads and remembers; its parts flush, cut, copy, drop, clean and examine it. All share `LocalState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Unpack

from headrace.base.errors import CorruptData, FullDisk, NoRoom, StorageFailure
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.storage.engine.appending import Appended
from headrace.storage.engine.cutting import Range
from headrace.storage.engine.faults import Damage
from headrace.storage.engine.files import LogFiles
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.engine.identity import LogConfig
from headrace.storage.engine.placing import place, place_in_time
from headrace.storage.engine.reading import EpochEnd, FoundOffset, Walked
from headrace.storage.log.checkpoints import (
    Checkpoint,
    Stamp,
    encode_checkpoint,
    encode_stamp,
    write_beside,
    write_seal,
)
from headrace.storage.log.compaction.cleanable import LocalCleanable
from headrace.storage.log.compaction.runners import CleaningRunner
from headrace.storage.log.copying import LocalCopying
from headrace.storage.log.flush import Ticket
from headrace.storage.log.flushing import LogFlushing
from headrace.storage.log.names import CHECKPOINT, DAMAGED, LOG, SEALED, SNAPSHOT, STAMP, numbered
from headrace.storage.log.reading import lookups
from headrace.storage.log.recovery.examining import LocalExamining
from headrace.storage.log.retention import LogRetention
from headrace.storage.log.segment import Segment, SegmentInfo
from headrace.storage.log.state import LocalParts, LocalState
from headrace.wire.batches import BatchHeader


class LocalLog(LocalState):
    """Made by `LocalLogEngine.begin_open`."""

    is_open_to_native: Final = True
    copies: Final = 1
    flushed_copies: Final = 1
    storing: Final = None

    def __init__(self, *, cleaning: CleaningRunner, **parts: Unpack[LocalParts]) -> None:
        super().__init__(**parts)
        self._flushing: Final = LogFlushing(self)
        self._retention: Final = LogRetention(self)
        self.copying: Final = LocalCopying(self)
        self.cleaning: Final = LocalCleanable(self, cleaning)
        self.examining: Final = LocalExamining(self)

    def count_again(self) -> None:
        """There are no copies to count."""

    @property
    def files(self) -> LogFiles:
        return self

    def where(self, damage: Damage) -> dict[str, str]:
        base = next((each.segment for each in self.damages if each == damage), damage.start)
        path = numbered(self.directory, base, LOG)
        return {"file": str(path), "kept_as": path.name + DAMAGED}

    @property
    def size_bytes(self) -> int:
        return self.contents.size

    @property
    def epochs(self) -> Sequence[tuple[LeaderEpoch, Offset]]:
        return tuple(self.leader_epochs.entries)

    def append(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        at_once: bool = False,
    ) -> Appended:
        base, stamped = self.log_end_offset, self.config.log_append_time
        if stamped:
            placed = place_in_time(batches, headers, base, leader_epoch, now_ms)
        else:
            placed = place(batches, headers, base, leader_epoch)
        self.write(placed, now_ms, at_once=at_once)
        if leader_epoch != self.leader_epochs.latest:
            self.begin_epoch(leader_epoch, base)
        return Appended(base, placed.end, now_ms if stamped else -1)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        self.begin_epoch(epoch, self.log_end_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        return self.leader_epochs.at(offset)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        return self.leader_epochs.end_of(epoch, self.log_end_offset)

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        end = min(end, self.log_end_offset)
        if start >= end:
            return memoryview(b"")
        assert start >= self.log_start_offset, "the caller answers OFFSET_OUT_OF_RANGE"
        if (newest := self.contents.newest.read(start, max_bytes, end, at_least_one=at_least_one)) is not None:
            return newest
        if self.contents.held_size and end > (written := self.contents.segments[-1].end):
            try:
                self.write_out()
            except NoRoom:
                if start >= written:
                    return self.contents.read_held(start, max_bytes, end, at_least_one=at_least_one)
                end = Offset(written)
        try:
            return self.contents.read(start, max_bytes, end, at_least_one=at_least_one)
        except OSError as error:
            raise StorageFailure(f"The log of {self.directory.name} cannot be read: {error}.") from error

    def batches_from(self, start: Offset, end: Offset = LAST_OFFSET) -> Iterator[Walked]:
        return lookups.batches_from(self.disk, list(self.contents.segments), start, end)

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        start = self.log_start_offset
        return self._look_up(lambda found: lookups.first_at_or_after(self.disk, found, timestamp, start))

    def max_timestamp(self) -> FoundOffset | None:
        return self._look_up(lambda found: lookups.highest(self.disk, found, self.log_start_offset))

    def _look_up(self, look: Callable[[Sequence[Segment]], FoundOffset | None]) -> FoundOffset | None:
        """Look up, again where segments were replaced by compacted ones meanwhile: their files have changed then."""
        contents = self.contents
        while True:
            swaps, failure, found = contents.swaps, None, None
            try:
                found = look(list(contents.segments))
            except (CorruptData, OSError) as error:
                failure = error
            if swaps == contents.swaps:
                break
        if failure is not None:
            raise failure
        return found

    def write_producer_snapshot(self, data: bytes, offset: Offset) -> None:
        assert offset <= self.log_end_offset, "a snapshot is of what is in the log"
        if not self.exists:
            return  # nothing was ever appended, and no directory is there
        self.keep_file(numbered(self.directory, offset, SNAPSHOT))
        self.unsynced.snapshots.append((offset, data))
        self.unsynced.removals += self.snapshots.add(offset)

    def mark_sealed(self, epoch: LeaderEpoch) -> None:
        if self.exists:
            write_seal(self.disk, self.directory, epoch)
            self.sealed_in = epoch

    def forget_seal(self) -> None:
        if self.sealed_in is not None:
            self.sealed_in = None
            self.unsynced.removals.append(self.directory / SEALED)

    def settle_empty(self, producers: bytes | None) -> None:
        assert self.log_end_offset == self.log_start_offset, "nothing was appended"
        assert not self.contents.segments, "nothing was appended"
        try:
            self._settle_empty(producers)
        except OSError as error:
            self.failed = True
            kind = NoRoom if isinstance(error, FullDisk) else StorageFailure
            raise kind(f"The log of {self.directory.name} cannot be made: {error}.") from error

    def _settle_empty(self, producers: bytes | None) -> None:
        """Make the empty log's files durable, the stamp first: a checkpoint says that the stamp is durable.

        Producers wait for this, so it waits for the disk only three times: for the files' contents, the first names,
        and the checkpoint's name.
        """
        disk, end = self.disk, self.log_end_offset
        files: dict[Path, bytes | bytearray] = {}
        if not self.exists:
            disk.make_directory(self.directory)
            stamp = Stamp(identity=self.identity, birth=end, lineage=self.lineage)
            files[self.directory / STAMP] = encode_stamp(stamp)
        if producers is not None:
            files[numbered(self.directory, end, SNAPSHOT)] = producers
        self.checkpoint = Checkpoint.at_segment(end, self.log_start_offset, self.lineage)
        files[self.directory / CHECKPOINT] = encode_checkpoint(self.checkpoint)
        temporary = {path: write_beside(disk, path, data) for path, data in files.items()}
        disk.sync_all(list(temporary.values()), [self.directory.parent])
        checkpoint = temporary.pop(self.directory / CHECKPOINT)
        for path, beside in temporary.items():
            disk.rename(beside, path)
        if temporary:
            disk.sync_directory(self.directory)
        disk.rename(checkpoint, self.directory / CHECKPOINT)
        disk.sync_directory(self.directory)
        self.exists = True
        if producers is not None:
            self.snapshots.add(end)

    def latest_producer_snapshot(self, end: Offset = LAST_OFFSET) -> tuple[Offset, bytes] | None:
        newest = self.snapshots.newest(end)
        if newest is None:
            return None
        for offset, data in reversed(self.unsynced.snapshots):
            if offset == newest:  # it still has to be written
                return offset, data
        return newest, self.snapshots.read(self.disk, newest)

    @property
    def gaps_below(self) -> Offset:
        return Offset(self.contents.gaps_below)

    @property
    def knows_gaps(self) -> bool:
        return self.compaction.note.state.is_known

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config

    def close(self, *, clean: bool = True) -> None:
        self.drop_collected()
        try:
            if clean and not self.failed and self.exists and not self._flushing.is_clean():
                self._flushing.close_cleanly()
        finally:
            self.contents.close()

    # its parts

    def begin_flush(self) -> Ticket | None:
        return self._flushing.begin_flush()

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        return self._flushing.finish_flush(ticket)

    def fail_flush(self, ticket: FlushTicket) -> None:
        self._flushing.fail_flush(ticket)

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> str | None:
        return self.copying.give_way(offset, epoch=epoch, producers=producers)

    def ranges(self) -> list[Range]:
        return self._retention.ranges()

    def closed_segments(self) -> list[SegmentInfo]:
        """Closed segments that are flushed, in offset order. The first call for each may read 12 bytes."""
        return self._retention.closed_segments()

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> Offset:
        return self._retention.apply_retention(
            now_ms, up_to, local=local, by_start_alone=by_start_alone, before_drop=before_drop
        )

    def delete_records_before(self, offset: Offset) -> Offset:
        return self._retention.delete_records_before(offset)
