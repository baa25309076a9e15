"""Reads a commit log's directory: which of its files count, and what a crash left behind. Decides; changes nothing.

The table in `storage.raftlog.raft_log` says what is done in each case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData
from headrace.base.ports import Disk
from headrace.base.values import Value
from headrace.raft.membership import Membership
from headrace.raft.messages import Entry, HardState, SnapshotMark
from headrace.storage.raftlog import snapshots
from headrace.storage.raftlog.snapshots import Snapshot
from headrace.storage.raftlog.walframe import Frame, Scan, scan

SUFFIX: Final = ".wal"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Recovery(Value):
    """The contents of a commit log when it was opened. All of them are synced."""

    hard_state: HardState
    mark: SnapshotMark
    """Mark of the snapshot. Where there is none: index 0 and term 0, with the membership at birth."""
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    """Entries after the snapshot, contiguous. The consensus core decides whether they are committed."""
    cut_bytes: int = 0
    """Length of the torn tail that was cut off, in bytes."""

    @property
    def snapshot_index(self) -> int:
        return self.mark.index

    @property
    def last_index(self) -> int:
        return self.mark.index + len(self.entries)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Found(Value):
    """The contents of a directory."""

    recovery: Recovery
    last: Scan | None
    """The file to continue in; None where it is not begun."""
    void: tuple[int, ...]
    """Files that do not count."""


def read_directory(disk: Disk, directory: Path, born: Membership) -> Found:
    """Read and check a directory. Raises CorruptData and OSError."""
    found = indexes(disk, directory, snapshots.SUFFIX)
    snapshot = snapshots.read(disk, snapshots.path_of(directory, found[-1]), born=born) if found else None
    mark = SnapshotMark(0, 0, born) if snapshot is None else snapshot.mark
    numbers = wal_numbers(disk, directory)
    numbers = numbers[len(covered_by(numbers, mark.index)) :]
    scans = {number: _scanned(disk, directory, number) for number in numbers}
    cut_bytes = _check_damage(disk, directory, scans)
    scans, void = _without_void(scans, mark.index)
    state, entries = _replayed(directory, scans, mark.index)
    if not scans and mark.index:
        raise damaged(directory, f"what came after entry {mark.index} is missing")
    last = scans[max(scans)] if scans else None
    recovery = Recovery(
        hard_state=state, mark=mark, snapshot=snapshot, entries=tuple(entries), cut_bytes=cut_bytes if last else 0
    )
    return Found(recovery, last if last is not None and last.frames else None, void)


def _scanned(disk: Disk, directory: Path, number: int) -> Scan:
    found = scan(contents(disk, wal_path(directory, number)))
    return replace(found, frames=_dated(found, number))


def frames_of(disk: Disk, directory: Path) -> Iterator[tuple[Path, Frame]]:
    """Every good frame in every file, as it was written. Raises OSError."""
    for number in wal_numbers(disk, directory):
        path = wal_path(directory, number)
        for frame in scan(contents(disk, path)).frames:
            yield path, frame


def _check_damage(disk: Disk, directory: Path, scans: dict[int, Scan]) -> int:
    """Bytes of the torn tail in the last file. Raises CorruptData where anything else is bad."""
    cut_bytes = 0
    for number, found in scans.items():
        path = wal_path(directory, number)
        cut_bytes = disk.size(path) - found.good_bytes
        if found.damaged or (cut_bytes and number != max(scans)):
            raise damaged(path, f"the bytes from {found.good_bytes} on are not what was written")
    return cut_bytes


def _without_void(scans: dict[int, Scan], base: int) -> tuple[dict[int, Scan], tuple[int, ...]]:
    """The files that count, and those that do not. Files before one that restores the present snapshot do not count.
    Neither does the last file, if it restores a snapshot that never got its name.
    """
    void: list[int] = []
    counting = dict(scans)
    for number, found in scans.items():
        if not found.frames or not found.frames[0].restores:
            continue
        if found.frames[0].follows <= base:
            void += [each for each in counting if each < number]
        elif number == max(scans):
            void.append(number)
        counting = {each: counting[each] for each in counting if each not in void}
    return counting, tuple(void)


def _replayed(directory: Path, scans: dict[int, Scan], base: int) -> tuple[HardState, list[Entry]]:
    """The hard state and the entries above `base` that result from all frames in order."""
    state, entries = HardState(), list[Entry]()
    for number, found in scans.items():
        for frame in found.frames:
            end, follows = base + len(entries), frame.follows
            if follows > end:
                raise damaged(wal_path(directory, number), f"entry {follows + 1} follows entry {end}")
            state = frame.hard_state
            if frame.entries:
                del entries[max(0, follows - base) :]
                entries += frame.entries[max(0, base - follows) :]
    return state, entries


def _dated(found: Scan, number: int) -> tuple[Frame, ...]:
    """The frames, with the offsets that version 1 omitted: there the name of a file gives its beginning."""
    if found.is_current:
        return found.frames
    frames, end = list[Frame](), number - 1
    for frame in found.frames:
        frames.append(frame if frame.entries else replace(frame, follows=end))
        end = frames[-1].last_index
    return tuple(frames)


def covered_by(numbers: Sequence[int], index: int) -> list[int]:
    """Those of the files, given in order, whose every entry is at or below `index`. The last file is never among
    them.
    """
    return [number for number, following in pairwise(numbers) if following <= index + 1]


def indexes(disk: Disk, directory: Path, suffix: str) -> list[int]:
    stems = [name.removesuffix(suffix) for name in disk.list_directory(directory) if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdecimal())


def wal_numbers(disk: Disk, directory: Path) -> list[int]:
    """Numbers of the files, in the order in which they were written."""
    return indexes(disk, directory, SUFFIX)


def wal_path(directory: Path, number: int) -> Path:
    return directory / f"{number:020d}{SUFFIX}"


def contents(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def damaged(path: Path, what: str) -> CorruptData:
    return CorruptData(
        f"The metadata commit log {path} is damaged ({what}): where there are other brokers, start this one in an "
        "empty data directory with --join; where there are none, restore the directory from a backup."
    )
