"""A small disk that loses unsynced data: an oracle for crash tests, independent of the simulator's.

At a power cut every unsynced write, truncation and directory change is kept or lost on its own, in order. A kept write
may be torn. The cut comes at any operation: `cut_at` operations from now, the next one raises PowerCut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from headrace.base.ports import Buffer, File, Lock, Space


class PowerCut(BaseException):
    """The machine is gone. Not an Exception: no code under test survives it."""


Write = Callable[[bytearray], None]
Change = Callable[[dict[str, "Inode"]], None]


class Inode:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.content = bytearray()
        self.unsynced: list[Callable[[bool, Random], Write]] = []

    def lose(self, random: Random) -> None:
        for make in self.unsynced:
            if random.random() < 0.6:
                make(random.random() < 0.4, random)(self.durable)
        self.unsynced.clear()
        self.content = bytearray(self.durable)


class Directory:
    def __init__(self) -> None:
        self.durable: dict[str, Inode] = {}
        self.names: dict[str, Inode] = {}
        self.unsynced: list[Change] = []

    def change(self, change: Change) -> None:
        change(self.names)
        self.unsynced.append(change)

    def lose(self, random: Random) -> None:
        for change in self.unsynced:
            if random.random() < 0.5:
                change(self.durable)
        self.unsynced.clear()
        self.names = dict(self.durable)


class LossyDisk:
    """`base.ports.Disk`, as far as the commit log uses it: one directory, whose own name is durable."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.directory = Directory()
        self.cut_at: int | None = None
        self.fail_sync = False

    def operation(self) -> None:
        if self.cut_at is not None:
            self.cut_at -= 1
            if self.cut_at < 0:
                raise PowerCut

    def power_cut(self) -> None:
        """Lose what is not durable; the disk is as it would be found after a restart."""
        self.cut_at = None
        inodes = {id(inode): inode for inode in self.directory.names.values()}
        inodes |= {id(inode): inode for inode in self.directory.durable.values()}
        self.directory.lose(self.random)
        for inode in inodes.values():
            inode.lose(self.random)

    def open(self, path: Path, *, create: bool = False) -> LossyFile:
        names = self.directory.names
        if path.name not in names:
            if not create:
                raise FileNotFoundError(path)
            self.operation()
            inode = Inode()
            self.directory.change(lambda names: names.__setitem__(path.name, inode))
        return LossyFile(self, path, names[path.name])

    def begin_sync(self, file: File, done: Callable[[OSError | None], object]) -> None:
        """By a worker thread: the loop is another's."""

        def ended(work: asyncio.Future[None]) -> None:
            error = work.exception()
            assert error is None or isinstance(error, OSError)
            done(error)

        asyncio.get_running_loop().run_in_executor(None, file.sync).add_done_callback(ended)

    def exists(self, path: Path) -> bool:
        return path.name in self.directory.names

    def is_directory(self, path: Path) -> bool:
        return path.suffix == ""

    def size(self, path: Path) -> int:
        return len(self.directory.names[path.name].content)

    def modified_ms(self, path: Path) -> int:
        assert path.name in self.directory.names
        return 0

    def space(self, path: Path) -> Space:
        return Space(2**40, 2**39)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(self.directory.names)

    def make_directory(self, path: Path) -> None:
        return

    def rename(self, source: Path, target: Path) -> None:
        self.operation()

        def change(names: dict[str, Inode]) -> None:
            if (inode := names.pop(source.name, None)) is not None:
                names[target.name] = inode

        self.directory.change(change)

    def link(self, source: Path, target: Path) -> None:
        raise FileExistsError(target)

    def remove(self, path: Path) -> None:
        self.operation()

        def change(names: dict[str, Inode]) -> None:
            names.pop(path.name, None)

        self.directory.change(change)

    def remove_some(self, path: Path, bytes_max: int) -> bool:
        self.remove(path)
        return True

    def remove_tree(self, path: Path) -> None:
        raise PermissionError(path)

    def sync_directory(self, path: Path) -> None:
        self.operation()
        self.directory.unsynced.clear()
        self.directory.durable = dict(self.directory.names)

    def sync_all(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        for path in files:
            file = self.open(path)
            file.sync()
            file.close()
        for path in directories:
            self.sync_directory(path)

    def lock(self, path: Path) -> Lock:
        raise BlockingIOError(path)


class LossyFile:
    def __init__(self, disk: LossyDisk, path: Path, inode: Inode) -> None:
        self.disk = disk
        self.path = path
        self.inode = inode

    def size(self) -> int:
        return len(self.inode.content)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self.disk.operation()
        data = b"".join(buffers)
        self._write(len(self.inode.content), data)
        return len(data)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self.disk.operation()
        self._write(offset, b"".join(buffers))

    def _write(self, offset: int, data: bytes) -> None:
        def make(torn: bool, random: Random) -> Write:
            kept = data[: random.randrange(len(data) + 1)] if torn else data

            def write(content: bytearray) -> None:
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(kept)] = kept

            return write

        make(False, self.disk.random)(self.inode.content)
        self.inode.unsynced.append(make)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.inode.content[offset : offset + length])

    def truncate(self, size: int) -> None:
        self.disk.operation()

        def cut(content: bytearray) -> None:
            del content[size:]

        cut(self.inode.content)
        self.inode.unsynced.append(lambda torn, random: cut)

    def sync(self) -> None:
        self.disk.operation()
        if self.disk.fail_sync:
            raise OSError(5, "Input/output error")
        self.inode.unsynced.clear()
        self.inode.durable = bytearray(self.inode.content)

    def close(self) -> None:
        return
