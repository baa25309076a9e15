"""The local filesystem behind the Disk port."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.ports import Buffer, Disk
from headrace.storage.disk import LocalDisk


@pytest.fixture
def disk() -> Disk:
    return LocalDisk()


@given(st.lists(st.lists(st.binary(max_size=20), max_size=5), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_appended_is_read(tmp_path: Path, writes: list[list[bytes]]) -> None:
    file = LocalDisk().open(tmp_path / "file", create=True)
    file.truncate(0)
    expected = b""
    for buffers in writes:
        assert file.append(buffers) == sum(map(len, buffers))
        expected += b"".join(buffers)
        assert file.size() == len(expected)
    assert file.read(0, len(expected) + 10) == expected
    assert file.read(len(expected), 10) == b""
    file.sync()
    file.close()
    file.close()


def test_more_buffers_than_one_write_takes_are_all_written(tmp_path: Path, disk: Disk) -> None:
    file = disk.open(tmp_path / "file", create=True)
    parts = [b"%05d" % number for number in range(3000)]
    parts[7] = b""
    assert file.append(parts) == 5 * 2999
    assert file.read(0, 20_000) == b"".join(parts)
    file.close()


def test_short_writes_are_gone_on_with(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def short(descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        return whole(descriptor, [b"".join(buffers)[:3]], offset)

    file = disk.open(tmp_path / "file", create=True)
    monkeypatch.setattr(os, "pwritev", short)
    assert file.append([b"ab", b"", b"cdefg", memoryview(b"hijk")]) == 11
    assert file.append([b"lm"]) == 2
    assert file.read(0, 99) == b"abcdefghijklm"
    file.close()


def test_overwriting_and_cutting(tmp_path: Path, disk: Disk) -> None:
    file = disk.open(tmp_path / "file", create=True)
    file.append([b"0123456789"])
    file.write_at(2, [b"xy"])
    file.truncate(5)
    file.append([b"!"])
    assert file.read(0, 99) == b"01xy4!"
    file.close()
    again = disk.open(tmp_path / "file")
    assert again.append([b"?"]) == 1
    assert again.read(0, 99) == b"01xy4!?"
    again.close()


def test_a_second_handle_sees_the_size(tmp_path: Path, disk: Disk) -> None:
    writer, reader = disk.open(tmp_path / "file", create=True), disk.open(tmp_path / "file")
    writer.append([b"abc"])
    assert reader.size() == disk.size(tmp_path / "file") == 3
    writer.close()
    reader.close()


def test_names(tmp_path: Path, disk: Disk) -> None:
    disk.make_directory(tmp_path / "a" / "b")
    disk.make_directory(tmp_path / "a" / "b")
    for name in ("z", "y"):
        disk.open(tmp_path / "a" / name, create=True).close()
    assert disk.list_directory(tmp_path / "a") == ["b", "y", "z"]
    assert disk.is_directory(tmp_path / "a" / "b")
    assert not disk.is_directory(tmp_path / "a" / "y")
    disk.rename(tmp_path / "a" / "z", tmp_path / "a" / "y")
    disk.link(tmp_path / "a" / "y", tmp_path / "a" / "x")
    with pytest.raises(FileExistsError):
        disk.link(tmp_path / "a" / "y", tmp_path / "a" / "x")
    disk.sync_directory(tmp_path / "a")
    disk.remove(tmp_path / "a" / "y")
    assert disk.list_directory(tmp_path / "a") == ["b", "x"]
    disk.remove_tree(tmp_path / "a")
    disk.remove_tree(tmp_path / "a")
    assert not disk.exists(tmp_path / "a")


def test_what_is_not_there_is_file_not_found(tmp_path: Path, disk: Disk) -> None:
    for act in (disk.open, disk.size, disk.remove, disk.list_directory, disk.sync_directory):
        with pytest.raises(FileNotFoundError):
            act(tmp_path / "none")


def test_a_lock_is_held_against_other_processes_until_it_is_released(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "lock"
    lock = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    script = (
        f"from pathlib import Path; from headrace.storage.disk import LocalDisk; LocalDisk().lock(Path({str(path)!r}))"
    )
    command = [sys.executable, "-c", script]
    assert b"BlockingIOError" in subprocess.run(command, capture_output=True, timeout=60, check=False).stderr
    lock.release()
    lock.release()
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    disk.lock(path).release()


def test_what_is_synced_together_is_synced_at_the_same_time_and_all_of_it(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's sync ends before all have begun."""
    for name in ("a", "b"):
        disk.open(tmp_path / name, create=True).close()
    begun = threading.Barrier(3, timeout=30)
    monkeypatch.setattr(os, "fdatasync", lambda _: begun.wait())
    monkeypatch.setattr(os, "fsync", lambda _: begun.wait())
    disk.sync_all([tmp_path / "a", tmp_path / "b"], [tmp_path])
    assert not begun.broken


def test_a_sync_that_fails_among_others_is_told_once_none_is_under_way(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, ended = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        assert failed.wait(60)
        ended.set()

    def broken(_: int) -> None:
        failed.set()
        raise OSError("scripted")

    monkeypatch.setattr(os, "fdatasync", broken)
    monkeypatch.setattr(os, "fsync", slow)
    disk.open(tmp_path / "a", create=True).close()
    with pytest.raises(OSError, match="scripted"):
        disk.sync_all([tmp_path / "a"], [tmp_path])
    assert ended.is_set()


@pytest.mark.parametrize("threads", range(4))
def test_where_no_thread_can_be_had_one_is_synced_after_the_other_and_each_once(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    synced = list[str]()
    only(threads, monkeypatch)
    for name in ("a", "b"):
        disk.open(tmp_path / name, create=True).close()
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    disk.sync_all([tmp_path / "a", tmp_path / "b"], [tmp_path])
    assert sorted(synced) == [str(path) for path in (tmp_path, tmp_path / "a", tmp_path / "b")]


def test_a_sync_that_fails_where_no_thread_can_be_had_is_told_and_not_made_again(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[int]()

    def broken(descriptor: int) -> None:
        tries.append(descriptor)
        raise OSError("scripted")

    only(0, monkeypatch)
    monkeypatch.setattr(os, "fdatasync", broken)
    disk.open(tmp_path / "a", create=True).close()
    with pytest.raises(OSError, match="scripted"):
        disk.sync_all([tmp_path / "a"], [tmp_path])
    assert len(tries) == 1


def only(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more can be started."""
    left, start = list(range(threads)), threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_a_file_is_removed_part_by_part_and_under_another_name_stays_whole(disk: Disk, tmp_path: Path) -> None:
    path, kept = tmp_path / "a", tmp_path / "kept"
    path.write_bytes(bytes(10))
    assert not disk.remove_some(path, 4)
    assert path.stat().st_size == 6
    assert not disk.remove_some(path, 4)
    assert disk.remove_some(path, 4)
    assert not path.exists()
    path.write_bytes(bytes(10))
    disk.link(path, kept)
    assert disk.remove_some(path, 4)
    assert (path.exists(), kept.stat().st_size) == (False, 10)
    with pytest.raises(FileNotFoundError):
        disk.remove_some(path, 4)
