"""One journal for all logs of a broker: a round of appends is durable after one sync of one file.

A sync costs a fixed time for each file, and more where the file grows, for then the filesystem's own journal takes
part. So what a flush would sync in each log's own file is written a second time, behind one another, to a file that
was filled with zeros before, and only that is synced. The logs' files stay what they are, and what readers read; the
kernel writes them when it likes. Recovery takes from the journal what they lack.

A ring of files: one is written, those before it hold rounds whose logs' files are not known to be synced, the rest is
spare. Before a file is used again the logs' files are synced behind it. A journal that fails costs its speed and
nothing more: flushes sync the logs' own files again, as they do until there is enough work to open one.

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

import structlog

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

log = structlog.get_logger(__name__)

SUFFIX: Final = ".journal"
ZEROS: Final = bytes(1024 * 1024)
RETRY_AFTER: Final = 16
"""After a file could not be made, so many times the rounds before the first one pass before the next attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """How large the journal may be, and when it begins."""

    file_bytes: int = JOURNAL_FILE_BYTES
    files_max: int = JOURNAL_FILES_MAX
    """0: no journal is written (one that is there is still recovered from). Else at least 3."""
    after_rounds: int = JOURNAL_AFTER_ROUNDS
    """Flushes after which a first file is made: a broker with little to do needs none."""

    @classmethod
    def within(cls, bytes_max: int) -> Self:
        """As many files as fit, three at least; none where `bytes_max` is 0."""
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
        """Its own file had no room for something that may be here, and is to be given it: a sync proves nothing."""

    def fail_behind(self) -> None:
        """Its own file could not be synced behind the journal, which keeps what it has of it."""


class JournalEntry(NamedTuple):
    """What a flush of one log asks the journal to keep."""

    log: JournaledLog
    segment: JournaledFile
    """What holds it too."""
    lineage: int
    base: Offset
    end: Offset
    size: int
    """Bytes."""
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoverable:
    """What an earlier life journaled of one log: whole batches, in a row."""

    disk: Disk
    path: Path
    position: int
    size: int
    lineage: int
    base: Offset
    end: Offset

    def read(self) -> bytes:
        """The batches. Blocking. Raises OSError."""
        file = self.disk.open(self.path)
        try:
            return file.read(self.position, self.size)
        finally:
            file.close()


class JournalRound:
    """One round on its way."""

    __slots__ = ("_buffers", "_position", "failure", "file", "holds_entries", "oldest")

    def __init__(
        self, file: File, position: int, buffers: Sequence[Buffer], *, oldest: int, holds_entries: bool
    ) -> None:
        self.file = file
        self.oldest = oldest
        self.holds_entries = holds_entries
        """False: it only says which rounds are needed no more, and the logs' own files are to be synced."""
        self._position = position
        self._buffers = buffers
        self.failure: OSError | None = None

    def write(self) -> None:
        """To the page cache, once; a sync of `file` makes it durable. Raises OSError."""
        self.file.write_at(self._position, self._buffers)


@dataclass(slots=True)
class _Held:
    """What a file of the journal holds of one log, and that log's own file may lack."""

    log: JournaledLog
    segment: JournaledFile
    end: Offset
    is_lost: bool = False
    """The log's file failed to sync, and no later success of a sync can be believed."""


@dataclass(slots=True)
class _RingFile:
    """One file of this life."""

    path: Path
    file: File
    position: int = 0
    """Where the next round goes."""
    first: int = -1
    """Number of its first round."""
    last: int = -1
    """Number of its last one."""
    held: dict[LogKey, _Held] = field(default_factory=dict)


@dataclass(slots=True)
class _EarlierLife:
    """Files of an earlier life that recovery may still need."""

    life: int
    last: int = -1
    """Its last round: the number, the file, and where that ends."""
    newest: Path | None = None
    stop: int = 0
    oldest: int = 0
    """Lowest number of a round that it still needed."""
    paths: set[Path] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)


class _Noted(NamedTuple):
    """What the journal's files hold of one log, needed or not."""

    number: int
    """Of the last round with an entry of it."""
    lineage: int
    """The highest."""


class Upkeep:
    """Slow work of the journal, put together on the loop: to be `run` in a worker thread, once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.behind: list[_Held] = []
        """Logs' files to sync."""
        self.prepare: Path | None = None
        self.earlier: list[_EarlierLife] = []
        """Lives whose files may go."""
        self.prepared: File | None = None
        self.synced: list[_Held] = []
        self.lost: list[tuple[_Held, OSError]] = []
        self.failure: OSError | None = None

    def __bool__(self) -> bool:
        return bool(self.behind or self.prepare or self.earlier)

    def run(self) -> None:
        """Blocking. What fails is told to `Journal.end_upkeep`."""
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


