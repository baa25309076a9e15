"""The commit log on disk: hard state and entries of the consensus core, and a snapshot of the state that they led to.

A directory holds `<number, 20 digits>.wal` files, in the order in which they were written, and an `<index>.snapshot`. A
file's number is above that of the file before it, of every entry in that, and of the snapshot that it restores. An
append replaces the log's entries at and behind its first entry.

Promises:
- A write that `append` returned from survives a power cut.
- A torn tail (a write that no sync followed) is cut off at recovery.
- A damaged middle is refused with one sentence, and nothing is changed.
- A leader's snapshot replaces everything or, after a crash, nothing.
- After a failed write or sync every further call raises StorageFailure, since the state of the disk is then in doubt.

All calls block, except `begin_append`: never make them on the event loop.

Recovery:

| found                                                  | then                                                   |
|--------------------------------------------------------|--------------------------------------------------------|
| a bad frame in the last file, no good frame after it   | a torn tail: cut off                                   |
| a bad frame with a good one after it, or a file after  | damaged: CorruptData                                   |
| a frame that follows an entry that is not there        | damaged: CorruptData                                   |
| a snapshot that does not read whole                    | damaged: CorruptData (it was synced before its rename) |
| a file that restores a snapshot that is there          | all files before it hold no more: removed              |
| the last file restores a snapshot that is not there    | the crash came before the rename: that file is removed |
| `*.tmp`, an older snapshot, a file below the snapshot  | left by a crash amid an installation: removed          |
| version 1                                              | snapshot and last file are written again in version 2  |
| all well                                               | the last file is written again before anything counts  |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ports import Disk, File
from headrace.raft.membership import Membership
from headrace.raft.messages import Entry, HardState, SnapshotMark
from headrace.storage.raftlog import snapshots
from headrace.storage.raftlog.recovery import (
    Found,
    contents,
    covered_by,
    indexes,
    read_directory,
    wal_numbers,
    wal_path,
)
from headrace.storage.raftlog.recovery import Recovery as Recovery
from headrace.storage.raftlog.snapshots import TEMPORARY, Snapshot
from headrace.storage.raftlog.walframe import FILE_HEADER, Frame, encode_frame

T = TypeVar("T")
NOBODY: Final = Membership()
_RECEIVED: Final = "received" + TEMPORARY


class RaftLog:
    """The open log of one node. One call at a time, except that `prepare_snapshot` and `read_snapshot` may run beside
    others.
    """

    def __init__(self, disk: Disk, directory: Path, recovery: Recovery, file: File) -> None:
        """Use `open_commit_log` instead."""
        self._disk = disk
        self._directory = directory
        self._hard_state = recovery.hard_state
        self._last_index = recovery.last_index
        self._snapshot_index = recovery.snapshot_index
        self._file = file
        self._incoming: File | None = None
        self._failure: StorageFailure | None = None

    def append(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Write and sync as one frame: after a power cut, all of it is there or none. `hard_state` None: it is
        unchanged. The log's entries at and behind the first entry are replaced. Raises StorageFailure, which is final.
        """
        frame = self._next_frame(hard_state, entries)
        self._guarded(lambda: _write(self._file, frame))

    def begin_append(
        self, hard_state: HardState | None, entries: Sequence[Entry], done: Callable[[StorageFailure | None], object]
    ) -> None:
        """`append` on the event loop, for small writes: written now, and synced beside the loop. `done` is called
        later, with the failure or None; until then no other call may come. Raises StorageFailure where the write itself
        fails.
        """
        frame, file = self._next_frame(hard_state, entries), self._file

        def synced(error: OSError | None) -> None:
            if error is not None:
                self._failure = _failure(self._directory, error)
            done(self._failure)

        self._guarded(lambda: file.append([encode_frame(frame, file.size())]))
        self._disk.begin_sync(file, synced)

    def _next_frame(self, hard_state: HardState | None, entries: Sequence[Entry]) -> Frame:
        self._hard_state = hard_state or self._hard_state
        follows = entries[0].index - 1 if entries else self._last_index
        assert self._snapshot_index <= follows <= self._last_index, "the log has no gap, and the snapshot stays"
        frame = Frame(self._hard_state, follows, tuple(entries))
        self._last_index = frame.last_index
        return frame

    def roll(self) -> None:
        """Continue in a new file, so that the files before can be removed once a snapshot covers them. Raises
        StorageFailure.
        """
        self._guarded(lambda: self._start_next_file(self._last_index, restores=False))

    def prepare_snapshot(self, mark: SnapshotMark, lines: Iterable[bytes]) -> None:
        """Write and sync the state after entry `mark.index`, under a temporary name. Each line ends with a newline. May
        run beside appends. Raises StorageFailure.
        """
        self._guarded(lambda: snapshots.write(self._disk, self._own_temporary(mark.index), mark, lines))

    def install_snapshot(self, mark: SnapshotMark) -> None:
        """Give the prepared snapshot its name, then remove what it replaces: older snapshots, and the files that ended
        by a `roll` at or below it. Where a leader's newer snapshot came meanwhile, the prepared one is dropped. Raises
        StorageFailure.
        """

        def install() -> None:
            temporary = self._own_temporary(mark.index)
            if mark.index <= self._snapshot_index:
                self._disk.remove(temporary)
                return
            snapshots.install(self._disk, temporary, snapshots.path_of(self._directory, mark.index))
            self._snapshot_index = mark.index
            _remove_covered(self._disk, self._directory, mark.index)

        self._guarded(install)

    def read_snapshot(self, index: int, offset: int, length: int) -> tuple[bytes, bool] | None:
        """Bytes of the snapshot's file, and whether they are its last. None where the snapshot no longer exists. May
        run beside other calls. Raises StorageFailure.
        """

        def read() -> tuple[bytes, bool] | None:
            try:
                file = self._disk.open(snapshots.path_of(self._directory, index))
            except FileNotFoundError:
                return None
            try:
                data = file.read(offset, length)
                return data, offset + len(data) >= file.size()
            finally:
                file.close()

        return self._guarded(read)

    def receive_chunk(self, offset: int, data: bytes) -> None:
        """Write bytes of a leader's snapshot; offset 0 begins it again. They are not synced yet. Raises
        StorageFailure.
        """

        def receive() -> None:
            path = self._directory / _RECEIVED
            if offset == 0:
                self._close_incoming()
                self._incoming = self._disk.open(path, create=True)
                self._incoming.truncate(0)
            assert self._incoming is not None
            assert offset == self._incoming.size(), "chunks come in order"
            self._incoming.append([data])

        self._guarded(receive)

    def install_received(self, mark: SnapshotMark) -> Snapshot:
        """Replace everything by the received snapshot. It is checked first, then synced and named. Raises CorruptData,
        with nothing changed; StorageFailure.
        """

        def install() -> Snapshot:
            assert self._incoming is not None
            self._incoming.sync()
            self._close_incoming()
            snapshot = self._read_received(mark)
            self._start_next_file(mark.index, restores=True)
            snapshots.install(self._disk, self._directory / _RECEIVED, snapshots.path_of(self._directory, mark.index))
            self._snapshot_index = self._last_index = mark.index
            _remove_before(self._disk, self._directory, self._file.path)
            _remove_covered(self._disk, self._directory, mark.index)
            return snapshot

        return self._guarded(install)

    def replace(self, hard_state: HardState, mark: SnapshotMark, lines: Iterable[bytes]) -> None:
        """Replace everything by a state that no log led to, in a recovery by force. `mark.index` is above everything in
        the log. Each line ends with a newline. Raises StorageFailure.
        """

        def install() -> None:
            assert mark.index > self._last_index, "nothing of the log that was may pass for a part of this one"
            temporary = self._own_temporary(mark.index)
            snapshots.write(self._disk, temporary, mark, lines)
            self._hard_state = hard_state
            self._start_next_file(mark.index, restores=True)
            snapshots.install(self._disk, temporary, snapshots.path_of(self._directory, mark.index))
            self._snapshot_index = self._last_index = mark.index
            _remove_before(self._disk, self._directory, self._file.path)
            _remove_covered(self._disk, self._directory, mark.index)

        self._guarded(install)

    def _read_received(self, mark: SnapshotMark) -> Snapshot:
        try:
            snapshot = snapshots.read(self._disk, self._directory / _RECEIVED, born=NOBODY)
        except CorruptData:
            snapshot = None
        if snapshot is None or snapshot.mark != mark or not snapshot.is_current:
            raise CorruptData(
                f"The metadata snapshot at entry {mark.index} that the controller sent is damaged: look at the disk "
                "of the controller, then start this broker again."
            )
        return snapshot

    def close(self) -> None:
        self._close_incoming()
        self._file.close()

    def _own_temporary(self, index: int) -> Path:
        path = snapshots.path_of(self._directory, index)
        return path.with_name(path.name + TEMPORARY)

    def _close_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    def _guarded(self, action: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure
        try:
            return action()
        except OSError as error:
            self._failure = _failure(self._directory, error)
            raise self._failure from error

    def _start_next_file(self, follows: int, *, restores: bool) -> None:
        number = int(self._file.path.stem)
        path = wal_path(self._directory, max(follows, self._last_index, number) + 1)
        if not restores and self._last_index + 1 == number:  # nothing was appended since it began
            return
        self._file.close()
        self._file = _start_file(self._disk, path, Frame(self._hard_state, follows, restores=restores))


def open_commit_log(disk: Disk, directory: Path, *, born: Membership = NOBODY) -> tuple[RaftLog, Recovery]:
    """Open and recover the log, making the directory where it is absent. `born`: the membership before the first entry.
    Raises CorruptData, with nothing changed; StorageFailure.
    """
    try:
        disk.make_directory(directory)
        disk.sync_directory(directory.parent)
        found = read_directory(disk, directory, born)
        file = _repair(disk, directory, found)
    except OSError as error:
        raise _failure(directory, error) from error
    return RaftLog(disk, directory, found.recovery, file), found.recovery


def read_commit_log(disk: Disk, directory: Path, *, born: Membership = NOBODY) -> Recovery:
    """Read the log without changing anything, for `headrace debug metadata`. Raises CorruptData, StorageFailure."""
    try:
        return read_directory(disk, directory, born).recovery
    except OSError as error:
        raise _failure(directory, error) from error


def _repair(disk: Disk, directory: Path, found: Found) -> File:
    """Cut the torn tail, sync the entries that were read, and remove what a crash left behind. Returns the file to
    continue in.
    """
    recovery = found.recovery
    for name in disk.list_directory(directory):
        if name.endswith(TEMPORARY):
            disk.remove(directory / name)
    for number in found.void:
        disk.remove(wal_path(directory, number))
    if recovery.snapshot is not None and not recovery.snapshot.is_current:
        _rewrite_snapshot(disk, directory, recovery.snapshot)
    _remove_covered(disk, directory, recovery.snapshot_index)
    numbers = wal_numbers(disk, directory)
    if found.last is None:  # not begun, or without the initial hard state
        path = wal_path(directory, numbers[-1] if numbers else recovery.last_index + 1)
        return _start_file(disk, path, Frame(recovery.hard_state, recovery.last_index))
    return _rewritten(disk, wal_path(directory, numbers[-1]), found)  # the others were synced before it began


def _rewrite_snapshot(disk: Disk, directory: Path, snapshot: Snapshot) -> None:
    final = snapshots.path_of(directory, snapshot.mark.index)
    temporary = final.with_name(final.name + TEMPORARY)
    snapshots.write(disk, temporary, snapshot.mark, (line + b"\n" for line in snapshot.lines))
    snapshots.install(disk, temporary, final)


def _rewritten(disk: Disk, path: Path, found: Found) -> File:
    """Write the file again, without its torn tail. A sync alone is not enough. Bytes that an earlier process failed to
    sync may be in the page cache alone, and pass for clean there.
    """
    last = found.last
    assert last is not None
    if last.is_current:
        data = contents(disk, path)[: last.good_bytes]
    else:
        data = FILE_HEADER
        for frame in last.frames:
            data += encode_frame(frame, len(data))
    temporary = path.with_suffix(TEMPORARY)
    file = disk.open(temporary, create=True)
    file.append([data])
    file.sync()
    file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
    return disk.open(path)


def _start_file(disk: Disk, path: Path, frame: Frame) -> File:
    """Make a file whose name, header and first frame are durable before it is written to. The header is synced on its
    own: a frame that survived a power cut without it would look like damage.
    """
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append([FILE_HEADER])
    file.sync()
    _write(file, frame)
    disk.sync_directory(path.parent)
    return file


def _write(file: File, frame: Frame) -> None:
    file.append([encode_frame(frame, file.size())])
    file.sync()


def _remove_before(disk: Disk, directory: Path, path: Path) -> None:
    """Remove the files that were written before this one."""
    for number in wal_numbers(disk, directory):
        if number < int(path.stem):
            disk.remove(wal_path(directory, number))


def _remove_covered(disk: Disk, directory: Path, index: int) -> None:
    """Remove older snapshots, and the files whose every entry is at or below `index`, except the last. Sync the
    directory in any case.
    """
    for older in indexes(disk, directory, snapshots.SUFFIX)[:-1]:
        disk.remove(snapshots.path_of(directory, older))
    for number in covered_by(wal_numbers(disk, directory), index):
        disk.remove(wal_path(directory, number))
    disk.sync_directory(directory)


def _failure(directory: Path, error: OSError) -> StorageFailure:
    return StorageFailure(
        f"The metadata commit log in {directory} cannot be written or read ({error}): check the disk, then start again."
    )
