"""Object stores: a local directory, or any store that obstore reaches (`headrace.storage.remote`).

Promises: an object appears whole and durable or not at all, and a put-if-absent never changes an object. Never lists,
reads or keeps a half-written object. All calls block: never make them on the event loop.
"""

from __future__ import annotations

import random as chance
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.base.errors import StorageFailure, UsageError
from headrace.base.limits import OBJECT_DIRECTORIES_REMEMBERED_MAX, OBJECT_KEY_CHARS_MAX
from headrace.base.ports import Buffer, Disk, ObjectMeta, Objects, Random

INCOMING: Final = ".incoming"
"""Directory under the root for objects that are not whole yet. No key may begin with it."""


def check_key(key: str) -> str:
    """The key itself. Raises UsageError where it is empty, too long, or would leave the store's root."""
    parts = key.split("/")
    if not key or len(key) > OBJECT_KEY_CHARS_MAX or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"'{key:.200}' is no object key: parts between '/' must not be empty, '.' or '..'.")
    if parts[0] == INCOMING:
        raise UsageError(f"'{key:.200}' is no object key: '{INCOMING}' is kept for objects being written.")
    return key


class DirectoryObjects:
    """Objects as files under one directory: a key is a relative path.

    A put writes a file with a random name under `.incoming` and syncs it. Then it gives the file its name by `link`
    (put-if-absent) or `rename` (replace). Finally it syncs the directories on the way. Several processes may share one
    root.
    """

    def __init__(self, disk: Disk, root: Path, *, random: Random | None = None) -> None:
        self._disk = disk
        self._root = root
        self._random: Random = random or chance.SystemRandom()
        self._durable: set[Path] = set()
        self._guard = threading.Lock()

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        return self.put_parts(key, [data], if_absent=if_absent)

    def put_parts(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = True) -> bool:
        """As `put`, for one object that consists of all parts."""
        target = self._path(key)
        try:
            return self._put(target, parts, if_absent)
        except FileExistsError as error:
            raise StorageFailure(
                f"Object '{key}' cannot be stored: a file stands where a directory must be."
            ) from error
        except OSError as error:
            raise StorageFailure(f"Object '{key}' could not be stored under {self._root}: {error}.") from error

    def _put(self, target: Path, parts: Sequence[Buffer], if_absent: bool) -> bool:
        self._make_durable_directory(target.parent)
        if if_absent and self._disk.exists(target):
            self._disk.sync_directory(target.parent)
            return False
        temporary = self._write_incoming(parts)
        stored = True
        try:
            if if_absent:
                stored = self._link(temporary, target)
            else:
                self._disk.rename(temporary, target)
        finally:
            if self._disk.exists(temporary):
                self._disk.remove(temporary)
        self._disk.sync_directory(target.parent)
        return stored

    def _link(self, temporary: Path, target: Path) -> bool:
        try:
            self._disk.link(temporary, target)
        except FileExistsError:
            return False
        return True

    def _write_incoming(self, parts: Sequence[Buffer]) -> Path:
        directory = self._root / INCOMING
        self._disk.make_directory(directory)
        temporary = directory / f"{self._random.getrandbits(128):032x}"
        file = self._disk.open(temporary, create=True)
        try:
            file.append(parts)
            file.sync()
        except OSError:
            file.close()
            self._disk.remove(temporary)
            raise
        file.close()
        return temporary

    def _make_durable_directory(self, directory: Path) -> None:
        """Make the directory and its parents, up to the root's, so that they survive a power cut. Directories that were
        made durable are remembered.

        Directories that exist are synced too, once: the process that made them may have died before its sync.
        """
        with self._guard:
            if directory in self._durable:
                return
        self._disk.make_directory(directory)
        at = directory
        while at != self._root.parent and at != at.parent:
            self._disk.sync_directory(at.parent)
            at = at.parent
        with self._guard:
            if len(self._durable) >= OBJECT_DIRECTORIES_REMEMBERED_MAX:
                self._durable.clear()
            self._durable.add(directory)

    def get(self, key: str) -> bytes:
        return self._read(key, 0, None)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._read(key, start, length)
        if len(data) != length:
            raise EOFError(f"Object '{key}' ends before byte {start + length}.")
        return data

    def _read(self, key: str, start: int, length: int | None) -> bytes:
        file = self._disk.open(self._existing(key))
        try:
            return file.read(start, file.size() if length is None else length)
        finally:
            file.close()

    def size(self, key: str) -> int:
        return self._disk.size(self._existing(key))

    def list(self, prefix: str) -> Iterable[ObjectMeta]:
        base = prefix.rpartition("/")[0]
        found = self._walk(self._root / base, f"{base}/" if base else "", prefix)
        return iter(sorted(found))

    def _walk(self, directory: Path, at: str, prefix: str) -> Iterator[ObjectMeta]:
        if not self._disk.is_directory(directory):
            return
        for name in self._disk.list_directory(directory):
            key, path = at + name, directory / name
            if key == INCOMING or not (key.startswith(prefix) or prefix.startswith(f"{key}/")):
                continue
            if self._disk.is_directory(path):
                yield from self._walk(path, f"{key}/", prefix)
            else:
                try:
                    yield ObjectMeta(key, self._disk.size(path), self._disk.modified_ms(path))
                except FileNotFoundError:  # removed since its name was read
                    continue

    def directories(self, prefix: str) -> Sequence[str]:
        directory = self._root / prefix
        if not self._disk.is_directory(directory):
            return []
        return [name for name in self._disk.list_directory(directory) if self._holds_any(directory / name)]

    def _holds_any(self, directory: Path) -> bool:
        """Whether the directory holds any object: directories stay when their objects are deleted."""
        return next(self._walk(directory, "", ""), None) is not None

    def delete(self, key: str) -> None:
        try:
            path = self._existing(key)
            self._disk.remove(path)
            self._disk.sync_directory(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageFailure(f"Object '{key}' could not be deleted under {self._root}: {error}.") from error

    def discard_unfinished(self, before_ms: int) -> int:
        incoming, count = self._root / INCOMING, 0
        for name in self._disk.list_directory(incoming) if self._disk.is_directory(incoming) else ():
            try:
                if self._disk.modified_ms(incoming / name) < before_ms:
                    self._disk.remove(incoming / name)
                    count += 1
            except FileNotFoundError:  # its put has just renamed it
                continue
        return count

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not self._disk.exists(path) or self._disk.is_directory(path):
            raise FileNotFoundError(f"No object '{key}' under {self._root}.")
        return path

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)


