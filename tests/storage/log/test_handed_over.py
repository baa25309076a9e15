"""A log that goes on where another broker's ended, and the mark of a seal: durable as soon as they are said to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.partition import LocalLog
from tests.storage.log.log_world import DIRECTORY, IDENTITY, ROOT, SMALL, Twin, batch, flush, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk, PowerCut

SECOND = replace(IDENTITY, assignment_epoch=6)


def opened(disk: MemoryDisk, start: int = 0) -> LocalLog:
    return LocalLogEngine(disk, ROOT).open(SECOND, SMALL, start=Offset(start))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("producers", [None, b"what they wrote"])
def test_an_empty_log_outlives_a_power_cut_where_it_begins(producers: bytes | None, seed: int) -> None:
    disk = new_disk(seed)
    opened(disk, 22).settle_empty(producers)
    disk.power_cut()
    log = opened(disk)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_end) == (22, 22, 22)
    assert log.latest_producer_snapshot() == (None if producers is None else (22, producers))
    found = LocalLogEngine(disk, ROOT).stamped(IDENTITY)
    assert found == SECOND


def test_who_takes_over_waits_for_the_disk_three_times() -> None:
    """Producers wait with it: for what the files hold, for the first names, and for the checkpoint's."""
    disk = new_disk()
    log = opened(disk, 22)
    before = disk.syncs - disk.together
    log.settle_empty(b"what they wrote")
    assert disk.syncs - disk.together - before == 3


def test_it_is_settled_as_often_as_one_likes_and_goes_on() -> None:
    disk = new_disk()
    opened(disk, 22).settle_empty(b"a")
    log = opened(disk, 22)
    log.settle_empty(b"b")
    twin = Twin(log)
    twin.append(batch(3))
    flush(log)
    disk.power_cut()
    again = opened(disk)
    assert (again.log_start_offset, again.log_end_offset) == (22, 25)
    assert again.latest_producer_snapshot() == (22, b"b")


@pytest.mark.parametrize("seed", range(5))
def test_after_a_power_cut_at_any_step_of_it_it_is_settled_again(seed: int) -> None:
    cut_in, is_through = 0, False
    while not is_through:
        cut_in += 1
        disk = new_disk(seed)
        disk.cut_in = cut_in
        try:
            opened(disk, 22).settle_empty(b"a")
            is_through = True
        except PowerCut:
            pass
        disk.power_cut()
        engine = LocalLogEngine(disk, ROOT)
        if engine.stamped(SECOND) != SECOND:
            engine.set_aside(SECOND)
        opened(disk, 22).settle_empty(b"b")
        disk.power_cut()
        log = opened(disk)
        assert (log.log_start_offset, log.log_end_offset, log.latest_producer_snapshot()) == (22, 22, (22, b"b"))
    assert cut_in > 5, "every step was one"


def test_what_is_stamped_is_told_and_nothing_else() -> None:
    disk = new_disk()
    engine = LocalLogEngine(disk, ROOT)
    assert engine.stamped(IDENTITY) is None
    twin = Twin(open_log(disk))
    twin.append(batch())
    flush(twin.log)
    assert engine.stamped(SECOND) == IDENTITY
    assert engine.stamped(replace(SECOND, partition=99)) is None  # type: ignore[arg-type]  # an index


@pytest.mark.parametrize("seed", range(10))
def test_the_mark_of_a_seal_outlives_a_power_cut_until_it_is_forgotten(seed: int) -> None:
    disk = new_disk(seed)
    twin = Twin(open_log(disk))
    twin.append(batch())
    flush(twin.log)
    assert twin.log.sealed_in is None
    twin.log.mark_sealed(LeaderEpoch(5))
    disk.power_cut()
    log = open_log(disk)
    assert log.sealed_in == 5
    log.forget_seal()
    flush(log)
    assert not disk.exists(DIRECTORY / "sealed.json")
    assert open_log(disk).sealed_in is None


def test_a_log_without_a_directory_needs_no_mark() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.mark_sealed(LeaderEpoch(5))
    assert disk.list_directory(ROOT) == []
