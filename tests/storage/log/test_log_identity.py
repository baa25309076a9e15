"""Whose directory it is: a stamp decides, what is another's is moved aside, and nothing unknown is deleted."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headrace.base.ids import DirectoryId, Offset, TopicId
from headrace.storage.engine.faults import StampMismatch
from headrace.storage.log.engine import LocalLogEngine
from tests.storage.log.log_world import (
    DIRECTORY,
    IDENTITY,
    ROOT,
    SMALL,
    Twin,
    batch,
    flush,
    new_disk,
    open_log,
    read_all,
)
from tests.storage.log.memory_disk import MemoryDisk

OTHER = replace(IDENTITY, topic_id=TopicId(uuid.UUID(int=8)))


def written() -> tuple[MemoryDisk, Twin]:
    disk = new_disk()
    twin = Twin(open_log(disk))
    twin.append(batch(3))
    flush(twin.log)
    twin.log.close()
    return disk, twin


def test_no_file_is_made_before_the_first_append() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.close()
    assert disk.list_directory(ROOT) == []


def test_another_topics_directory_is_set_aside_and_kept() -> None:
    disk, twin = written()
    log = open_log(disk, identity=OTHER)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    aside = ROOT / f"orders-0.{IDENTITY.topic_id.hex}-stray"
    assert log.set_aside == aside
    assert bytes(disk.file(aside / f"{0:020d}.log").data) == twin.bytes_from(0)
    disk.power_cut()
    assert disk.exists(aside)
    assert not disk.exists(DIRECTORY)


def test_a_second_stray_of_the_same_topic_gets_a_name_of_its_own() -> None:
    disk, _ = written()
    open_log(disk, identity=OTHER)
    again = Twin(open_log(disk))
    again.append(batch())
    flush(again.log)
    open_log(disk, identity=OTHER)
    assert len([name for name in disk.list_directory(ROOT) if name.endswith("-stray")]) == 2


@pytest.mark.parametrize("damage", ["none", "torn"])
def test_a_directory_whose_stamp_never_reached_the_disk_is_set_aside(damage: str) -> None:
    disk, _ = written()
    disk.remove(DIRECTORY / "checkpoint.json")  # it is written later
    if damage == "none":
        disk.remove(DIRECTORY / "stamp.json")
    else:
        del disk.file(DIRECTORY / "stamp.json").data[20:]
    log = open_log(disk)
    assert log.log_end_offset == 0
    assert log.set_aside == ROOT / "orders-0.unstamped-stray"


@pytest.mark.parametrize(
    "identity",
    [replace(IDENTITY, assignment_epoch=4), replace(IDENTITY, directory_id=DirectoryId(uuid.UUID(int=1)))],
)
def test_another_disks_or_assignments_stamp_is_not_judged_by_the_engine(identity: object) -> None:
    disk, _ = written()
    with pytest.raises(StampMismatch):
        open_log(disk, identity=identity)  # type: ignore[arg-type]  # a LogIdentity
    engine = LocalLogEngine(disk, ROOT)
    assert engine.set_aside(IDENTITY) is not None
    assert engine.set_aside(IDENTITY) is None
    assert open_log(disk).log_end_offset == 0


def test_identities_are_those_of_the_directories_in_use() -> None:
    disk, _ = written()
    engine = LocalLogEngine(disk, ROOT)
    assert engine.identities() == [IDENTITY]
    engine.set_aside(IDENTITY)
    assert engine.identities() == []


def test_a_deleted_partition_is_gone_and_its_name_free_even_if_the_power_goes() -> None:
    disk, _ = written()
    engine = LocalLogEngine(disk, ROOT)
    engine.delete(OTHER)
    assert disk.exists(DIRECTORY)  # not its own
    engine.delete(IDENTITY)
    engine.delete(IDENTITY)
    disk.power_cut()
    assert not disk.exists(DIRECTORY)
    for left in engine.start():
        while not left.some():
            pass
    assert disk.list_directory(ROOT) == []


def test_a_log_born_at_an_offset_stays_there() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, start=70))
    twin.append(batch(2))
    flush(twin.log)
    disk.power_cut()
    again = open_log(disk)
    assert (again.log_start_offset, again.log_end_offset) == (70, 72)
    assert read_all(again) == twin.bytes_from(70)
    assert again.read(Offset(71), 1000, Offset(72), at_least_one=True) == twin.stored[0].bytes


def test_the_longest_topic_name_can_be_set_aside() -> None:
    disk = new_disk()
    identity = replace(IDENTITY, topic_name="t" * 249)
    engine = LocalLogEngine(disk, ROOT)
    twin = Twin(engine.open(identity, SMALL))
    twin.append(batch())
    flush(twin.log)
    aside = engine.set_aside(identity)
    assert aside is not None
    assert len(aside.name) == 255
