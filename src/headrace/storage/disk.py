"""The filesystem of this machine, behind the port `Disk`.

Promises:
- An append is one `pwritev`, where the kernel accepts all of it at once.
- A sync is `fdatasync`.
- A directory's entries are durable after `sync_directory`.

Never retries a failed sync and never hides an OSError.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

from headrace.base.ports import Buffer, File, Lock, Space
from headrace.storage.syncs import Syncs, syncs_on

BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX on Linux. More buffers than this are written in several calls."""


class LocalFile:
    """One open file. Appends go to the end as this handle knows it: one writer per file, any number of readers."""

    __slots__ = ("_descriptor", "_end", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path: Final = path
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        written = self._write(self._end, buffers)
        self._end += written
        return written

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._end = max(self._end, offset + self._write(offset, buffers))

    def _write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        total = 0
        for buffer in buffers:
            total += len(buffer)
        if len(buffers) <= BUFFERS_PER_WRITE_MAX:
            written = os.pwritev(self._descriptor, buffers, offset)
            if written != total:
                self._write_rest(offset, buffers, written)
        else:
            self._write_rest(offset, buffers, 0)
        return total

    def _write_rest(self, offset: int, buffers: Sequence[Buffer], written: int) -> None:
        """Continue after a short write, or write in groups that the kernel accepts."""
        left = [memoryview(buffer).cast("B") for buffer in buffers]
        at, skip = offset + written, written
        while left:
            while left and skip >= len(left[0]):
                skip -= len(left.pop(0))
            if not left:
                return
            left[0], skip = left[0][skip:], 0
            skip = os.pwritev(self._descriptor, left[:BUFFERS_PER_WRITE_MAX], at)
            at += skip

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self._descriptor, missing, offset + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._end = size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalLock:
    """An exclusive `flock`, which the kernel drops when the process dies."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalDisk:
    """The port `Disk` on the local filesystem."""

    def __init__(self) -> None:
        self._syncs: Syncs | None = None

    def begin_sync(self, file: File, done: Callable[[OSError | None], object]) -> None:
        loop = asyncio.get_running_loop()
        if self._syncs is None or self._syncs.loop is not loop:
            self._syncs = syncs_on(loop)
        assert isinstance(file, LocalFile)
        self._syncs.begin(file, done)

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return LocalFile(path, os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def space(self, path: Path) -> Space:
        volume = os.statvfs(path)
        is_read_only = bool(volume.f_flag & os.ST_RDONLY)
        return Space(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize, is_read_only)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_some(self, path: Path, bytes_max: int) -> bool:
        found = path.stat()
        if found.st_size <= bytes_max or found.st_nlink > 1:
            path.unlink()
            return True
        os.truncate(path, found.st_size - bytes_max)
        return False

    def remove_tree(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        """Syncs each path once, even if others fail: a second sync of a path that failed would falsely succeed."""
        works = [partial(self._sync_file, path) for path in files]
        works += [partial(self.sync_directory, path) for path in directories]
        threads: list[Thread] = []
        failures: list[BaseException] = []

        def run(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:  # all of them cross over to the caller
                failures.append(error)

        for work in works:
            thread = Thread(target=run, args=(work,), name="sync")
            try:
                thread.start()
            except RuntimeError:  # the machine allows no more threads
                run(work)
            else:
                threads.append(thread)
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _sync_file(self, path: Path) -> None:
        file = self.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def lock(self, path: Path) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return LocalLock(descriptor)


class ReadOnlyDisk(LocalDisk):
    """Opens nothing for writing. For processes that read files of another process, and may lack the right to write
    them.
    """

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            raise OSError(errno.EROFS, "opened for reading only", str(path))
        return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
