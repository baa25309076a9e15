"""Laws of an object store, held by a directory and by obstore alike; and what only a directory must do."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.errors import StorageFailure, UsageError
from headrace.base.ports import Buffer, File, Objects
from headrace.storage.disk import LocalDisk, ReadOnlyDisk
from headrace.storage.objects import INCOMING, DirectoryObjects, directory_of, open_objects


@pytest.fixture(params=["file", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "s3":
        return open_objects(request.getfixturevalue("s3_url"))
    return open_objects(f"file://{tmp_path}/store" if request.param == "file" else "memory:///")


def test_a_put_if_absent_never_changes_what_is_there(objects: Objects) -> None:
    assert objects.put("a/b", b"one")
    assert not objects.put("a/b", b"two")
    assert objects.get("a/b") == b"one"
    assert objects.put("a/b", memoryview(b"three"), if_absent=False)
    assert objects.get("a/b") == b"three"
    assert objects.size("a/b") == 5


def test_ranges_are_exact_or_refused(objects: Objects) -> None:
    objects.put("a", bytes(range(100)))
    assert objects.get_range("a", 10, 5) == bytes(range(10, 15))
    assert objects.get_range("a", 99, 1) == b"c"
    for start, length in [(90, 11), (100, 1), (500, 5)]:
        with pytest.raises(EOFError):
            objects.get_range("a", start, length)


def test_a_missing_object_is_file_not_found_and_deletes_twice(objects: Objects) -> None:
    objects.put("a/b", b"x")
    for key in ("a", "a/c", "a/b/c", "z"):
        for call in (objects.get, objects.size, lambda key: objects.get_range(key, 0, 1)):
            with pytest.raises(FileNotFoundError):
                call(key)
        objects.delete(key)
    objects.delete("a/b")
    objects.delete("a/b")
    assert list(objects.list("")) == []


def test_a_listing_is_by_key_prefix_and_sorted(objects: Objects) -> None:
    keys = ["a/b/1", "a/b/2", "a/bc", "a.b", "b"]
    for key in keys:
        objects.put(key, key.encode())
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/2", "b", "c/d"):
        found = [(meta.key, meta.size) for meta in objects.list(prefix)]
        assert found == sorted((key, len(key)) for key in keys if key.startswith(prefix))


def test_directories_are_the_next_parts_of_keys(objects: Objects) -> None:
    for key in ("a/b/1", "a/b/2", "a/c/d/3", "a/e", "b/f/1"):
        objects.put(key, b"x")
    assert [list(objects.directories(prefix)) for prefix in ("a/", "a/c/", "b/", "z/")] == [
        ["b", "c"],
        ["d"],
        ["f"],
        [],
    ]
    objects.delete("a/c/d/3")
    objects.delete("b/f/1")
    assert [list(objects.directories(prefix)) for prefix in ("a/", "a/c/", "b/")] == [["b"], [], []]


def test_an_object_tells_when_it_was_stored(objects: Objects) -> None:
    objects.put("a", b"x")
    (first,) = objects.list("a")
    assert abs(first.modified_ms - time.time() * 1000) < 60_000  # in milliseconds, that is to say
    objects.put("a", b"y", if_absent=False)
    (second,) = objects.list("a")
    assert second.modified_ms >= first.modified_ms


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/./b", f"{INCOMING}/x", "a\0", "k" * 1000])
def test_a_key_never_leaves_the_store(objects: Objects, key: str) -> None:
    with pytest.raises(UsageError):
        objects.put(key, b"")
    with pytest.raises(UsageError):
        objects.get(key)


def test_of_many_that_race_for_a_key_one_wins_and_its_bytes_stay(tmp_path: Path) -> None:
    results: dict[int, bool] = {}

    def race(number: int) -> None:
        store = DirectoryObjects(LocalDisk(), tmp_path)
        barrier.wait()
        results[number] = store.put("one/key", str(number).encode() * 1000)

    barrier = threading.Barrier(8)
    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, won in results.items() if won]
    assert len(winners) == 1
    assert (tmp_path / "one/key").read_bytes() == str(winners[0]).encode() * 1000
    assert list((tmp_path / INCOMING).iterdir()) == []


class TracedDisk(LocalDisk):
    """The machine's disk, telling the order of what makes an object durable."""

    def __init__(self, root: Path, *, full: bool = False) -> None:
        self.root, self.full, self.calls = root, full, []  # type: tuple[Path, bool, list[str]]

    def open(self, path: Path, *, create: bool = False) -> File:
        traced: Any = TracedFile(super().open(path, create=create), self)
        return traced  # type: ignore[no-any-return]

    def link(self, source: Path, target: Path) -> None:
        self.calls.append("link")
        super().link(source, target)

    def sync_directory(self, path: Path) -> None:
        self.calls.append(f"sync {path.relative_to(self.root.parent)}")
        super().sync_directory(path)


class TracedFile:
    def __init__(self, file: File, disk: TracedDisk) -> None:
        self._file, self._disk = file, disk
        self.read, self.size, self.close = file.read, file.size, file.close

    def append(self, buffers: Sequence[Buffer]) -> int:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.append(buffers)

    def sync(self) -> None:
        self._disk.calls.append("sync file")
        self._file.sync()


def test_an_object_has_its_name_only_when_its_bytes_are_durable_and_then_every_directory_is(tmp_path: Path) -> None:
    disk = TracedDisk(tmp_path / "r")
    store = DirectoryObjects(disk, tmp_path / "r", random=Random(1))
    store.put("a/b/c", b"x")
    assert disk.calls == ["sync r/a", "sync r", "sync .", "sync file", "link", "sync r/a/b"]
    disk.calls.clear()
    assert not store.put("a/b/c", b"x")
    assert disk.calls == ["sync r/a/b"]


def test_a_full_disk_is_a_storage_failure_and_leaves_nothing(tmp_path: Path) -> None:
    store = DirectoryObjects(TracedDisk(tmp_path, full=True), tmp_path)
    with pytest.raises(StorageFailure, match="No space left"):
        store.put("a", b"x")
    assert list(store.list("")) == []
    assert list((tmp_path / INCOMING).iterdir()) == []


def test_a_reader_needs_no_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DirectoryObjects(LocalDisk(), tmp_path).put("a", b"x")
    opened: list[int] = []
    plain_open = os.open

    def watched(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        opened.append(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        return plain_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    reader = DirectoryObjects(ReadOnlyDisk(), tmp_path)
    assert reader.get_range("a", 0, 1) == b"x"
    assert opened == [0]
    with pytest.raises(StorageFailure, match="for reading only"):
        reader.put("b", b"y")


def test_an_object_under_another_object_is_refused_in_a_directory(tmp_path: Path) -> None:
    store = DirectoryObjects(LocalDisk(), tmp_path)
    store.put("a", b"x")
    with pytest.raises(StorageFailure):
        store.put("a/b", b"y")
    assert store.get("a") == b"x"


def test_urls_say_what_they_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert directory_of("file:///a%20b/c") == Path("/a b/c")
    assert directory_of(str(tmp_path)) == tmp_path
    for bad in ("file://host/path", "", "file:"):
        with pytest.raises(UsageError, match="file:///absolute/path"):
            directory_of(bad)
    with pytest.raises(UsageError, match="no store that can be opened"):
        open_objects("gopher://x/y")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'headrace\[s3\]'"):
        open_objects("s3://bucket/path")
