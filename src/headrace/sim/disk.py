"""The Disk port over a simulated medium: it loses unsynced data, and fails on request.

A `SimDisk` is the hardware, which outlives processes and power cuts. A `Mount` is one process's view of it, and dies
with the process. A sync on the event loop raises, because it would block a real broker.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headrace.base.ports import Buffer, File, Random, Space
from headrace.sim.clock import BORN_MS
from headrace.sim.loop import VirtualLoop
from headrace.sim.nodes import DirectoryNode, FileNode, Node, Rename, Resize, Write
from headrace.sim.process import Process

VOLUME_BYTES: Final = 1 << 40
SYNC_SECONDS_MIN: Final = 0.000_1
SYNC_SECONDS_MAX: Final = 0.004
SLOW_SYNC_SECONDS_MAX: Final = 0.15
SLOW_SYNC_PROBABILITY: Final = 0.02
PAUSE_PROBABILITY: Final = 0.2
"""Share of a worker's disk operations that let the loop run before they continue."""

TORN_PROBABILITY: Final = 0.6
"""Share of the writes stopped by a death or a full disk that leave a part of themselves."""


class SimDisk:
    """The hardware. It counts `syncs` and `operations` (those that change something, including syncs)."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.root = DirectoryNode()
        self.locks: dict[Path, Process] = {}
        self.full: Path | None = None
        """The volume below this path has no room."""
        self.stuck: Path | None = None
        """Directories below this path cannot be renamed."""
        self.slowness = 1.0
        """Factor by which each sync takes longer."""
        self._sound_syncs = self._failing_syncs = 0
        self.operations = 0
        self.syncs = 0
        self._trigger_in = 0
        self._trigger: Callable[[], None] | None = None

    def trigger(self, operations: int, action: Callable[[], None]) -> None:
        """Call `action` in the middle of the n-th operation from now (1: the next); it may kill the process."""
        self._trigger_in, self._trigger = operations, action

    def disarm(self) -> None:
        self._trigger = None

    def heal(self) -> None:
        """End all faults: no trigger, no failing syncs, room again, and names that can be changed."""
        self._trigger, self._failing_syncs, self.full, self.stuck = None, 0, None, None

    def has_room(self, path: Path) -> bool:
        """Whether the volume with this path has room."""
        return self.full is None or not path.is_relative_to(self.full)

    def fail_syncs(self, count: int, *, after: int = 0) -> None:
        """Let `count` syncs fail, after `after` more have succeeded."""
        self._sound_syncs, self._failing_syncs = after, count

    def sync_fails(self) -> bool:
        """Count one sync; returns whether it fails."""
        self.syncs += 1
        if self._failing_syncs == 0:
            return False
        if self._sound_syncs > 0:
            self._sound_syncs -= 1
            return False
        self._failing_syncs -= 1
        return True

    def power_cut(self) -> None:
        """Lose everything except the medium. The processes must be dead already."""
        self.root.power_cut(self.random)
        self.locks.clear()

    def make_durable_directory(self, path: Path) -> None:
        """Make a directory that was durable long ago, like an operator's mkdir."""
        node = self.root
        for part in path.parts[1:]:
            child = node.names.setdefault(part, DirectoryNode())
            assert isinstance(child, DirectoryNode)
            node.durable[part] = child
            node = child

    def make_durable_file(self, path: Path, data: bytes) -> None:
        """Make a file that was durable long ago."""
        self.make_durable_directory(path.parent)
        node: Node = self.root
        for part in path.parent.parts[1:]:
            assert isinstance(node, DirectoryNode)
            node = node.names[part]
        assert isinstance(node, DirectoryNode)
        file = FileNode()
        file.data, file.durable = bytearray(data), bytearray(data)
        node.names[path.name] = node.durable[path.name] = file

    def durable_bytes(self, path: Path) -> bytes | None:
        """The content on the medium under this name; None: there is none."""
        node: Node | None = self.root
        for part in path.parts[1:]:
            node = node.durable.get(part) if isinstance(node, DirectoryNode) else None
        return bytes(node.durable) if isinstance(node, FileNode) else None

    def about_to_trigger(self) -> bool:
        return self._trigger is not None and self._trigger_in <= 1

    def step(self) -> bool:
        """Count one operation; True when the trigger fired in it."""
        self.operations += 1
        if self._trigger is not None:
            self._trigger_in -= 1
            if self._trigger_in <= 0:
                action, self._trigger = self._trigger, None
                action()
                return True
        return False

    def sync_seconds(self) -> float:
        slow = self.random.random() < SLOW_SYNC_PROBABILITY
        longest = SLOW_SYNC_SECONDS_MAX if slow else SYNC_SECONDS_MAX
        return self.slowness * (SYNC_SECONDS_MIN + self.random.random() * longest)


