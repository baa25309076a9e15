"""The local engine: one directory of partition directories on a `Disk`. See `headrace.storage.engine.LogEngine`.

Promises that what it does not know it moves aside and never deletes, and that a name it gives or takes is durable
before the call returns (but for a new log's, which its first flush makes durable).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset
from headrace.base.limits import OPEN_SEGMENT_FILES_MAX
from headrace.base.ports import Disk, Space
from headrace.storage.engine import LogConfig, LogIdentity, StampMismatch
from headrace.storage.log.checkpoints import Stamp, decode_stamp, read_file
from headrace.storage.log.files import SegmentFiles
from headrace.storage.log.names import DELETED, STAMP, STRAY, out_of_use, partition_name
from headrace.storage.log.partition import LocalLog
from headrace.storage.log.recovery import Recovered, recover

FIRST_OFFSET: Final = Offset(0)


class LocalLogEngine:
    """`root` is made by `start` where it is missing; its parent must be there."""

    def __init__(self, disk: Disk, root: Path, *, open_files_max: int = OPEN_SEGMENT_FILES_MAX) -> None:
        self._disk = disk
        self._root = root
        self._files = SegmentFiles(disk, open_files_max)

    @property
    def root(self) -> Path:
        return self._root

    def space(self) -> Space:
        return self._disk.space(self.root)

    def start(self) -> None:
        try:
            self._disk.make_directory(self.root)
            self._disk.sync_directory(self.root.parent)
            for name in self._disk.list_directory(self.root):
                if name.endswith(DELETED):
                    self._disk.remove_tree(self.root / name)
        except OSError as error:
            raise StorageFailure(f"The directory {self.root} cannot be used: {error}.") from error

    def identities(self) -> list[LogIdentity]:
        stamps = (self._stamp(self.root / name) for name in self._disk.list_directory(self.root) if _in_use(name))
        return [stamp.identity for stamp in stamps if stamp is not None]

    def open(self, identity: LogIdentity, config: LogConfig, *, start: Offset = FIRST_OFFSET) -> LocalLog:
        directory = self.root / partition_name(identity)
        try:
            stamp, moved = self._claim(directory, identity)
            if stamp is None:
                recovered = Recovered(start=start, end=start)
            else:
                recovered = recover(self._disk, directory, stamp, config.index_interval_bytes)
        except OSError as error:
            raise StorageFailure(f"The log of {directory.name} cannot be opened: {error}.") from error
        return LocalLog(
            disk=self._disk,
            files=self._files,
            directory=directory,
            identity=identity,
            config=config,
            recovered=recovered,
            exists=stamp is not None,
            set_aside=moved,
        )

    def _claim(self, directory: Path, identity: LogIdentity) -> tuple[Stamp | None, Path | None]:
        """The stamp of this very log, or None where the directory is free, and where what was in it has gone."""
        if not self._disk.is_directory(directory):
            return None, None
        stamp = self._stamp(directory)
        if stamp is None or stamp.identity.topic_id != identity.topic_id:
            return None, self._move_aside(directory, stamp)
        if stamp.identity != identity:
            raise StampMismatch(
                f"{directory} is stamped {stamp.identity}, which is not {identity}: move it away, or restore its disk."
            )
        return stamp, None

    def set_aside(self, identity: LogIdentity) -> Path | None:
        directory = self.root / partition_name(identity)
        if not self._disk.is_directory(directory):
            return None
        return self._move_aside(directory, self._stamp(directory))

    def delete(self, identity: LogIdentity) -> None:
        directory = self.root / partition_name(identity)
        stamp = self._stamp(directory)
        if stamp is not None and stamp.identity.topic_id == identity.topic_id:
            self._disk.remove_tree(self._move(directory, stamp.identity.topic_id.hex, DELETED))

    def _stamp(self, directory: Path) -> Stamp | None:
        """None where there is none that can be read: nothing there was ever flushed."""
        try:
            return decode_stamp(read_file(self._disk, directory / STAMP))
        except (FileNotFoundError, NotADirectoryError, CorruptData):
            return None

    def _move_aside(self, directory: Path, stamp: Stamp | None) -> Path:
        return self._move(directory, stamp.identity.topic_id.hex if stamp else "unstamped", STRAY)

    def _move(self, directory: Path, mark: str, suffix: str) -> Path:
        """Rename, durably, to a name that is free."""
        target, copies = self.root / out_of_use(directory.name, mark, suffix), 0
        while self._disk.exists(target):
            copies += 1
            target = self.root / out_of_use(directory.name, f"{mark}.{copies}", suffix)
        self._disk.rename(directory, target)
        self._disk.sync_directory(self.root)
        return target


def _in_use(name: str) -> bool:
    return not name.endswith((STRAY, DELETED))
