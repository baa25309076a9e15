"""The commit log on disk: what the consensus core must not forget, and a snapshot of what it led to.

A directory holds `<first index, 20 digits>.wal` files and a `<index>.snapshot`. Promises: what `append` returned from
is there after a power cut; a torn tail (a write that no sync followed) is cut off at recovery; a damaged middle is
refused with one sentence and nothing is changed; after a failed write or sync every further call raises
StorageFailure, for what is on the disk is then in doubt. Blocking: never on the event loop.

Recovery:

| found                                                  | then                                                   |
|--------------------------------------------------------|--------------------------------------------------------|
| a bad frame in the last file, no good frame after it   | a torn tail: cut off                                   |
| a bad frame with a good one after it, or a file after  | damaged: CorruptData                                   |
| a gap between two entries, or snapshot and first entry | damaged: CorruptData                                   |
| a snapshot that does not read whole                    | damaged: CorruptData (it was synced before its rename) |
| `*.tmp`, an older snapshot, a file below the snapshot  | left by a crash amid `install_snapshot`: removed       |
| all well                                               | the last file is written anew before anything counts   |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ports import Disk, File
from headrace.raft.messages import Entry, HardState
from headrace.storage import snapshots
from headrace.storage.snapshots import Snapshot
from headrace.storage.walframe import FILE_HEADER, Frame, encode_frame, scan

SUFFIX: Final = ".wal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a commit log held when it was opened. All of it is synced."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    """Those after the snapshot, contiguous. Whether they are committed, the consensus core says."""
    cut_bytes: int = 0
    """Length of the torn tail that was cut off."""

    @property
    def snapshot_index(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.index

    @property
    def last_index(self) -> int:
        return self.snapshot_index + len(self.entries)


class CommitLog:
    """The open log of one node. `append` and `roll`: one call at a time. `install_snapshot` may run beside them."""

    def __init__(self, disk: Disk, directory: Path, recovery: Recovery, file: File) -> None:
        """Use `open_commit_log`."""
        self._disk = disk
        self._directory = directory
        self._hard_state = recovery.hard_state
        self._last_index = recovery.last_index
        self._file = file
        self._failure: StorageFailure | None = None

    def append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Write and sync as one frame: after a power cut, all of it or none. None: the hard state is unchanged.
        Raises StorageFailure, which is final."""
        self._hard_state = hard_state or self._hard_state
        frame = Frame(self._hard_state, tuple(entries))
        self._guarded(lambda: _write(self._file, frame))
        if entries:
            self._last_index = entries[-1].index

    def roll(self) -> None:
        """Go on in a new file, so that those before can be removed once a snapshot covers them."""
        self._guarded(self._start_next_file)

    def install_snapshot(self, index: int, term: int, lines: Iterable[bytes]) -> None:
        """Make the state after entry `index` durable, then remove the files and snapshots that it replaces: those
        that ended by a `roll` at or below `index`. Each line ends with a newline. Raises StorageFailure."""

        def install() -> None:
            snapshots.write(self._disk, self._directory, index, term, lines)
            _remove_covered(self._disk, self._directory, index)

        self._guarded(install)

    def close(self) -> None:
        self._file.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            action()
        except OSError as error:
            self._failure = _failure(self._directory, error)
            raise self._failure from error

    def _start_next_file(self) -> None:
        path = _wal_path(self._directory, self._last_index + 1)
        if self._file.path == path:  # nothing was appended since it began
            return
        self._file.close()
        self._file = _start_file(self._disk, path, self._hard_state)


def open_commit_log(disk: Disk, directory: Path) -> tuple[CommitLog, Recovery]:
    """Recover, making the directory where it is absent. Raises CorruptData (and nothing was changed) and
    StorageFailure."""
    try:
        disk.make_directory(directory)
        disk.sync_directory(directory.parent)
        recovery, good_bytes = _read(disk, directory)
        file = _repair(disk, directory, recovery, good_bytes)
    except OSError as error:
        raise _failure(directory, error) from error
    return CommitLog(disk, directory, recovery, file), recovery


def read_commit_log(disk: Disk, directory: Path) -> Recovery:
    """What is there, without changing anything: for `headrace debug metadata`. Raises CorruptData, StorageFailure."""
    try:
        return _read(disk, directory)[0]
    except OSError as error:
        raise _failure(directory, error) from error


