"""Opening a partition's directory after whatever happened to it.

After a power cut, the disk may hold:
- any subset of the bytes written since the last sync, with the last write torn;
- any subset of the names made, renamed or removed since the directory was last synced.

So nothing above the durable recovery point is believed. From there every batch must be whole, pass its CRC, continue
the offsets and not fall in epoch. The log ends before the first batch that does not, and everything behind it is
removed. The accepted batches are then synced, names included, and only after that do they count.

| found | done |
|---|---|
| no directory | an empty log |
| no readable stamp, and nothing here was ever flushed; another topic's stamp | set aside; an empty log |
| no readable stamp of what was flushed | StorageFailure: the log's identity is unknown |
| another disk's or assignment's stamp | StampMismatch: recovery does not decide |
| no readable checkpoint | everything is suspect, from the birth offset or, where one was there, the first segment on |
| closed segments below the recovery point | believed; those below the log's start are removed |
| a swap: a compacted segment that was about to replace others | it replaces them, whatever is left of them |
| gaps between batches, or batches with records missing | accepted only below the offset in the note on compaction |
| fewer bytes than the recovery point says | DamagedLog: what was flushed is gone |
| bytes above it | checked, cut at the first bad batch; later segments removed |
| an end below what the journal holds | the journal's batches are put there; DamagedLog where they do not follow it |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.limits import UNVOUCHED_BYTES_MAX
from headrace.base.ports import Disk, File
from headrace.logs import get_logger
from headrace.storage.engine.epochs import LeaderEpochs
from headrace.storage.engine.faults import DamagedLog
from headrace.storage.log.checkpoints import (
    Checkpoint,
    Compacted,
    Stamp,
    checkpoint_of,
    decode_checkpoint,
    decode_compacted,
    encode_checkpoint,
    encode_stamp,
    full_disks_told,
    mark_doubt,
    read_file,
    write_again,
    write_file,
)
from headrace.storage.log.compaction.planning import finish_swap
from headrace.storage.log.journal.journal import Recoverable
from headrace.storage.log.names import (
    CHECKPOINT,
    CLEANED,
    COMPACTION,
    DOUBT,
    EPOCHS,
    INDEX,
    LOG,
    SNAPSHOT,
    STAMP,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    numbered,
    offsets_of,
    segment_files,
    segment_paths,
    swap_path,
    swaps_of,
)
from headrace.storage.log.reading.lookups import headers_from
from headrace.storage.log.recovery.damage import DAMAGES, Examination, read_damages
from headrace.storage.log.recovery.replaced import has_replaced
from headrace.storage.log.recovery.tail import UnacceptedTail
from headrace.storage.log.scan import CHECK_CHUNK_BYTES, checked_batches, headers_in
from headrace.storage.log.segment import INDEX_ENTRY, TIME_ENTRY, Segment, SegmentDamage
from headrace.wire.batches import BatchHeader, check_batches, iterate_headers
from headrace.wire.transactions import ABORTED

log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Recovered:
    """A log as it stands on the disk, all of it durable."""

    segments: list[Segment] = field(default_factory=list)
    """Appends may continue in the last segment if its indexes are in memory."""
    start: Offset
    end: Offset
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    epochs_are_new: bool = False
    """The epochs file lacks the latest entries."""
    checkpoint: Checkpoint | None = None
    lineage: int = 0
    """Journal entries of any other lineage are void."""
    snapshots: list[Offset] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    """Bases of the segments beside which aborted transactions are written."""
    compacted: Compacted = field(default_factory=Compacted)
    read_only: str | None = None
    """Why nothing may be appended: the remaining records can be read, but some flushed ones are missing. None: appends
    are allowed.
    """
    was_closed: bool = True
    """Its last life ended with a clean close, or wrote nothing that is not vouched for."""
    has_replaced: bool = False
    """Contents from before `begin_anew` are kept beside it."""


def recover(
    disk: Disk, directory: Path, stamp: Stamp, index_interval: int, journaled: Sequence[Recoverable] = ()
) -> Recovered:
    """Recover one stamped directory, with the journal's entries of it. Raises DamagedLog, OSError."""
    recovery = Recovery(disk, directory, stamp, index_interval, journaled)
    recovery.read()
    return recovery.finish()