class SimFile:
    """An open file of one process."""

    def __init__(self, mount: Mount, path: Path, node: FileNode) -> None:
        self._mount = mount
        self._path = path
        self._node = node
        self._open = True

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        self._check()
        return len(self._node.data)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        self._write(None, data)
        return len(data)

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check()
        self._write(offset, b"".join(buffers))

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        self._mount.maybe_pause()
        return bytes(self._node.data[offset : offset + length])

    def truncate(self, size: int) -> None:
        self._check()
        self._mount.step()
        self._node.change(Resize(size))
        self._node.changed_at = self._mount.disk.loop.time()

    def sync(self) -> None:
        self._check()
        self._mount.check_not_on_loop("sync")
        self._mount.step()
        disk = self._mount.disk
        mark = self._node.begin_sync()
        self._mount.pause(disk.sync_seconds())
        if disk.sync_fails():
            self._node.fail_sync(mark, disk.random)
            raise OSError(errno.EIO, "simulated sync failure", str(self._path))
        self._node.end_sync(mark)

    def close(self) -> None:
        self._open = False

    def _write(self, offset: int | None, data: bytes) -> None:
        disk = self._mount.disk
        is_full = not disk.has_room(self._path)
        if (is_full or disk.about_to_trigger()) and disk.random.random() < TORN_PROBABILITY:
            torn = data[: disk.random.randrange(0, len(data) + 1)]
            self._node.change(Write(len(self._node.data) if offset is None else offset, torn))
        if is_full:
            raise OSError(errno.ENOSPC, "simulated full disk", str(self._path))
        self._mount.step()
        if data:
            self._node.change(Write(len(self._node.data) if offset is None else offset, data))
            self._node.changed_at = disk.loop.time()

    def _check(self) -> None:
        self._mount.process.check_alive()
        if not self._open:
            raise ValueError(f"{self._path} is closed")


class SimLock:
    """A claim that ends with its process."""

    def __init__(self, mount: Mount, path: Path) -> None:
        self._mount = mount
        self._path = path

    def release(self) -> None:
        locks = self._mount.disk.locks
        if locks.get(self._path) is self._mount.process:
            del locks[self._path]