class Journal:
    """See the module. `directory` is made with the first file, if it is not there; `key` is 16 bytes that no client
    knows."""

    def __init__(self, disk: Disk, directory: Path, key: bytes, settings: JournalSettings | None = None) -> None:
        self._disk = disk
        self._directory = directory
        self._key = key
        self._settings = settings or JournalSettings()
        self.is_ready = False
        """Appends may be collected for it."""
        self._broken = False
        self._names_in_doubt = False
        """A directory has failed to sync: no file is made in this life any more, for a power cut may take all of it."""
        self._next = 0
        """Number of the next round."""
        self._life = 0
        self._files_made = 0
        self._ring: deque[_RingFile] = deque()
        """Oldest first; the last one is written."""
        self._spare: list[_RingFile] = []
        """Files that hold nothing that is needed."""
        self._released = 0
        """A durable round says that none below this number is needed: only then may one be written over, or a torn
        write would leave a gap where recovery looks for rounds."""
        self._rounds_to_file = self._settings.after_rounds
        """Rounds that must come before a file is made."""
        self._pending_bytes = 0
        self._forgotten: deque[int] = deque()
        """From any thread: what is to be taken off that."""
        self._upkeep: Upkeep | None = None
        self._settled: deque[tuple[LogKey, Offset | None]] = deque()
        """From any thread: logs whose own files hold all below an offset (None: all that was ever journaled)."""
        self._failed: set[LogKey] = set()
        """From any thread: logs whose own files failed to sync."""
        self._lost: set[LogKey] = set()
        """Logs of which it holds what their own files lack for good. Read from any thread."""
        self._working: set[LogKey] = set()
        """From any thread: logs that sync their own files outside of any round."""
        self._syncing: set[LogKey] = set()
        """Logs whose own files the round under way syncs."""
        self._earlier: list[_EarlierLife] = []
        self._recoverable: dict[LogKey, list[Recoverable]] = {}
        self._noted: dict[LogKey, _Noted] = {}
        """Logs of which any file holds anything. What nobody needs is among it: a power cut may bring it back."""

    @property
    def is_given_up(self) -> bool:
        """Nothing is written to it any more in this life."""
        return self._broken

    # what an earlier life left

    def start(self) -> None:
        """Read what is there. Blocking. Raises StorageFailure where it is damaged, OSError."""
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
        """Every round that was needed is there: each was durable before the next was written."""
        if life.newest is not None and not life.numbers.issuperset(range(life.oldest, life.last)):
            raise StorageFailure(
                f"The journal in {self._directory} is damaged: restore the disk, or remove its files named *"
                f"{SUFFIX} to go on without the acknowledged records that only they hold."
            )

    @property
    def earlier_keys(self) -> list[LogKey]:
        """Logs of which an earlier life left something. Any thread."""
        return list(self._recoverable)

    def recoverable(self, key: LogKey) -> Sequence[Recoverable]:
        """What an earlier life left of a log, in the order in which it was appended. Any thread."""
        return self._recoverable.get(key, ())

    def lineage_above(self, key: LogKey, lineage: int = -1) -> int:
        """A lineage of the log above this one, in which all is void that the journal's files hold under its key, be it
        of a log that had the key before and is gone. 0: they hold nothing. Any thread."""
        noted = self._noted.get(key)
        return 1 + (lineage if noted is None else max(lineage, noted.lineage))

    def _note(self, key: LogKey, number: int, lineage: int) -> None:
        noted = self._noted.get(key)
        self._noted[key] = _Noted(number, lineage if noted is None else max(lineage, noted.lineage))

    # from any thread

    def settle(self, key: LogKey, end: Offset | None = None) -> None:
        """The log's own files durably hold all below `end`; None: all that was ever journaled, or the log is no more.
        Any thread."""
        if end is None:
            self._failed.discard(key)
            self._lost.discard(key)
        self._settled.append((key, end))

    def begin_work(self, key: LogKey) -> None:
        """The log is cut or closed, and syncs its own files. Until `end_work` no sync behind of it is believed: the
        kernel may tell of a failure once, and not yet have told it there. Any thread."""
        self._working.add(key)

    def end_work(self, key: LogKey) -> None:
        """That is over, and its failure noted, where there was one. Any thread."""
        self._working.discard(key)

    def note_failure(self, key: LogKey) -> None:
        """The log's file has just failed to sync: any later success is none, and what the journal holds of it is needed
        until it is recovered. Any thread."""
        self._failed.add(key)

    def has_failed(self, key: LogKey) -> bool:
        """Whether a sync of the log's file has failed: the kernel may take for clean what never reached the disk. Any
        thread."""
        return key in self._failed

    def has_lost(self, key: LogKey) -> bool:
        """Whether the log's own files failed in this life to take what the journal holds of it, so that only the next
        one can recover all of it. Any thread."""
        if key in self._lost:
            return True
        return key in self._failed and any(key in file.held for file in tuple(self._ring))

    # rounds

    def collects(self, size: int, so_far: int) -> bool:
        """Whether a log that has `so_far` bytes for the next round should keep `size` more for it; counts them."""
        if not self.is_ready or so_far + size > JOURNAL_LOG_BYTES_MAX:
            return False
        if self._pending_bytes + size > JOURNAL_PENDING_BYTES_MAX:
            return False
        self._pending_bytes += size
        return True

    def forget(self, size: int) -> None:
        """So many collected bytes are in a round now, or dropped. Any thread."""
        self._forgotten.append(size)

    def begin_round(self, entries: Sequence[JournalEntry]) -> JournalRound | None:
        """Put a round together; None where there is nothing in it or no file for it: then sync the logs' own files."""
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
        """The file that takes so many bytes, the next one of the ring where the present one is full. The last page of
        each is kept for a round without entries, after which a file may be written over."""
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
        """No round of this life below this number counts any more, whatever becomes of the power."""
        self._noted = {
            key: noted for key, noted in self._noted.items() if noted.number >= lowest or noted.number < self._life
        }

    def end_round(self, ended: JournalRound | None) -> None:
        """A round is over. Where the journal's part was not written, no other ever is."""
        self._syncing.clear()
        if ended is None:
            return
        if ended.failure is None:
            self._released = ended.oldest
        if ended.failure is not None and not self._broken:
            self._broken, self.is_ready = True, False
            log.error(
                "the journal's disk failed; each log is synced by itself now, which is slower: see to the disk",
                directory=str(self._directory),
                reason=str(ended.failure),
            )

    # upkeep

    def begin_upkeep(self) -> Upkeep | None:
        """What there is to do, where there is anything and none is under way."""
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
        """Keep a spare file: one whose logs are synced, or a new one; begin to sync behind when half are in use."""
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
        """There is a spare file where the ring had none left."""
        if not self.is_ready:
            if self._may_reuse_spare():
                self._use_spare()
            self.is_ready = True

    def end_upkeep(self, ended: Upkeep) -> None:
        """Take up what was done."""
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
        """A log's file has failed to sync, or to be written: what the journal holds of it is needed until it is
        recovered, so nothing is overwritten any more."""
        for file in self._ring:
            if (held := file.held.get(key)) is not None:
                held.is_lost = True
                self._lost.add(key)
                self._broken, self.is_ready = True, False

    def note_syncing(self, keys: Iterable[LogKey]) -> None:
        """The round under way syncs these logs' own files: whether a sync behind of them can be believed is known once
        that is over."""
        self._syncing.update(keys)

    def _take_settled(self) -> None:
        """What other threads have told."""
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
        """That alone: what has come since may have its offsets, where the log was cut meanwhile."""
        for file in self._ring:
            if file.held.get(synced.log.key) is synced:
                del file.held[synced.log.key]

    # slow work

    def prepare(self, path: Path) -> File:
        """A file of zeros, durable: its blocks have their places, so that writing over them is all that a sync waits
        for. Blocking. Raises OSError."""
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
        """Zeros up to the last byte would stop whoever else writes to the volume. Raises OSError."""
        space = self._disk.space(self._directory.parent)
        kept_free = min(DISK_RESERVE_BYTES_MAX, space.total // DISK_RESERVE_FRACTION)
        if space.usable < self._settings.file_bytes + kept_free:
            raise OSError(errno.ENOSPC, "there is no room for another file of the journal", str(self._directory))

    def _sync_names(self, directory: Path) -> None:
        """Where that fails, nothing tells whether the names are ever durable: a later success may be none."""
        try:
            self._disk.sync_directory(directory)
        except OSError:
            self._names_in_doubt = True
            raise

    def sync_behind(self, path: Path) -> None:
        """Sync a log's file. Blocking. Raises OSError; nothing is to be done where the file is gone."""
        with suppress(FileNotFoundError):
            sync_file(self._disk, path)

    def remove_life(self, life: _EarlierLife) -> None:
        """Remove the files of an earlier life, all of whose logs hold what it had. Blocking. Raises OSError.

        A last round says that no other is needed, and its file goes last: whichever removals a power cut takes back,
        nothing seems to be missing."""
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
        """After every log was closed. Clean: removes what nobody needs. Blocking; no round or upkeep is under way.
        Raises OSError."""
        self._take_settled()
        needed = any(file.held for file in self._ring) or self._broken
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
