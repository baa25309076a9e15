"""A small volume of its own for what a broker writes, which can be filled up and be given room again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

BYTES: Final = 512 * 1024 * 1024
PIECE_BYTES: Final = 4 * 1024 * 1024
BALLAST: Final = "ballast"


class Volume:
    """Mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Fill it to the last byte, including space that others free meanwhile."""
        descriptor = os.open(self.path / BALLAST, os.O_WRONLY | os.O_CREAT)
        try:
            while free := self._free():
                with suppress(OSError):  # others were faster
                    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, min(free, PIECE_BYTES))
        finally:
            os.close(descriptor)

    def _free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def make_room(self) -> None:
        """As there was before."""
        (self.path / BALLAST).unlink()


@contextmanager
def volume_at(path: Path) -> Iterator[Volume]:
    """In memory, and holding what the directory holds; nobody has files open there, now or when this ends."""
    aside = path.with_name(path.name + ".aside")
    path.mkdir(exist_ok=True)
    shutil.copytree(path, aside)
    _run("mount", "-t", "tmpfs", "-o", f"size={BYTES}", "headrace-test", str(path))
    try:
        shutil.copytree(aside, path, dirs_exist_ok=True)
        yield Volume(path)
    finally:
        _run("umount", str(path))


def are_permitted(path: Path) -> bool:
    """Whether volumes may be mounted here, which takes root on Linux."""
    try:
        with volume_at(path):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
