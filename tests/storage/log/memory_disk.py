"""A Disk in memory whose power can be cut, for the laws of the log. Single-threaded; the medium is the simulator's."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from headrace.base.ports import Buffer, File, Lock, Space
from headrace.sim.nodes import DirectoryNode, FileNode, Node, Rename, Resize, Write


class PowerCut(BaseException):
    """In the middle of an operation."""


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: Path, node: FileNode) -> None:
        self._disk = disk
        self.path = path
        self.node = node
        self.closed = False

    def size(self) -> int:
        assert not self.closed
        return len(self.node.data)

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self._write(len(self.node.data), data)
        self._disk.appends += 1
        return len(data)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._write(offset, b"".join(buffers))

    def _write(self, offset: int, data: bytes) -> None:
        assert not self.closed
        torn = data[: self._disk.chance.randrange(0, len(data) + 1)]
        if self._disk.full or self._disk.next_is_last():
            self.node.change(Write(offset, torn))
        self._disk.step()
        if self._disk.full:
            raise OSError(errno.ENOSPC, "full")
        self.node.change(Write(offset, data))

    def read(self, offset: int, length: int) -> bytes:
        assert not self.closed
        self._disk.reads += 1
        return bytes(self.node.data[offset : offset + length])

    def truncate(self, size: int) -> None:
        assert not self.closed
        self._disk.step()
        self.node.change(Resize(size))

    def sync(self) -> None:
        assert not self.closed
        self._disk.step()
        self._disk.count_sync()
        mark = self.node.begin_sync()
        if self._disk.failing:
            self.node.fail_sync(mark, self._disk.chance)
            raise OSError(errno.EIO, "sync failed")
        self.node.end_sync(mark)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._disk.open_files -= 1


class MemoryDisk:
    """`cut_in` operations from now the power goes; `revive` then gives what is left."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = Random(seed)
        self.root = DirectoryNode()
        self.begun: list[Callable[[], object]] = []
        self.full = False
        self.usable = 2**39
        """Bytes that are left, as it tells where it is not full."""
        self.failing = False
        self.cut_in = self._good_syncs = -1
        self.together = 0
        """Syncs that were waited for with others."""
        self.syncs = self.appends = self.reads = self.open_files = self.operations = 0

    def power_cut(self) -> None:
        """Cut the power now, between operations. The disk goes on with what is left."""
        self.cut_in = -1
        self.begun = []
        self.fail_after(-1)
        self.root.power_cut(self.chance)

    def fail_after(self, good: int) -> None:
        """So many more syncs succeed, and then none; -1: all."""
        self.failing, self._good_syncs = good == 0, good

    def count_sync(self) -> None:
        self.syncs += 1
        self.failing = self.failing or self._good_syncs == 0
        self._good_syncs = max(-1, self._good_syncs - 1)

    def next_is_last(self) -> bool:
        return self.cut_in == 1

    def step(self) -> None:
        self.operations += 1
        if self.cut_in > 0:
            self.cut_in -= 1
            if self.cut_in == 0:
                raise PowerCut

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.step()
            if self.full:
                raise OSError(errno.ENOSPC, "full")
            node = FileNode()
            parent.change(Rename(adds=[(path.name, node)]))
        assert isinstance(node, FileNode)
        self.open_files += 1
        return MemoryFile(self, path, node)

    def begin_sync(self, file: File, done: Callable[[OSError | None], object]) -> None:
        """Told by `end_syncs`; done now or then, as chance has it."""
        if self.chance.random() < 0.5:
            failure = _synced(file)
            self.begun.append(lambda: done(failure))
        else:
            self.begun.append(lambda: done(_synced(file)))

    def end_syncs(self) -> None:
        """Deliver the results of syncs that the loop would get later."""
        begun, self.begun = self.begun, []
        for end in begun:
            end()

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: Path) -> bool:
        return isinstance(self._find(path), DirectoryNode)

    def size(self, path: Path) -> int:
        return len(self.file(path).data)

    def modified_ms(self, path: Path) -> int:
        self.file(path)
        return 0

    def space(self, path: Path) -> Space:
        self._directory(path)
        return Space(2**40, 0 if self.full else self.usable)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(self._directory(path).names)

    def make_directory(self, path: Path) -> None:
        node: Node = self.root
        for part in path.parts[1:]:
            assert isinstance(node, DirectoryNode)
            if part not in node.names:
                self.step()
                node.change(Rename(adds=[(part, DirectoryNode())]))
            node = node.names[part]

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        assert source.parent == target.parent
        parent = self._directory(source.parent)
        node = parent.names[source.name]
        parent.change(Rename(removes=[(source.name, node)], adds=[(target.name, node)]))

    def link(self, source: Path, target: Path) -> None:
        self.step()
        parent, node = self._directory(target.parent), self.file(source)
        if target.name in parent.names:
            raise FileExistsError(errno.EEXIST, "it exists", str(target))
        parent.change(Rename(adds=[(target.name, node)]))

    def remove(self, path: Path) -> None:
        self.step()
        parent = self._directory(path.parent)
        if path.name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        parent.change(Rename(removes=[(path.name, parent.names[path.name])]))

    def remove_some(self, path: Path, bytes_max: int) -> bool:
        self.remove(path)
        return True

    def remove_tree(self, path: Path) -> None:
        self.step()
        parent = self._directory(path.parent)
        if path.name in parent.names:
            parent.change(Rename(removes=[(path.name, parent.names[path.name])]))

    def sync_directory(self, path: Path) -> None:
        self.step()
        self.count_sync()
        node = self._directory(path)
        if self.failing:
            raise OSError(errno.EIO, "sync failed")
        node.end_sync(node.begin_sync())

    def sync_all(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        self.together += max(0, len(files) + len(directories) - 1)
        for path in files:
            file = self.open(path)
            file.sync()
            file.close()
        for path in directories:
            self.sync_directory(path)

    def lock(self, path: Path) -> Lock:
        raise AssertionError("the log takes no locks")

    # for tests

    def file(self, path: Path) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def pending(self) -> bool:
        """Anything is not yet durable: contents or names."""
        return _pending(self.root)

    def copy(self) -> MemoryDisk:
        """A copy of the contents, all of it durable."""
        other = MemoryDisk()
        other.root = _copy(self.root)
        return other

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for part in path.parts[1:]:
            node = node.names.get(part) if isinstance(node, DirectoryNode) else None
        return node

    def _directory(self, path: Path) -> DirectoryNode:
        node = self._find(path)
        if not isinstance(node, DirectoryNode):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return node


def _synced(file: File) -> OSError | None:
    try:
        file.sync()
    except OSError as error:
        return error
    return None


def _pending(node: Node) -> bool:
    below = node.names.values() if isinstance(node, DirectoryNode) else ()
    return bool(node.pending) or any(map(_pending, below))


def _copy(directory: DirectoryNode) -> DirectoryNode:
    other = DirectoryNode()
    for name, node in directory.names.items():
        if isinstance(node, DirectoryNode):
            other.names[name] = _copy(node)
        else:
            file = FileNode()
            file.data, file.durable = bytearray(node.data), bytearray(node.data)
            other.names[name] = file
    other.durable = dict(other.names)
    return other
