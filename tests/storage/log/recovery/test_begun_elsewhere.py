"""A log that begins where others' history continues.

After an interruption at any step, it is a beginning of what it was, or begun there with the right producers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.log.partition import LocalLog
from headrace.storage.log.recovery.replaced import GAVE_WAY
from headrace.wire.batches import check_batches
from tests.storage.log.log_world import DIRECTORY, Stored, Twin, batch, flush, new_disk, open_log, read_all
from tests.storage.log.memory_disk import MemoryDisk
from tests.storage.log.recovery.test_begun_anew import segments, stopped

PRODUCERS = b"producers, as of there"
THERE = Offset(1000)
BEFORE, AFTER = LeaderEpoch(5), LeaderEpoch(6)
"""Epochs of the record before, and of the one that comes there."""


def with_nothing(seed: int) -> tuple[MemoryDisk, Twin]:
    disk = new_disk(seed)
    return disk, Twin(open_log(disk))


def with_records(seed: int) -> tuple[MemoryDisk, Twin]:
    """Of a later epoch than those that come, as of a leader that was deposed; some of them not flushed."""
    disk, twin = with_nothing(seed)
    twin.epoch = 9
    for number in range(12):
        twin.append(batch(2, size=60, seed=number))
        if number == 6:
            twin.log.write_producer_snapshot(b"of what goes", twin.log.log_end_offset)
        if number < 10:
            flush(twin.log)
    return disk, twin


def begin(log: LocalLog) -> None:
    log.copying.restart_at(THERE, epoch=BEFORE, producers=PRODUCERS)


def check_begun(log: LocalLog) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.flushed_end) == (THERE, THERE, THERE)
    assert log.latest_producer_snapshot() == (THERE, PRODUCERS)
    assert list(log.epochs) == [(BEFORE, THERE - 1)]
    assert not log.failed


def goes_on(disk: MemoryDisk, log: LocalLog) -> None:
    """As its leader sends it; and once more after a power cut."""
    copied: list[Stored] = []
    for number in range(6):
        raw = batch(2, size=60, seed=number)
        base = log.log_end_offset
        placed = base.to_bytes(8, "big") + raw[8:12] + AFTER.to_bytes(4, "big") + raw[16:]
        log.copying.append_verbatim(placed, check_batches(placed), now_ms=0)
        copied.append(Stored(base, base + 1, AFTER, placed, ()))
    flush(log)
    assert read_all(log) == Twin(log, copied).bytes_from(THERE)
    disk.power_cut()
    again = open_log(disk)
    assert again.log_start_offset == THERE
    assert read_all(again) == Twin(log, copied).bytes_from(THERE)
    assert list(again.epochs) == [(BEFORE, THERE - 1), (AFTER, THERE)], "of the record before too"
    assert again.latest_producer_snapshot() == (THERE, PRODUCERS)


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("made", [with_nothing, with_records])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_stops_it_the_log_is_one_or_the_other(
    seed: int, made: Callable[[int], tuple[MemoryDisk, Twin]], loses_power: bool
) -> None:
    at, went_on, seen = 0, True, set()
    while went_on:
        at += 1
        disk, twin = made(seed)
        before = twin.log.flushed_end
        went_on = stopped(disk, at, lambda: begin(twin.log), loses_power=loses_power)  # noqa: B023
        log = open_log(disk) if went_on else twin.log
        if log.log_start_offset == THERE:
            seen.add("begun")
            check_begun(log)
        elif log.log_end_offset == log.log_start_offset:
            seen.add("empty")
            assert log.log_end_offset == 0
            assert log.latest_producer_snapshot() is None
        else:
            seen.add("as it was" if log.log_end_offset >= before else "cut")
            assert read_all(log) == b"".join(
                each.bytes for each in twin.stored if each.last_offset < log.log_end_offset
            )
        if log.log_start_offset != THERE:
            begin(log)
        check_begun(log)
        goes_on(disk, log)
    assert seen >= ({"begun", "empty"} if made is with_nothing else {"begun", "empty", "as it was"})
    assert at > 5


def test_what_was_begun_twice_is_where_it_was_begun_last() -> None:
    disk, twin = with_records(0)
    begin(twin.log)
    twin.log.copying.restart_at(Offset(2000))
    disk.power_cut()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (2000, 2000)
    assert log.latest_producer_snapshot() is None
    assert list(log.epochs) == []


@pytest.mark.parametrize("made", [with_nothing, with_records])
def test_a_power_cut_at_the_end_leaves_no_beginning_without_its_producers(
    made: Callable[[int], tuple[MemoryDisk, Twin]],
) -> None:
    """Names that were not synced survive or not, each by itself."""
    count = 1
    while stopped(*_cut_at(made, 0, count), loses_power=False):
        count += 1
    begun = 0
    for seed in range(24):
        for at in range(count - 4, count):
            disk, _, work = _cut_at(made, seed, at)
            stopped(disk, at, work, loses_power=True)
            log = open_log(disk)
            if log.log_start_offset == THERE:
                begun += 1
                check_begun(log)
    assert begun > 3


def _cut_at(
    made: Callable[[int], tuple[MemoryDisk, Twin]], seed: int, at: int
) -> tuple[MemoryDisk, int, Callable[[], object]]:
    disk, twin = made(seed)
    return disk, at, lambda: begin(twin.log)


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_gives_way_is_as_it_was_or_begun_there_with_all_that_it_had_beside_it(
    seed: int, loses_power: bool
) -> None:
    at, went_on, seen = 0, True, set()
    while went_on:
        at += 1
        disk, twin = with_records(seed)
        flush(twin.log)
        twin.log.write_out()
        before = segments(disk, DIRECTORY)
        went_on = stopped(disk, at, lambda: give_way(twin.log), loses_power=loses_power)  # noqa: B023
        log = open_log(disk) if went_on else twin.log
        seen.add(int(log.log_start_offset))
        if log.log_start_offset == 0:
            assert read_all(log) == twin.bytes_from(0)
            assert log.latest_producer_snapshot() == (14, b"of what goes")
            give_way(log)
        check_begun(log)
        assert segments(disk, DIRECTORY / f"{GAVE_WAY}-1") == before
        goes_on(disk, log)
    assert seen == {0, THERE}
    assert at > 10


def test_what_gave_way_is_kept_each_time_and_no_beginning_anew_or_letting_in_removes_it() -> None:
    disk, twin = with_records(0)
    flush(twin.log)
    before = segments(disk, DIRECTORY)
    give_way(twin.log)
    assert not twin.log.has_replaced
    twin.log.append(batch(1), check_batches(batch(1)), leader_epoch=AFTER, now_ms=0)
    flush(twin.log)
    again = segments(disk, DIRECTORY)
    assert twin.log.give_way(Offset(2000)) == str(DIRECTORY / f"{GAVE_WAY}-2")
    twin.log.copying.begin_anew()
    twin.log.copying.drop_replaced()
    log = open_log(disk)
    assert log.log_end_offset == 0
    assert segments(disk, DIRECTORY / f"{GAVE_WAY}-1") == before
    assert segments(disk, DIRECTORY / f"{GAVE_WAY}-2") == again


def give_way(log: LocalLog) -> None:
    log.give_way(THERE, epoch=BEFORE, producers=PRODUCERS)
