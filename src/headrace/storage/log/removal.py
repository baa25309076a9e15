"""Removes the files of a deleted log a little at a time: a filesystem that frees much at once delays all syncs.

Calls block, one at a time, in a worker thread. A file that has another name too is never cut, only unlinked: somebody
may keep links to segments.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

from headrace.base.limits import DELETED_AT_ONCE_BYTES, DELETED_FILE_BYTES_MIN
from headrace.base.ports import Disk


class Removal:
    """A `LogRemoval`."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.directory: Final = directory
        self._disk = disk
        self._files: deque[Path] | None = None
        """Files still to remove; None: not listed yet."""

    @property
    def name(self) -> str:
        return str(self.directory)

    def some(self) -> bool:
        if self._files is None:
            self._files = deque(self._found())
        room, failed = DELETED_AT_ONCE_BYTES, 0
        while self._files:
            if room <= 0:
                return False
            try:
                size = max(self._disk.size(self._files[0]), DELETED_FILE_BYTES_MIN)
                if not self._disk.remove_some(self._files[0], room):
                    return False
            except FileNotFoundError:  # another process removed it
                size = 0
            except OSError:  # the files behind it need not wait
                failed += 1
                if failed == len(self._files):
                    raise
                self._files.rotate(-1)
                continue
            self._files.popleft()
            room -= size
        self._disk.remove_tree(self.directory)
        return True

    def _found(self) -> list[Path]:
        """The files in it and in its directories: contents kept by `begin_anew` may be large."""
        if not self._disk.is_directory(self.directory):
            return []
        paths = [self.directory / name for name in self._disk.list_directory(self.directory)]
        for path in [path for path in paths if self._disk.is_directory(path)]:
            paths += [path / name for name in self._disk.list_directory(path)]
        return [path for path in paths if not self._disk.is_directory(path)]