def open_objects(url: str, disk: Disk | None = None) -> Objects:
    """The store at a URL: ``file:///path`` or a plain path (over `disk`, default the machine's), else obstore's.

    Credentials and endpoints are taken from the environment alone (AWS_*, GOOGLE_*, AZURE_*). Raises UsageError
    where the URL names no store, names credentials, or its scheme needs a package that is not installed.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("", "file"):
        return DirectoryObjects(disk or _local_disk(), directory_of(url))
    from headrace.storage.remote import RemoteObjects

    return RemoteObjects.open(url)


def put_parts(objects: Objects, key: str, parts: Sequence[Buffer]) -> bool:
    """As `Objects.put`, of one object in several buffers. A directory takes the buffers as they are, without another
    buffer as large as all of them.
    """
    if isinstance(objects, DirectoryObjects):
        return objects.put_parts(key, parts)
    return objects.put(key, b"".join(parts))


def directory_of(url: str) -> Path:
    """The absolute directory of a ``file://`` URL or plain path. Raises UsageError where it names another host."""
    parts = urlsplit(url)
    if not parts.scheme and url:
        return Path(url).expanduser().resolve()
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"'{url}' is no directory: write file:///absolute/path.")
    return Path(unquote(parts.path))


def _local_disk() -> Disk:
    from headrace.storage.disk import LocalDisk

    return LocalDisk()