class Mount:
    """The Disk port of one process."""

    def __init__(self, disk: SimDisk, process: Process) -> None:
        self.disk = disk
        self.process = process

    # files and directories

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        self.process.check_alive()
        if create and path.name not in self._directory(path.parent).names:
            self.step()
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            if not self.disk.has_room(path):
                raise OSError(errno.ENOSPC, "simulated full disk", str(path))
            node = FileNode()
            parent.change(Rename(adds=[(path.name, node)]))
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        return SimFile(self, path, node)

    def begin_sync(self, file: File, done: Callable[[OSError | None], object]) -> None:
        work = self.disk.loop.run_in_executor(None, file.sync)

        def ended(work: asyncio.Future[None]) -> None:
            failure = None if work.cancelled() else work.exception()
            if failure is None or isinstance(failure, OSError):
                done(failure)
            else:
                raise failure

        work.add_done_callback(ended)

    def exists(self, path: Path) -> bool:
        self.process.check_alive()
        return self._find(path) is not None

    def is_directory(self, path: Path) -> bool:
        self.process.check_alive()
        return isinstance(self._find(path), DirectoryNode)

    def size(self, path: Path) -> int:
        return len(self._file(path).data)

    def modified_ms(self, path: Path) -> int:
        return BORN_MS + int(self._file(path).changed_at * 1000)

    def _file(self, path: Path) -> FileNode:
        self.process.check_alive()
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def space(self, path: Path) -> Space:
        self.process.check_alive()
        self._directory(path)
        return Space(VOLUME_BYTES, VOLUME_BYTES if self.disk.has_room(path) else 0)

    def list_directory(self, path: Path) -> list[str]:
        self.process.check_alive()
        self.maybe_pause()
        return sorted(self._directory(path).names)

    def make_directory(self, path: Path) -> None:
        self.process.check_alive()
        node: Node = self.disk.root
        for part in path.parts[1:]:
            if not isinstance(node, DirectoryNode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
            if part not in node.names:
                self.step()
            if part not in node.names:
                node.change(Rename(adds=[(part, DirectoryNode())]))
            node = node.names[part]
        if isinstance(node, FileNode):
            raise FileExistsError(errno.EEXIST, "is a file", str(path))

    def rename(self, source: Path, target: Path) -> None:
        self.process.check_alive()
        self.step()
        old, new = self._directory(source.parent), self._directory(target.parent)
        node = old.names.get(source.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        stuck = self.disk.stuck
        if stuck is not None and isinstance(node, DirectoryNode) and source.is_relative_to(stuck):
            raise OSError(errno.EIO, "simulated failure", str(source))
        replaced = new.names.get(target.name)
        if isinstance(replaced, DirectoryNode) and replaced.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(target))
        if old is new:
            old.change(Rename(removes=[(source.name, node)], adds=[(target.name, node)]))
        else:
            new.change(Rename(adds=[(target.name, node)]))
            old.change(Rename(removes=[(source.name, node)]))

    def link(self, source: Path, target: Path) -> None:
        self.process.check_alive()
        self.step()
        node, parent = self._find(source), self._directory(target.parent)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        if target.name in parent.names:
            raise FileExistsError(errno.EEXIST, "it exists", str(target))
        parent.change(Rename(adds=[(target.name, node)]))

    def remove(self, path: Path) -> None:
        self.process.check_alive()
        self.step()
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        parent.change(Rename(removes=[(path.name, node)]))

    def remove_some(self, path: Path, bytes_max: int) -> bool:
        self.remove(path)
        return True

    def remove_tree(self, path: Path) -> None:
        self.process.check_alive()
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, DirectoryNode):
            for name in sorted(node.names):
                self.remove_tree(path / name)
        self.step()
        self._directory(path.parent).change(Rename(removes=[(path.name, node)]))

    def sync_directory(self, path: Path) -> None:
        self.process.check_alive()
        self.check_not_on_loop("sync_directory")
        self.step()
        node = self._directory(path)
        mark = node.begin_sync()
        self.pause(self.disk.sync_seconds())
        if self.disk.sync_fails():
            raise OSError(errno.EIO, "simulated sync failure", str(path))
        node.end_sync(mark)

    def sync_all(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        for path in files:
            file = self.open(path)
            file.sync()
            file.close()
        for path in directories:
            self.sync_directory(path)

    def lock(self, path: Path) -> SimLock:
        self.open(path, create=True).close()
        holder = self.disk.locks.get(path)
        if holder is not None and holder.alive:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path))
        self.disk.locks[path] = self.process
        return SimLock(self, path)

    # time and death

    def step(self) -> None:
        """Called before each operation that changes something: here a process may die, and a worker may lose its
        turn."""
        if self.disk.step():
            self.process.check_alive()
        self.maybe_pause()

    def maybe_pause(self) -> None:
        if self.disk.loop.workers.running is not None and self.disk.random.random() < PAUSE_PROBABILITY:
            self.pause(self.disk.random.random() * 0.000_5)

    def pause(self, seconds: float) -> None:
        self.disk.loop.workers.pause(seconds)
        self.process.check_alive()

    def check_not_on_loop(self, what: str) -> None:
        if self.disk.loop.workers.running is None:
            raise RuntimeError(f"{what} on the event loop would block the broker")

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self.disk.root
        for part in path.parts[1:]:
            if not isinstance(node, DirectoryNode):
                return None
            node = node.names.get(part)
        return node

    def _directory(self, path: Path) -> DirectoryNode:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return node
