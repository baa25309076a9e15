"""The ports to the world: time, randomness, files and objects. The broker reaches the world through these alone.

The real ones are in `headrace.storage.disk`, `headrace.storage.objects` and `headrace.broker.system`. The simulator's,
which lose unsynced data, are in `headrace.sim`. All calls block and may be made from a worker thread. Calls that may
run on the event loop say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Clock(Protocol):
    """Two clocks: one for people and records, one for durations."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970-01-01T00:00Z. It may jump."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never decreases."""


class Random(Protocol):
    """Randomness that a seed can replace. `random.Random` and `random.SystemRandom` satisfy it."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def randrange(self, start: int, stop: int) -> int:
        """An int in [start, stop)."""

    def getrandbits(self, k: int, /) -> int:
        """An int of k random bits."""


class File(Protocol):
    """One open file. Offsets and sizes are in bytes.

    A write reaches the page cache, no more. It survives the death of the process, but survives a power cut only after a
    `sync` that began after the write returned. Any method may raise OSError. After a failed `sync` the unsynced bytes
    are in doubt for ever, and `sync` is never called again (see "fsyncgate").
    """

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Current length, including written but unsynced bytes."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at the end, in order and in full; return the number of bytes. Loop-safe (page cache)."""

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers in place from `offset`, in order and in full."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file. Loop-safe for hot data."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """fdatasync: contents and length are durable on return. Never on the event loop."""

    def close(self) -> None:
        """Idempotent."""


class Lock(Protocol):
    """An exclusive claim on a path, held until released or the process dies."""

    def release(self) -> None: ...


class Space(NamedTuple):
    """Room on a volume, in bytes."""

    total: int
    usable: int
    is_read_only: bool = False


class Disk(Protocol):
    """A filesystem. Paths are absolute. A new, renamed or removed name survives a power cut only after
    `sync_directory` of its parent."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, make it where absent. Raises FileNotFoundError."""

    def begin_sync(self, file: File, done: Callable[[OSError | None], object]) -> None:
        """`File.sync` without waiting. Later, on the loop, `done` is called with the failure, or with None. Call it on
        the event loop. The file stays open until then."""

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int:
        """Length in bytes. Raises FileNotFoundError."""

    def modified_ms(self, path: Path) -> int:
        """Time when the file's contents were last changed, as `Clock.now_ms`. Raises FileNotFoundError."""

    def space(self, path: Path) -> Space:
        """Room on the volume that holds this directory. Raises FileNotFoundError."""

    def list_directory(self, path: Path) -> list[str]:
        """The names in a directory, sorted. Raises FileNotFoundError."""

    def make_directory(self, path: Path) -> None:
        """Make it and its missing parents. Idempotent."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces a target file."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Atomic. Raises FileExistsError where the target exists."""

    def remove(self, path: Path) -> None:
        """Remove a file. Raises FileNotFoundError."""

    def remove_some(self, path: Path, bytes_max: int) -> bool:
        """Cut `bytes_max` bytes off a file's end, or remove the file where it has no more. A file that has another name
        is only unlinked, and stays as it is under that name. Returns whether it is removed. Raises
        FileNotFoundError."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all in it. Idempotent."""

    def sync_directory(self, path: Path) -> None:
        """fsync of a directory: its entries are durable on return. Never on the event loop."""

    def sync_all(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        """`File.sync` of each of these files and `sync_directory` of each of these directories, at the same time where
        possible. A caller that needs no order among them waits for the disk once. Raises OSError where one fails, after
        all have ended. Never on the event loop."""

    def lock(self, path: Path) -> Lock:
        """Claim the file, which is made if absent. Raises BlockingIOError where another process holds it."""


class ObjectMeta(NamedTuple):
    key: str
    size: int
    """Size in bytes."""
    modified_ms: int
    """Time when it was stored, by the store's own clock: milliseconds since 1970-01-01T00:00Z."""


class ReadableObjects(Protocol):
    """The part of `Objects` that a reader of a catalog's objects needs."""

    def get_range(self, key: str, start: int, length: int) -> bytes: ...

    def list(self, prefix: str) -> Iterable[ObjectMeta]: ...


class Objects(Protocol):
    """An object store: flat keys with `/` in them, write-once objects. Blocking; never on the event loop."""

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        """Store durably before returning. With `if_absent`, returns False and changes nothing where the key exists."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises FileNotFoundError, or EOFError where the object is shorter."""

    def size(self, key: str) -> int:
        """Size in bytes. Raises FileNotFoundError."""

    def list(self, prefix: str) -> Iterable[ObjectMeta]:
        """All objects whose key begins with `prefix`, in key order."""

    def directories(self, prefix: str) -> Sequence[str]:
        """The parts of keys that follow `prefix`, which ends with `/`, up to the next `/`: each once, in order."""

    def delete(self, key: str) -> None:
        """Idempotent."""

    def discard_unfinished(self, before_ms: int) -> int:
        """Remove the leftovers of unfinished puts that began before `before_ms`, as far as they can be found. Returns
        how many there were. A put that is still under way fails."""