def _read(disk: Disk, directory: Path) -> tuple[Recovery, int]:
    """What the directory holds, and how many bytes of its last file are good."""
    found = _indexes(disk, directory, snapshots.SUFFIX)
    snapshot = snapshots.read(disk, directory / f"{found[-1]:020d}{snapshots.SUFFIX}") if found else None
    base = 0 if snapshot is None else snapshot.index
    entries: list[Entry] = []
    state, good_bytes, cut_bytes = HardState(), 0, 0
    firsts = _needed(_indexes(disk, directory, SUFFIX), base)
    for first in firsts:
        path = _wal_path(directory, first)
        data = _contents(disk, path)
        result = scan(data)
        good_bytes, cut_bytes = result.good_bytes, len(data) - result.good_bytes
        if result.damaged or (cut_bytes and first != firsts[-1]):
            raise _damaged(path, f"the bytes from {good_bytes} on are not what was written")
        for frame in result.frames:
            state = frame.hard_state
            _extend(path, entries, base, frame.entries)
    recovery = Recovery(hard_state=state, snapshot=snapshot, entries=tuple(entries), cut_bytes=cut_bytes)
    following = firsts[-1] if firsts else 1
    if following > recovery.last_index + 1 or (not firsts and base):
        raise _damaged(directory, f"what came after entry {recovery.last_index} is missing")
    return recovery, good_bytes


def _needed(firsts: list[int], base: int) -> list[int]:
    """The files that may hold entries above the snapshot's: all but those whose successor starts at or below it."""
    covered = sum(following <= base + 1 for following in firsts[1:])
    return firsts[covered:]


def _extend(path: Path, entries: list[Entry], base: int, more: Iterable[Entry]) -> None:
    for entry in more:
        if entry.index <= base:
            continue
        last = entries[-1].index if entries else base
        if entry.index != last + 1:
            raise _damaged(path, f"entry {entry.index} follows entry {last}")
        entries.append(entry)


def _repair(disk: Disk, directory: Path, recovery: Recovery, good_bytes: int) -> File:
    """Cut the torn tail, sync what was read, remove what a crash left behind; the file to go on in."""
    for name in disk.list_directory(directory):
        if name.endswith(".tmp"):
            disk.remove(directory / name)
    _remove_covered(disk, directory, recovery.snapshot_index)
    firsts = _indexes(disk, directory, SUFFIX)
    if good_bytes <= len(FILE_HEADER):  # not begun, or without the hard state that every file begins with
        path = _wal_path(directory, firsts[-1] if firsts else recovery.last_index + 1)
        return _start_file(disk, path, recovery.hard_state)
    return _rewritten(disk, _wal_path(directory, firsts[-1]), good_bytes)  # the others were synced before it was begun


def _rewritten(disk: Disk, path: Path, good_bytes: int) -> File:
    """The file anew, without its torn tail. Written, not just synced: what an earlier process failed to sync may be in
    the page cache alone, and pass for clean there."""
    temporary = path.with_suffix(".tmp")
    file = disk.open(temporary, create=True)
    file.append([_contents(disk, path)[:good_bytes]])
    file.sync()
    file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
    return disk.open(path)


def _start_file(disk: Disk, path: Path, state: HardState) -> File:
    """A new file whose name, header and hard state are durable before it is written to. The header is synced on its
    own: a frame that survives a power cut without it would look like damage."""
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append([FILE_HEADER])
    file.sync()
    _write(file, Frame(state, ()))
    disk.sync_directory(path.parent)
    return file


def _write(file: File, frame: Frame) -> None:
    file.append([encode_frame(frame, file.size())])
    file.sync()


def _remove_covered(disk: Disk, directory: Path, index: int) -> None:
    """Remove older snapshots and the files whose every entry is at or below `index`, never the last; sync the
    directory in any case."""
    for older in _indexes(disk, directory, snapshots.SUFFIX)[:-1]:
        disk.remove(directory / f"{older:020d}{snapshots.SUFFIX}")
    firsts = _indexes(disk, directory, SUFFIX)
    for first in set(firsts) - set(_needed(firsts, index)):
        disk.remove(_wal_path(directory, first))
    disk.sync_directory(directory)


def _indexes(disk: Disk, directory: Path, suffix: str) -> list[int]:
    stems = [name.removesuffix(suffix) for name in disk.list_directory(directory) if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdigit())


def _wal_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}{SUFFIX}"


def _contents(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _damaged(path: Path, what: str) -> CorruptData:
    return CorruptData(
        f"The metadata commit log {path} is damaged ({what}): restore its directory from a backup, "
        "or start a new cluster in an empty data directory."
    )


def _failure(directory: Path, error: OSError) -> StorageFailure:
    return StorageFailure(
        f"The metadata commit log in {directory} cannot be written or read ({error}): check the disk, then start again."
    )
