"""One journal for all logs of a broker: a round of appends is durable after one sync of one file.

A sync costs a fixed time for each file. It costs more where the file grows, because the filesystem's own journal takes
part. So the batches of a round, which flushes would sync in each log's own file, are also written to one file of the
journal. That file was filled with zeros before, and only it is synced. The logs' own files stay what readers read, and
the kernel writes them when it likes. Recovery takes from the journal the batches that they lack.

The journal is a ring of files. One is being written. Those before it hold rounds whose logs' files are not known to be
synced. The rest are spare. Before a file is used again, the logs' files with its batches are synced ("behind" the
journal). A failed journal costs only its speed: flushes sync the logs' own files again. They also do so until there is
enough work to make a first file.

Loop-only, except where a method says otherwise. Recovery and format: see `headrace.storage.log.journal.rounds`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from headrace.base.errors import StorageFailure, without_frames
from headrace.base.ids import Offset
from headrace.base.limits import (
    DISK_RESERVE_BYTES_MAX,
    DISK_RESERVE_FRACTION,
    JOURNAL_AFTER_ROUNDS,
    JOURNAL_FILE_BYTES,
    JOURNAL_FILES_MAX,
    JOURNAL_LOG_BYTES_MAX,
    JOURNAL_PENDING_BYTES_MAX,
)
from headrace.base.ports import Buffer, Disk, File
from headrace.base.reading import is_natural
from headrace.base.values import Value
from headrace.logs import get_logger
from headrace.storage.log.checkpoints import sync_file
from headrace.storage.log.journal.rounds import (
    ALIGNMENT,
    ENTRY_BYTES_MAX,
    HEAD_BYTES,
    Entry,
    FoundRound,
    Head,
    LogKey,
    aligned,
    encode_round,
    rounds_in,
)

log = get_logger(__name__)

SUFFIX: Final = ".journal"
ZEROS: Final = bytes(1024 * 1024)
RETRY_AFTER: Final = 16
"""After a file could not be made, RETRY_AFTER times `after_rounds` rounds pass before the next attempt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JournalSettings(Value):
    """How large the journal may be, and when it begins."""

    file_bytes: int = JOURNAL_FILE_BYTES
    files_max: int = JOURNAL_FILES_MAX
    """0: no journal is written, but an existing one is still used for recovery. Otherwise at least 3."""
    after_rounds: int = JOURNAL_AFTER_ROUNDS
    """Flushes after which the first file is made. A broker with little to do needs none."""

    @classmethod
    def within(cls, bytes_max: int) -> Self:
        """Settings with as many files as fit, at least three; none where `bytes_max` is 0."""
        return cls(files_max=max(3, bytes_max // JOURNAL_FILE_BYTES) if bytes_max else 0)


class JournaledFile(Protocol):
    """A segment of a log, as the journal sees it."""

    @property
    def path(self) -> Path: ...


class JournaledLog(Protocol):
    """A log, as the journal sees it."""

    @property
    def key(self) -> LogKey: ...

    @property
    def owes_file(self) -> bool:
        """Its own file had no room for batches that may be in the journal, and still has to get them. A sync of it
        proves nothing.
        """

    def fail_behind(self) -> None:
        """Called when its own file could not be synced behind the journal. The journal keeps its batches of the log."""


class JournalEntry(NamedTuple):
    """Batches that a flush of one log gives to the journal."""

    log: JournaledLog
    segment: JournaledFile
    """The segment that the same batches belong to."""
    lineage: int
    base: Offset
    end: Offset
    size: int
    """Bytes."""
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Recoverable(Value):
    """Consecutive whole batches of one log, journaled by an earlier life."""

    disk: Disk
    path: Path
    position: int
    size: int
    lineage: int
    base: Offset
    end: Offset

    def read(self) -> bytes:
        """Returns the batches. Blocks. Raises OSError."""
        file = self.disk.open(self.path)
        try:
            return file.read(self.position, self.size)
        finally:
            file.close()


class JournalRound:
    """One round that is being written."""

    __slots__ = ("_buffers", "_position", "failure", "file", "holds_entries", "oldest")

    def __init__(
        self, file: File, position: int, buffers: Sequence[Buffer], *, oldest: int, holds_entries: bool
    ) -> None:
        self.file = file
        self.oldest = oldest
        self.holds_entries = holds_entries
        """False: the round only says which rounds are no longer needed, and the logs' own files have to be synced."""
        self._position = position
        self._buffers = buffers
        self.failure: OSError | None = None

    def write(self) -> None:
        """Write to the page cache; called once. A sync of `file` makes it durable. Raises OSError."""
        self.file.write_at(self._position, self._buffers)


@dataclass(slots=True)
class _Held:
    """Batches of one log in a file of the journal, which that log's own file may lack."""

    log: JournaledLog
    segment: JournaledFile
    end: Offset
    is_lost: bool = False
    """The log's file failed to sync. No later sync of it can be believed."""


@dataclass(slots=True)
class _RingFile:
    """One file of this life."""

    path: Path
    file: File
    position: int = 0
    """Position of the next round."""
    first: int = -1
    """Number of its first round."""
    last: int = -1
    """Number of its last round."""
    held: dict[LogKey, _Held] = field(default_factory=dict)


@dataclass(slots=True)
class _EarlierLife:
    """Files of an earlier life that recovery may still need."""

    life: int
    last: int = -1
    """Number of its last round, and below that the file of that round and the position where the round ends."""
    newest: Path | None = None
    stop: int = 0
    oldest: int = 0
    """Lowest number of a round that this life still needed."""
    paths: set[Path] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)


class _Noted(NamedTuple):
    """Summary of all entries of one log in the journal's files, needed or not."""

    number: int
    """Number of the last round with an entry of the log."""
    lineage: int
    """The highest lineage of its entries."""


class Upkeep:
    """Slow work of the journal, assembled on the loop: an `UpkeepWork`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.behind: list[_Held] = []
        """Logs' files to sync."""
        self.prepare: Path | None = None
        self.earlier: list[_EarlierLife] = []
        """Lives whose files can be removed."""
        self.prepared: File | None = None
        self.synced: list[_Held] = []
        self.lost: list[tuple[_Held, OSError]] = []
        self.failure: OSError | None = None

    def __bool__(self) -> bool:
        return bool(self.behind or self.prepare or self.earlier)

    def run(self) -> None:
        """Blocks. `Journal.end_upkeep` handles the failures."""
        for held in self.behind:
            try:
                self._journal.sync_behind(held.segment.path)
                self.synced.append(held)
            except OSError as error:
                self._journal.note_failure(held.log.key)
                self.lost.append((held, error))
        try:
            if self.prepare is not None:
                self.prepared = self._journal.prepare(self.prepare)
            for life in self.earlier:
                self._journal.remove_life(life)
        except OSError as error:
            self.failure = without_frames(error)

    def end(self) -> None:
        self._journal.end_upkeep(self)


class Journal:
    """See the module. `directory` is made with the first file if it is missing. `key` is 16 bytes that no client
    knows.
    """

    def __init__(self, disk: Disk, directory: Path, key: bytes, settings: JournalSettings | None = None) -> None:
        self._disk = disk
        self._directory = directory
        self._key = key
        self._settings = settings or JournalSettings()
        self.is_ready = False
        """Appends may be collected for it."""
        self._broken = False
        """Nothing is written to it any more: its disk failed, or a log has lost what only the journal has."""
        self._disk_failed = False
        """A round could not be written."""
        self._names_in_doubt = False
        """A directory failed to sync. No more files are made in this life: a power cut could remove all of them."""
        self._next = 0
        """Number of the next round."""
        self._life = 0
        self._files_made = 0
        self._ring: deque[_RingFile] = deque()
        """Oldest first. The last one is being written."""
        self._spare: list[_RingFile] = []
        """Files that hold no needed rounds."""
        self._released = 0
        """A durable round says that no round below this number is needed. Only such rounds may be overwritten: a torn
        write over others would leave a gap where recovery looks for rounds.
        """
        self._rounds_to_file = self._settings.after_rounds
        """Rounds that must come before a file is made."""
        self._pending_bytes = 0
        self._forgotten: deque[int] = deque()
        """Bytes to subtract from `_pending_bytes`. Any thread appends to it."""
        self._upkeep: Upkeep | None = None
        self._settled: deque[tuple[LogKey, Offset | None]] = deque()
        """Logs whose own files hold everything below an offset (None: everything ever journaled). Any thread appends to
        it.
        """
        self._failed: set[LogKey] = set()
        """Logs whose own files failed to sync. Any thread adds to it."""
        self._lost: set[LogKey] = set()
        """Logs whose own files lack journaled batches for good. Any thread reads it."""
        self._working: set[LogKey] = set()
        """Logs that sync their own files outside any round. Any thread changes it."""
        self._syncing: set[LogKey] = set()
        """Logs whose own files are synced by the round under way."""
        self._earlier: list[_EarlierLife] = []
        self._recoverable: dict[LogKey, list[Recoverable]] = {}
        self._noted: dict[LogKey, _Noted] = {}
        """Logs with entries in any file. Entries that are no longer needed count too: a power cut may bring them back.
        """

    @property
    def is_given_up(self) -> bool:
        """Whether nothing is written to the journal any more in this life."""
        return self._broken

    # recovery of an earlier life

    def start(self) -> None:
        """Read the existing files. Blocks. Raises StorageFailure where they are damaged, OSError."""
        if not self._disk.is_directory(self._directory):
            return
        lives: dict[int, _EarlierLife] = {}
        found: list[tuple[Path, FoundRound]] = []
        for name in self._disk.list_directory(self._directory):
            if name.endswith(SUFFIX) and is_natural(name.removesuffix(SUFFIX)):
                path = self._directory / name
                self._files_made = max(self._files_made, int(name.removesuffix(SUFFIX)))
                found += [(path, each) for each in rounds_in(self._key, self._read(path))]
                lives.setdefault(-1, _EarlierLife(-1)).paths.add(path)
        for path, each in found:
            _enter(lives.setdefault(each.head.life, _EarlierLife(each.head.life)), path, each)
            lives[-1].paths.discard(path)
        for path, each in sorted(found, key=lambda pair: pair[1].head.number):
            self._keep(lives[each.head.life], path, each)
            for entry in each.entries:
                self._note(entry.key, each.head.number, entry.lineage)
        for life in lives.values():
            self._check(life)
        self._earlier = [life for _, life in sorted(lives.items())]
        self._next = self._life = max((life.last for life in self._earlier), default=-1) + 1

    def _read(self, path: Path) -> bytes:
        file = self._disk.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def _keep(self, life: _EarlierLife, path: Path, found: FoundRound) -> None:
        if found.head.number < life.oldest:
            return
        for entry in found.entries:
            self._recoverable.setdefault(entry.key, []).append(
                Recoverable(
                    disk=self._disk,
                    path=path,
                    position=entry.position,
                    size=entry.size,
                    lineage=entry.lineage,
                    base=entry.base,
                    end=entry.end,
                )
            )

    def _check(self, life: _EarlierLife) -> None:
        """Check that every needed round is there: each was durable before the next was written. Raises
        StorageFailure.
        """
        if life.newest is not None and not life.numbers.issuperset(range(life.oldest, life.last)):
            raise StorageFailure(
                f"The journal in {self._directory} is damaged: restore the disk, or remove its files named *"
                f"{SUFFIX} to go on without the acknowledged records that only they hold."
            )

    @property
    def earlier_keys(self) -> list[LogKey]:
        """Logs with batches left by an earlier life. Any thread may call it."""
        return list(self._recoverable)

    def recoverable(self, key: LogKey) -> Sequence[Recoverable]:
        """Batches that an earlier life left of a log, in the order of their appends. Any thread may call it."""
        return self._recoverable.get(key, ())

    def lineage_above(self, key: LogKey, lineage: int = -1) -> int:
        """A lineage above `lineage` in which every entry under the log's key is void, even those of a deleted log with
        that key. 0: there are no entries. Any thread may call it.
        """
        noted = self._noted.get(key)
        return 1 + (lineage if noted is None else max(lineage, noted.lineage))

    def _note(self, key: LogKey, number: int, lineage: int) -> None:
        noted = self._noted.get(key)
        self._noted[key] = _Noted(number, lineage if noted is None else max(lineage, noted.lineage))

    # from any thread

    def settle(self, key: LogKey, end: Offset | None = None) -> None:
        """The log's own files durably hold everything below `end`. None: everything ever journaled, or the log is
        deleted. Any thread may call it.
        """
        if end is None:
            self._failed.discard(key)
            self._lost.discard(key)
        self._settled.append((key, end))

    def begin_work(self, key: LogKey) -> None:
        """The log is being cut or closed, and syncs its own files. Until `end_work` no sync behind the journal is
        believed for it. The kernel reports a failure only once, and may not have reported it to this work yet. Any
        thread may call it.
        """
        self._working.add(key)

    def end_work(self, key: LogKey) -> None:
        """The work is over, and its failure, if any, is noted. Any thread may call it."""
        self._working.discard(key)

    def note_failure(self, key: LogKey) -> None:
        """The log's file has just failed to sync. Any later success proves nothing, and the journal's entries of the
        log are needed until they are recovered. Any thread may call it.
        """
        self._failed.add(key)

    def has_failed(self, key: LogKey) -> bool:
        """Whether a sync of the log's file has failed: the kernel may hold data as clean that never reached the disk.
        Any thread may call it.
        """
        return key in self._failed

    def has_lost(self, key: LogKey) -> bool:
        """Whether the log's own files failed in this life to take journaled batches, so that only the next life can
        recover all of them. Any thread may call it.
        """
        if key in self._lost:
            return True
        return key in self._failed and any(key in file.held for file in tuple(self._ring))

    # rounds

    def collects(self, size: int, so_far: int) -> bool:
        """Whether a log with `so_far` bytes for the next round should collect `size` more for it. Counts them if so."""
        if not self.is_ready or so_far + size > JOURNAL_LOG_BYTES_MAX:
            return False
        if self._pending_bytes + size > JOURNAL_PENDING_BYTES_MAX:
            return False
        self._pending_bytes += size
        return True

    def forget(self, size: int) -> None:
        """This many collected bytes are now in a round, or dropped. Any thread may call it."""
        self._forgotten.append(size)

    def begin_round(self, entries: Sequence[JournalEntry]) -> JournalRound | None:
        """Assemble a round. Returns None where it is empty or no file has room for it: then the logs' own files have to
        be synced.
        """
        self._take_settled()
        self._rounds_to_file = max(0, self._rounds_to_file - 1)
        if not self.is_ready or not entries:
            return None
        room = HEAD_BYTES + sum(ENTRY_BYTES_MAX + entry.size for entry in entries)
        if room > self._settings.file_bytes - ALIGNMENT:
            return None
        current = self._file_for(room)
        if current is None and self._spare and self._ring[-1].position < self._settings.file_bytes:
            return self._write_round(self._ring[-1], ())
        if current is None:
            self.is_ready = False
            return None
        return self._write_round(current, entries)

    def _write_round(self, current: _RingFile, entries: Sequence[JournalEntry]) -> JournalRound:
        number = self._next
        oldest = self._ring[0].first if self._ring[0].first >= 0 else number
        kept = [
            Entry(entry.log.key, entry.lineage, entry.base, entry.end, entry.size, entry.buffers) for entry in entries
        ]
        buffers = encode_round(self._key, Head(number, self._life, oldest), kept)
        written = JournalRound(current.file, current.position, buffers, oldest=oldest, holds_entries=bool(entries))
        self._next += 1
        if current.first < 0:
            current.first = number
        current.last = number
        current.position = aligned(current.position + sum(map(len, buffers)))
        for entry in entries:
            current.held[entry.log.key] = _Held(entry.log, entry.segment, entry.end)
            self._note(entry.log.key, number, entry.lineage)
        return written

    def _file_for(self, room: int) -> _RingFile | None:
        """The file with room for that many bytes: the present one, or the next of the ring where the present one is
        full. The last page of each file is kept for a round without entries, after which another file may be
        overwritten.
        """
        current = self._ring[-1]
        if current.position + room <= self._settings.file_bytes - ALIGNMENT:
            return current
        if not self._may_reuse_spare():
            return None
        return self._use_spare()

    def _may_reuse_spare(self) -> bool:
        return bool(self._spare) and self._spare[0].last < self._released

    def _use_spare(self) -> _RingFile:
        current = self._spare.pop(0)
        current.position, current.first, current.last = 0, -1, -1
        self._ring.append(current)
        left = (file.first for file in (*self._ring, *self._spare) if file.first >= 0)
        self._forget_overwritten(min(left, default=self._life))
        return current

    def _forget_overwritten(self, lowest: int) -> None:
        """Rounds of this life below this number no longer count, even after a power cut."""
        self._noted = {
            key: noted for key, noted in self._noted.items() if noted.number >= lowest or noted.number < self._life
        }

    def end_round(self, ended: JournalRound | None) -> None:
        """A round is over. If its write to the journal failed, no other round is written to the journal."""
        self._syncing.clear()
        if ended is None:
            return
        if ended.failure is None:
            self._released = ended.oldest
            return
        self._disk_failed = True
        if not self._broken:
            self._broken, self.is_ready = True, False
            log.error(
                "the journal's disk failed; each log is synced by itself now, which is slower: see to the disk",
                directory=str(self._directory),
                reason=str(ended.failure),
            )

    # upkeep

    def begin_upkeep(self) -> Upkeep | None:
        """Returns the work that is due, where there is any and none is under way."""
        self._take_settled()
        if self._upkeep is not None:
            return None
        work = Upkeep(self)
        if self._earlier and not self._recoverable:
            work.earlier, self._earlier = self._earlier, []
        self._plan_files(work)
        if not work:
            return None
        self._upkeep = work
        return work

    def _plan_files(self, work: Upkeep) -> None:
        """Keep a spare file: one whose logs are synced, or a new one. Begin to sync behind the journal when half of the
        files are in use.
        """
        ring, files_max = self._ring, self._settings.files_max
        if self._broken:
            work.behind = [held for file in ring for held in file.held.values() if not (held.is_lost or _waits(held))]
            return
        while len(ring) > 1 and not ring[0].held:
            self._spare.append(ring.popleft())
        if self._spare:
            self._go_on()
        elif len(ring) < files_max and self._rounds_to_file == 0 and not self._names_in_doubt:
            self._files_made += 1
            work.prepare = self._directory / f"{self._files_made:020d}{SUFFIX}"
        if len(ring) > max(1, files_max // 2):
            work.behind = [held for held in ring[0].held.values() if not _waits(held)]

    def _go_on(self) -> None:
        """The ring had no spare file left, and now has one."""
        if not self.is_ready:
            if self._may_reuse_spare():
                self._use_spare()
            self.is_ready = True

    def end_upkeep(self, ended: Upkeep) -> None:
        """Take over the results of the work."""
        self._upkeep = None
        for held in ended.synced:
            if self.has_failed(held.log.key):
                ended.lost.append((held, OSError("another sync of it failed meanwhile")))
            elif held.log.key not in self._syncing and held.log.key not in self._working:
                self._drop_synced(held)
        for held, error in ended.lost:
            log.error(
                "a log's file cannot be synced behind the journal", path=str(held.segment.path), reason=str(error)
            )
            self.lose(held.log.key)
            held.log.fail_behind()
        if ended.prepared is not None and ended.prepare is not None:
            self._spare.append(_RingFile(ended.prepare, ended.prepared))
            if not self._broken:
                self._go_on()
        if ended.failure is not None:
            self._rounds_to_file = RETRY_AFTER * self._settings.after_rounds
            log.warning("the journal could not be kept in order", reason=str(ended.failure))

    def lose(self, key: LogKey) -> None:
        """A log's file failed to sync or to be written. Its journaled batches are needed until they are recovered, so
        nothing is overwritten any more.
        """
        for file in self._ring:
            if (held := file.held.get(key)) is not None:
                held.is_lost = True
                self._lost.add(key)
                self._broken, self.is_ready = True, False

    def note_syncing(self, keys: Iterable[LogKey]) -> None:
        """The round under way syncs these logs' own files. Until it is over, a sync of them behind the journal cannot
        be believed.
        """
        self._syncing.update(keys)

    def _take_settled(self) -> None:
        """Apply the reports of other threads."""
        while self._forgotten:
            self._pending_bytes -= self._forgotten.popleft()
        while self._settled:
            key, end = self._settled.popleft()
            if end is None:
                self._recoverable.pop(key, None)
            self._drop(key, end)
        for key in tuple(self._failed):
            self.lose(key)

    def _drop(self, key: LogKey, end: Offset | None) -> None:
        for file in self._ring:
            held = file.held.get(key)
            if held is not None and (end is None or (held.end <= end and not held.is_lost)):
                del file.held[key]

    def _drop_synced(self, synced: _Held) -> None:
        """Drop exactly this entry: a newer one may have the same offsets, where the log was cut meanwhile."""
        for file in self._ring:
            if file.held.get(synced.log.key) is synced:
                del file.held[synced.log.key]

    # slow work

    def prepare(self, path: Path) -> File:
        """Returns a durable file of zeros. Its blocks are allocated, so a later sync waits only for overwriting them.
        Blocks. Raises OSError.
        """
        self._check_room()
        if not self._disk.is_directory(self._directory):
            self._disk.make_directory(self._directory)
            self._sync_names(self._directory.parent)
        file = self._disk.open(path, create=True)
        try:
            left = self._settings.file_bytes
            while left > 0:
                left -= file.append([ZEROS[:left]])
            file.sync()
            self._sync_names(self._directory)
        except OSError:
            file.close()
            with suppress(OSError):
                self._disk.remove(path)
            raise
        return file

    def _check_room(self) -> None:
        """Raises OSError where another file would fill the volume: zeros up to the last byte would stop every other
        writer.
        """
        space = self._disk.space(self._directory.parent)
        kept_free = min(DISK_RESERVE_BYTES_MAX, space.total // DISK_RESERVE_FRACTION)
        if space.usable < self._settings.file_bytes + kept_free:
            raise OSError(errno.ENOSPC, "there is no room for another file of the journal", str(self._directory))

    def _sync_names(self, directory: Path) -> None:
        """Sync the directory. After a failure, it is unknown whether the names are ever durable: a later success proves
        nothing.
        """
        try:
            self._disk.sync_directory(directory)
        except OSError:
            self._names_in_doubt = True
            raise

    def sync_behind(self, path: Path) -> None:
        """Sync a log's file. Blocks. Does nothing where the file is gone. Raises OSError."""
        with suppress(FileNotFoundError):
            sync_file(self._disk, path)

    def remove_life(self, life: _EarlierLife) -> None:
        """Remove the files of an earlier life, once all of its logs hold its batches. Blocks. Raises OSError.

        A last round says that no other round is needed, and its file is removed last. Whichever removals a power cut
        undoes, no round seems to be missing.
        """
        if life.newest is not None:
            self._write_last(life.newest, life.stop, Head(life.last + 1, life.life, life.last + 1))
        self._remove(sorted(life.paths - {life.newest}))
        if life.newest is not None:
            self._remove([life.newest])

    def _write_last(self, path: Path, at: int, head: Head) -> None:
        file = self._disk.open(path)
        try:
            file.write_at(at, encode_round(self._key, head, ()))
            file.sync()
        finally:
            file.close()

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._disk.remove(path)
        if paths:
            self._disk.sync_directory(self._directory)

    def close(self, *, clean: bool = True) -> None:
        """Called after every log was closed. `clean` removes the files that are no longer needed. Blocks; no round or
        upkeep may be under way. Raises OSError.
        """
        self._take_settled()
        needed = any(file.held for file in self._ring) or self._disk_failed
        ring, spare = list(self._ring), list(self._spare)
        self._ring.clear()
        self._spare.clear()
        self.is_ready = False
        for each in ring + spare:
            each.file.close()
        if needed or not clean:
            return
        if not self._recoverable:
            for life in self._earlier:
                self.remove_life(life)
        if ring:
            newest = ring[-1]
            paths = {each.path for each in ring + spare}
            self.remove_life(
                _EarlierLife(self._life, last=self._next - 1, newest=newest.path, stop=newest.position, paths=paths)
            )
        else:
            self._remove([each.path for each in spare])


def _waits(held: _Held) -> bool:
    return held.log.owes_file


def _enter(life: _EarlierLife, path: Path, found: FoundRound) -> None:
    life.paths.add(path)
    life.numbers.add(found.head.number)
    if found.head.number > life.last:
        life.last, life.oldest, life.newest, life.stop = found.head.number, found.head.oldest, path, found.stop
