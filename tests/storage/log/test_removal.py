"""Files of a log that is gone: a little at a time, all of them, and those that cannot go keep none of the others."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.storage.disk import LocalDisk
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.removal import Removal
from tests.storage.log.log_world import IDENTITY

AT_ONCE = 1000


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.log.removal.DELETED_AT_ONCE_BYTES", AT_ONCE)


def left_in(directory: Path) -> int:
    """Bytes, whatever they are in."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def filled(directory: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    return directory


def remove_all(removal: Removal) -> None:
    while not removal.some():
        pass


def test_what_is_deleted_goes_by_parts_of_so_many_bytes(tmp_path: Path) -> None:
    engine = LocalLogEngine(LocalDisk(), tmp_path / "logs")
    assert engine.start() == []
    log = engine.open(IDENTITY, LogConfig())
    log.settle_empty(None)
    log.close()
    filled(log.directory, {"a": 2_500, "b": 700, "c": 700, "gave-way-1/d": 2_500, "replaced/e": 2_500})
    left = engine.begin_delete(IDENTITY)
    assert left is not None
    assert engine.begin_delete(IDENTITY) is None
    (again,) = LocalLogEngine(LocalDisk(), tmp_path / "logs").start()
    assert again.name == left.name == str(left.directory)
    sizes = [left_in(left.directory)]
    while not left.some():
        sizes.append(left_in(left.directory))
    assert not left.directory.exists()
    assert all(before - after <= AT_ONCE for before, after in pairwise([*sizes, 0]))
    assert len(sizes) >= 9


def test_a_directory_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of files in it."""
    looks, look = list[Path](), LocalDisk.list_directory

    def counted(disk: LocalDisk, path: Path) -> list[str]:
        looks.append(path)
        return look(disk, path)

    directory = filled(tmp_path / "left", {f"{number}": 500 for number in range(30)} | {"replaced/a": 500})
    monkeypatch.setattr(LocalDisk, "list_directory", counted)
    removal = Removal(LocalDisk(), directory)
    remove_all(removal)
    assert sorted(looks) == [directory, directory / "replaced"]
    assert not directory.exists()


def test_a_file_that_cannot_go_keeps_no_other_and_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_some = LocalDisk.remove_some

    def refusing(disk: LocalDisk, path: Path, bytes_max: int) -> bool:
        if path.name == "a":
            raise PermissionError(errno.EPERM, "scripted", str(path))
        return remove_some(disk, path, bytes_max)

    directory = filled(tmp_path / "left", {"a": 1, "b": 2_500, "replaced/c": 2_500})
    removal = Removal(LocalDisk(), directory)
    with monkeypatch.context() as refused:
        refused.setattr(LocalDisk, "remove_some", refusing)
        with pytest.raises(PermissionError):
            remove_all(removal)
        assert left_in(directory) == 1
        with pytest.raises(PermissionError):
            removal.some()
    remove_all(removal)
    assert not directory.exists()


def test_what_somebody_else_has_removed_is_gone(tmp_path: Path) -> None:
    directory = filled(tmp_path / "left", {"a": 2_500, "b": 10})
    removal = Removal(LocalDisk(), directory)
    assert not removal.some()
    for path in directory.iterdir():
        path.unlink()
    assert removal.some()
    assert Removal(LocalDisk(), directory).some()