class Recovery:
    """One recovery in two steps: `read` uses the processor, and `finish` waits for the disk."""

    def __init__(
        self, disk: Disk, directory: Path, stamp: Stamp, index_interval: int, journaled: Sequence[Recoverable]
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.stamp = stamp
        self.interval = index_interval
        self.names = disk.list_directory(directory)
        self.checkpoint = self._read_checkpoint()
        """The checkpoint of an earlier life. None: nothing is known."""
        self.known = self.checkpoint is not None
        self.point = self.checkpoint or self._lowest_point()
        self.changed = not self.known
        """Something was accepted that nothing vouched for."""
        self.names_are_new = not self.known
        """A name was accepted that nothing vouched for."""
        self.rewrites = DOUBT in self.names
        """The small files have to be written again."""
        if self.checkpoint is None:  # only the highest lineage is not void
            self.point = replace(self.point, lineage=max([stamp.lineage, *(each.lineage for each in journaled)]))
        self.journaled = [each for each in journaled if each.lineage == self.point.lineage]
        self.to_meet = deque(sorted(self.journaled, key=lambda each: each.base))
        """Journal entries that may still overlap the batches to come."""
        self.anew: dict[int, list[tuple[int, int]]] = {}
        """Byte ranges of batches that the journal holds too, by the base of their segment."""
        self.damages = self._read_damages()
        """Noted damage by segment and position."""
        self.epochs_are_lost = False
        self.log = Recovered(
            start=self.point.log_start,
            end=self.point.recovery_point,
            checkpoint=self.checkpoint,
            lineage=self.point.lineage,
            has_replaced=has_replaced(self.names),
        )
        self.suspect: list[Segment] = []
        self.surplus: list[int] = []
        """Bases of segments that do not continue where the log ends."""
        self.lacking: list[Recoverable] = []
        """Journal entries that the log's own files lack at their end."""
        self.mended: list[tuple[Segment, int, memoryview]] = []
        """Batches from the journal that the log's own files lack in their middle: segment, position, batches."""

    def read(self) -> None:
        """Accept the sound batches, and cut the rest. Raises DamagedLog, with nothing cut; OSError."""
        self._finish_swaps()
        self._remove_leftovers()
        self.log.compacted = self._read_compacted()
        self._read_epochs()
        bases = offsets_of(self.names, LOG)
        self._believe([base for base in bases if base < self.point.segment])
        self._check([base for base in bases if base >= self.point.segment])
        self._ask_journal()
        self._cut()
        self._take_from_journal()
        self._read_snapshots()
        self._read_aborted()
        self.log.start = min(self.log.start, self.log.end)
        self.log.was_closed = not self.must_sync
        self.log.epochs.cut_below(self.log.start)

    @property
    def must_sync(self) -> bool:
        return self.changed or self.rewrites

    def finish(self) -> Recovered:
        """Make the accepted batches durable: only then do they count. Raises OSError."""
        if self.must_sync:
            try:
                if self._is_plain():
                    self._make_contents_durable()
                else:
                    self._make_durable()
            except OSError:
                mark_doubt(self.disk, self.directory)
                raise
        return self.log

    # reading the directory

    def _read_checkpoint(self) -> Checkpoint | None:
        if CHECKPOINT not in self.names:
            return None
        try:
            return decode_checkpoint(read_file(self.disk, self.directory / CHECKPOINT))
        except CorruptData:
            return None

    def _lowest_point(self) -> Checkpoint:
        """The point where nothing is vouched for. Where the checkpoint cannot be read, that includes the log's start.
        The first segment shows the start, since none is removed before a checkpoint says so.
        """
        birth, bases = self.stamp.birth, offsets_of(self.names, LOG)
        first = Offset(max(birth, bases[0])) if bases and CHECKPOINT in self.names else birth
        return Checkpoint.at_segment(first, first)

    def _read_damages(self) -> dict[tuple[int, int], SegmentDamage]:
        if DAMAGES not in self.names:
            return {}
        noted = [damage for damage in read_damages(self.disk, self.directory) if damage.start >= damage.segment]
        return {(damage.segment, damage.position): damage for damage in noted}

    def _read_epochs(self) -> None:
        """Read the epochs. Entries above the recovery point come from the batches there."""
        if EPOCHS in self.names:
            try:
                self.log.epochs = LeaderEpochs.decode(read_file(self.disk, self.directory / EPOCHS))
            except CorruptData as error:
                self.epochs_are_lost = self.known
                self.rewrites = True
                log.warning("leader epochs are read from the batches anew", log=str(self.directory), reason=str(error))
        self.log.epochs.cut_from(self.point.recovery_point)

    def _read_snapshots(self) -> None:
        for offset in offsets_of(self.names, SNAPSHOT):
            if offset <= self.log.end:
                self.log.snapshots.append(Offset(offset))
            else:
                self._remove(numbered(self.directory, offset, SNAPSHOT))

    def _read_aborted(self) -> None:
        """Find the indexes of aborted transactions. One that is cut is built again from the batches, with the state of
        the producers: no snapshot is believed then.
        """
        self.log.aborted = aborted_beside(self.names, self.log.segments)
        for base in self.log.aborted:
            path = numbered(self.directory, base, TRANSACTION_INDEX)
            if self.disk.size(path) % ABORTED.size:
                log.warning("aborted transactions are read from the batches anew", path=str(path))
                for offset in self.log.snapshots:
                    self._remove(numbered(self.directory, offset, SNAPSHOT))
                self.log.snapshots.clear()

    def _read_compacted(self) -> Compacted:
        """The note on compaction. If it cannot be read, any closed segment may have gaps, provided that a checkpoint
        tells which ones are closed. Raises DamagedLog where there is no checkpoint either.
        """
        if COMPACTION not in self.names:
            return Compacted()
        try:
            return decode_compacted(read_file(self.disk, self.directory / COMPACTION))
        except CorruptData as error:
            if not self.known:
                raise DamagedLog(f"{self.directory.name}: {error} Nor is there a checkpoint.") from error
            log.error(
                "what says how far a log was compacted is damaged: where its topic is compacted, durable history below "
                "the log's start is neither shown nor deleted until it has been compacted again",
                log=str(self.directory),
                reason=str(error),
            )
            return Compacted(gaps_below=self.point.segment, is_known=False, is_mended=False)

    def _finish_swaps(self) -> None:
        """Finish swaps: each was whole and durable before it had that name."""
        swaps = swaps_of(self.names)
        for base, end in swaps:
            bases = [each for each in offsets_of(self.names, LOG) if base <= each < end]
            finish_swap(self.disk, self.directory, swap_path(self.directory, base, end), sorted({base, *bases}))
            self.rewrites = True
        if swaps:
            self.names = self.disk.list_directory(self.directory)

    def _remove_leftovers(self) -> None:
        """Remove temporary files, and indexes of segments that are gone."""
        bases = set(offsets_of(self.names, LOG))
        orphans = [
            numbered(self.directory, base, suffix)
            for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX)
            for base in offsets_of(self.names, suffix)
            if base not in bases
        ]
        temporary = [self.directory / name for name in self.names if name.endswith((TEMPORARY, CLEANED))]
        for path in orphans + temporary:
            self._remove(path)
        if orphans or temporary:
            self.names = self.disk.list_directory(self.directory)

    def _remove(self, path: Path) -> None:
        self.disk.remove(path)
        self.rewrites = True

    def _remove_segment(self, base: int) -> None:
        for path in segment_files(self.directory, base):
            if self.disk.exists(path):
                self._remove(path)

    # below the recovery point

    def _believe(self, bases: list[int]) -> None:
        """Accept the closed segments with their sizes as they are. No byte is read."""
        for base, end in pairwise([*bases, self.point.segment]):
            if end <= self.point.log_start:
                self._remove_segment(base)
                continue
            size = self.disk.size(segment_paths(self.directory, base)[0])
            segment = Segment.closed(self.directory, base, end, size)
            segment.damages = tuple(damage for damage in self.damages.values() if damage.segment == base)
            self.log.segments.append(segment)
            self._check_indexes(segment)
        first = self.log.segments[0].base if self.log.segments else self.point.segment
        if first > self.point.log_start:
            reason = f"The log starts at {self.point.log_start}, but its first segment at {first}."
            if not self.log.segments:
                raise DamagedLog(f"{self.directory.name}: {reason}")
            lead_in(self.log.segments[0], self.point.log_start, reason)
        if self.epochs_are_lost:
            self._take_epochs(headers_from(self.disk, self.log.segments, self.point.log_start))

    def _take_epochs(self, headers: Iterable[BatchHeader]) -> None:
        """Take the epochs of batches below the recovery point. Raises DamagedLog."""
        try:
            for header in headers:
                self.log.epochs.assign(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
        except CorruptData as error:
            raise DamagedLog(f"{self.directory.name}: {error}") from error

    def _check_indexes(self, segment: Segment) -> None:
        """Rebuild lost indexes from the batches."""
        _, index, times = segment_paths(self.directory, segment.base)
        if index.name in self.names and times.name in self.names:
            whole = self.disk.size(index) % INDEX_ENTRY.size == 0 and self.disk.size(times) % TIME_ENTRY.size == 0
            if whole:
                return
        examination = self._examine(segment)
        segment.damages, segment.size = tuple(examination.found), examination.size
        twin = examination.twin
        twin.close_indexes()
        self._write_indexes(twin)
        self.rewrites = True

    def _examine(self, segment: Segment) -> Examination:
        """Read all of a segment whose indexes are lost. Damage that was unknown is noted."""
        segment.index = bytearray()  # no index to compare with
        examination = Examination(
            self.disk,
            segment,
            gaps_below=self.log.compacted.gaps_below,
            interval=self.interval,
            known=list(self.damages.values()),
        )
        examination.run()
        self.damages |= {(damage.segment, damage.position): damage for damage in examination.found}
        segment.index = None
        return examination

    def _write_indexes(self, segment: Segment) -> None:
        assert segment.index is not None
        assert segment.times is not None
        _, index, times = segment_paths(self.directory, segment.base)
        write_file(self.disk, index, segment.index)
        write_file(self.disk, times, segment.times)

    # above the recovery point

    def _check(self, bases: list[int]) -> None:
        """Accept the batches that are sound and continue the log. The rest is cut later. Raises DamagedLog."""
        if self.point.position and (not bases or bases[0] != self.point.segment):
            raise DamagedLog(f"{self.directory.name}: the segment of the recovery point is gone.")
        if not (self.known or bases) and CHECKPOINT in self.names:
            raise DamagedLog(f"{self.directory.name}: the checkpoint cannot be read, and nothing else tells its end.")
        expected, gaps_below = self.point.segment, self.log.compacted.gaps_below
        sound = True
        for base in bases:
            if sound and expected <= base <= max(expected, gaps_below):
                if self.suspect:
                    self.suspect[-1].end = base
                sound = self._check_segment(base)
                expected = self.log.end
            else:
                sound = False
                self.surplus.append(base)
        if self.log.end < gaps_below:  # compaction only works on flushed batches
            if not sound:
                raise DamagedLog(f"{self.directory.name}: what was compacted is damaged at offset {self.log.end}.")
            self.log.end = gaps_below

    def _cut(self) -> None:
        """Remove everything that was not accepted, once nothing is known to be missing. Sound batches among it are kept
        beside the log, unless the journal has the batches for that place.
        """
        for segment, position, batches in self.mended:
            self._put_back(segment, position, batches)
        tail = UnacceptedTail(self.disk, self.directory, self.suspect[-1] if self.suspect else None, self.surplus)
        if not self.lacking and tail.holds_sound_batches():
            tail.keep()
            log.warning(
                "a log was cut at a batch that is not sound, though sound ones follow: after a power cut they were not "
                "acknowledged, else the disk is damaged; they are kept in the files named *.damaged",
                log=str(self.directory),
                end=self.log.end,
            )
        if tail.cut():
            self.rewrites = True
        for base in self.surplus:
            self._remove_segment(base)

    def _put_back(self, segment: Segment, position: int, batches: memoryview) -> None:
        log.warning("a damaged part of a log is mended from the journal", path=str(segment.path), position=position)
        file = self.disk.open(segment.path)
        try:
            with full_disks_told():
                file.write_at(position, [batches])
        finally:
            file.close()
        self.changed = self.rewrites = True

    def _check_segment(self, base: int) -> bool:
        """Check one segment from the recovery point, or from its start. Returns False where it was cut."""
        segment = Segment(self.directory, base)
        file = self.disk.open(segment.path)
        try:
            size = file.size()
            if base == self.point.segment and self.point.position:
                segment = self._resume(file, size)
            believed = segment.size
            self._accept(segment, file, size)
            # Where no byte was vouched for, neither was the name: an empty file may be gone after a power cut.
            self.names_are_new = self.names_are_new or not believed
            self.changed = self.changed or not believed or segment.size != believed
        finally:
            file.close()
        self.suspect.append(segment)
        self.log.end = Offset(segment.end)
        return segment.size == size

    def _accept(self, segment: Segment, file: File, size: int) -> None:
        """Accept the sound batches that follow, up to byte `size`. Flushed ranges that were damaged later are accepted
        too: from the journal's batches, or as known damage.
        """
        gaps_below = self.log.compacted.gaps_below
        while True:
            for _, header in checked_batches(file, segment.size, size, segment.end, self.log.epochs.latest, gaps_below):
                self._add(segment, header)
            if not (self._mend(segment, size) or self._pass_over(segment, size)):
                return

    def _add(self, segment: Segment, header: BatchHeader) -> None:
        self.log.epochs.assign(LeaderEpoch(header.leader_epoch), Offset(segment.end))  # or inside the gap before it
        while self.to_meet and self.to_meet[0].end <= header.base_offset:
            self.to_meet.popleft()
        if self.to_meet and self.to_meet[0].base <= header.base_offset:
            self._write_anew(segment, header.size)
        segment.add(header.last_offset, header.size, header.newest_time, self.interval)

    def _write_anew(self, segment: Segment, size: int) -> None:
        """Note that so many bytes at the segment's end are written again before they are synced."""
        ranges, start = self.anew.setdefault(segment.base, []), segment.size
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, segment.size + size))

    def _mend(self, segment: Segment, size: int) -> bool:
        """Take the batches for this place from the journal. Returns False where it has none of them, or more than there
        is room for.
        """
        for entry in self.journaled:
            if not entry.base <= segment.end < entry.end:
                continue
            batches = self._rest_of(entry, segment.end)
            if batches is None or segment.size + len(batches) > size:
                continue
            self.mended.append((segment, segment.size, batches))
            for _, header in check_batches(batches):
                self._add(segment, header)
            return True
        return False

    def _pass_over(self, segment: Segment, size: int) -> bool:
        known = self.damages.get((segment.base, segment.size))
        if known is None or known.start != segment.end or not segment.size <= known.resume <= size:
            return False
        segment.size, segment.end = known.resume, known.end
        segment.damages += (known,)
        return True

    def _ask_journal(self) -> None:
        """Find acknowledged batches that never reached the log's own files. Changes nothing yet. Raises DamagedLog."""
        end = self.log.end
        for entry in self.journaled:
            if entry.end <= end:
                continue
            if entry.base > end:
                raise DamagedLog(f"{self.directory.name} ends at {end}, and the journal goes on at {entry.base}.")
            if not self.lacking:
                self._missing_of(entry)
            self.lacking.append(entry)
            end = entry.end

    def _take_from_journal(self) -> None:
        """Append the lacking entries. The log's own files may end inside an entry."""
        for entry in self.lacking:
            self._append_journaled(entry)
        self.log.segments += self.suspect

    def _append_journaled(self, entry: Recoverable) -> None:
        missing = self._missing_of(entry)
        if not self.suspect:
            self.suspect.append(Segment(self.directory, self.log.end))
            self.names_are_new = True
        segment = self.suspect[-1]
        with full_disks_told():
            file = self.disk.open(segment.path, create=True)
        try:
            with full_disks_told():
                file.write_at(segment.size, [missing])
            self._accept(segment, file, segment.size + len(missing))
        finally:
            file.close()
        if segment.end != entry.end:
            raise DamagedLog(f"{self.directory.name}: the journal holds no sound batches at offset {segment.end}.")
        self.log.end = entry.end
        self.changed = True

    def _missing_of(self, entry: Recoverable) -> memoryview:
        """The batches of an entry from the log's end on. Raises DamagedLog."""
        missing = self._rest_of(entry, self.log.end)
        if missing is None:
            raise DamagedLog(f"{self.directory.name}: the journal has no batch that begins at offset {self.log.end}.")
        return missing

    def _rest_of(self, entry: Recoverable, offset: int) -> memoryview | None:
        """The batches of an entry from the one that begins at `offset`; None where none does."""
        batches = memoryview(entry.read())
        found = (at for at, header in iterate_headers(batches) if header.base_offset == offset)
        at = next(found, None)
        return None if at is None else batches[at:]

    def _resume(self, file: File, size: int) -> Segment:
        """Accept the bytes below the recovery point as they are, with their indexes where these are sound."""
        point, base = self.point, self.point.segment
        if size < point.position:
            raise DamagedLog(f"{self.directory.name}: {point.position} bytes were flushed, and {size} are there.")
        if self.epochs_are_lost:
            self._take_epochs(header for _, header in headers_in(file, 0, point.position))
        entries = self._believed_entries(base)
        if entries is None:
            examination = self._examine(Segment.closed(self.directory, base, point.recovery_point, point.position))
            segment = examination.twin
            segment.damages = tuple(examination.found)
            return segment
        segment = Segment(self.directory, base)
        segment.resume(*entries, size=point.position, end=point.recovery_point)
        segment.max_timestamp, segment.max_timestamp_offset = point.max_timestamp, point.max_timestamp_offset
        known = [damage for damage in self.damages.values() if damage.segment == base]
        segment.damages = tuple(damage for damage in known if damage.resume <= point.position)
        with suppress(CorruptData):  # a reader of the damage gets the error
            _, first = next(headers_in(file, 0, point.position))
            segment.first_timestamp = first.max_timestamp
        return segment

    def _believed_entries(self, base: int) -> tuple[bytes, bytes] | None:
        """The index files of the segment that holds the recovery point; None where they reach above it. A crash may
        have come between them and the checkpoint.
        """
        _, index_path, times_path = segment_paths(self.directory, base)
        if index_path.name not in self.names or times_path.name not in self.names:
            return None
        index, times = read_file(self.disk, index_path), read_file(self.disk, times_path)
        if len(index) % INDEX_ENTRY.size or len(times) % TIME_ENTRY.size:
            return None
        if index and INDEX_ENTRY.unpack_from(index, len(index) - INDEX_ENTRY.size)[1] >= self.point.position:
            return None
        if times and base + TIME_ENTRY.unpack_from(times, len(times) - TIME_ENTRY.size)[1] >= self.log.end:
            return None
        return index, times

    # ending

    def _sync_contents(self, segment: Segment) -> None:
        """Sync the accepted batches of a segment.

        After a failed sync, write them and the file's end again first, or the kernel may have nothing to sync. Batches
        that the journal holds are written again in any case. The journal's copy is removed once this sync has
        succeeded, and an earlier sync may have failed unnoticed.
        """
        is_marked = DOUBT in self.names
        file = self.disk.open(segment.path)
        try:
            for start, end in [(0, segment.size)] if is_marked else self.anew.get(segment.base, ()):
                for at in range(start, end, CHECK_CHUNK_BYTES):
                    file.write_at(at, [file.read(at, min(CHECK_CHUNK_BYTES, end - at))])
            if is_marked and segment is self.suspect[-1]:  # the cut bytes may still be on the disk behind its end
                file.truncate(segment.size + 1)
                file.truncate(segment.size)
            file.sync()
        finally:
            file.close()

    def _is_plain(self) -> bool:
        """Whether this is the usual state after a kill: one segment with a few bytes more than are vouched for."""
        if self.rewrites or len(self.suspect) != 1:
            return False
        unvouched = self.suspect[0].size - (self.point.position if self.suspect[0].base == self.point.segment else 0)
        return unvouched <= UNVOUCHED_BYTES_MAX

    def _make_contents_durable(self) -> None:
        """Sync the accepted batches, and leave the rest as in the life before. The recovery point stays, and indexes
        and epochs above it stay in memory. That is a few syncs for each log, where there may be thousands.
        """
        self._sync_contents(self.suspect[0])
        if not self.known:
            write_again(self.disk, self.directory / STAMP, encode_stamp(self.stamp))
        if self.names_are_new:
            self.disk.sync_directory(self.directory)
        if not self.known and self.journaled:  # a later cut needs another lineage than this
            self.log.checkpoint = self.point
            write_file(self.disk, self.directory / CHECKPOINT, encode_checkpoint(self.point))
            self.disk.sync_directory(self.directory)
        self.log.epochs_are_new = True

    def _make_durable(self) -> None:
        """Sync everything that was accepted, in this order: contents, names, then the checkpoint that says so."""
        for segment in self.suspect[:-1]:
            segment.close_indexes()
        for segment in self.suspect:
            self._sync_contents(segment)
            self._write_indexes(segment)
        for segment in self.suspect[:-1]:
            segment.index = segment.times = None
            segment.synced = True
        # Written, not just synced: a file that an earlier life failed to sync may pass for clean in the page cache.
        write_file(self.disk, self.directory / STAMP, encode_stamp(self.stamp))
        write_file(self.disk, self.directory / EPOCHS, self.log.epochs.encode())
        if DOUBT in self.names:
            self.disk.remove(self.directory / DOUBT)
        self.disk.sync_directory(self.directory)
        self.log.checkpoint = checkpoint_of(
            self.suspect[-1] if self.suspect else None, self.log.end, self.log.start, self.point.lineage
        )
        write_file(self.disk, self.directory / CHECKPOINT, encode_checkpoint(self.log.checkpoint))
        self.disk.sync_directory(self.directory)


def aborted_beside(names: Iterable[str], segments: Sequence[Segment]) -> list[int]:
    """The bases of the segments that have an index of aborted transactions."""
    bases = {segment.base for segment in segments}
    return [base for base in offsets_of(list(names), TRANSACTION_INDEX) if base in bases]


def lead_in(segment: Segment, start: Offset, reason: str) -> None:
    """Mark the offsets before the first segment as damaged, because they are gone."""
    lead = SegmentDamage(segment=segment.base, start=start, end=segment.base, position=0, resume=0, reason=reason)
    segment.damages = (lead, *(damage for damage in segment.damages if damage.start >= segment.base))
