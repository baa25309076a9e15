"""A log that is started over: after an interruption at any step, it is as it was, or empty with its old data beside
it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import StorageFailure
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.names import LOG
from headrace.storage.log.partition import LocalLog
from headrace.storage.log.recovery.replaced import BEGUN_ANEW, REPLACED, UNWANTED
from tests.storage.log.journal.test_journal import World
from tests.storage.log.journal_world import identity_of
from tests.storage.log.log_world import DIRECTORY, Stored, Twin, batch, flush, new_disk, open_log, read_all
from tests.storage.log.memory_disk import MemoryDisk, PowerCut
from tests.storage.log.recovery.test_log_damage import examine, flip, readable

DAMAGED = 2
"""The batch that is."""


def damaged(seed: int) -> tuple[MemoryDisk, Twin, dict[str, bytes]]:
    """A log of several segments, one of which has a damaged batch; and its files."""
    disk = new_disk(seed)
    twin = Twin(open_log(disk))
    for number in range(12):
        twin.append(batch(2, size=60, seed=number))
        flush(twin.log)
    twin.log.close()
    flip(disk, DIRECTORY / f"{0:020d}.log", sum(len(each.bytes) for each in twin.stored[:DAMAGED]) + 80)
    twin.log = open_log(disk)
    assert len(examine(twin.log)) == 1
    return disk, twin, segments(disk, DIRECTORY)


def segments(disk: MemoryDisk, directory: Path) -> dict[str, bytes]:
    names = disk.list_directory(directory) if disk.is_directory(directory) else []
    return {name: bytes(disk.file(directory / name).data) for name in names if name.endswith(LOG)}


def stopped(disk: MemoryDisk, at: int, work: Callable[[], object], *, loses_power: bool) -> bool:
    """At that operation; whether there were as many."""
    disk.cut_in = at
    try:
        work()
    except PowerCut:
        if loses_power:
            disk.power_cut()
        disk.cut_in = -1
        return True
    disk.cut_in = -1
    return False


def new_copy(disk: MemoryDisk, log: LocalLog, stored: list[Stored]) -> None:
    """As the leader sends it, over what is there; then another life."""
    again = Twin(log, [each for each in stored if each.last_offset < log.log_end_offset], epoch=7)
    for number in range(len(again.stored), 14):
        again.append(batch(2, size=60, seed=number))
    flush(log)
    assert read_all(log) == again.bytes_from(0)
    disk.power_cut()
    assert read_all(open_log(disk)) == again.bytes_from(0)


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_stops_it_nothing_is_lost(seed: int, loses_power: bool) -> None:
    at, went_on = 0, True
    while went_on:
        at += 1
        disk, twin, before = damaged(seed)
        went_on = stopped(disk, at, lambda: twin.log.copying.begin_anew(), loses_power=loses_power)  # noqa: B023
        log = open_log(disk) if went_on else twin.log
        is_whole = segments(disk, DIRECTORY) == before
        if is_whole:
            assert readable(log, twin.stored) == [offset for offset in range(24) if offset // 2 != DAMAGED]
        else:
            assert segments(disk, DIRECTORY / REPLACED) == before
            assert log.has_replaced
            assert log.read_only is None
            assert not log.damages
            assert log.log_end_offset == 0
            assert BEGUN_ANEW not in disk.list_directory(DIRECTORY)
        if is_whole:
            log.copying.begin_anew()
        assert segments(disk, DIRECTORY / REPLACED) == before
        new_copy(disk, log, twin.stored)
    assert at > 10


@pytest.mark.parametrize("loses_power", [False, True])
def test_what_was_kept_goes_whole_or_is_dropped_again(loses_power: bool) -> None:
    at, went_on = 0, True
    while went_on:
        at += 1
        disk, twin, _ = damaged(at)
        twin.log.copying.begin_anew()
        went_on = stopped(disk, at, twin.log.copying.drop_replaced, loses_power=loses_power)
        log = open_log(disk)
        assert log.log_end_offset == 0
        if log.has_replaced:  # as its broker asks before it does
            log.copying.drop_replaced()
        assert not log.has_replaced
        assert not {REPLACED, UNWANTED} & set(disk.list_directory(DIRECTORY))
    assert at > 3


def test_what_is_kept_is_of_the_copy_that_was_in_sync_last() -> None:
    """A new copy that is dropped again before it was in sync may have less."""
    disk, twin, before = damaged(0)
    twin.log.copying.begin_anew()
    again = Twin(twin.log)
    again.append(batch(1))
    flush(again.log)
    again.log.copying.begin_anew()
    assert segments(disk, DIRECTORY / REPLACED) == before


def test_a_log_whose_disk_has_failed_is_not_begun_anew() -> None:
    """The data kept beside it might be gone with the next power cut."""
    disk, twin, before = damaged(0)
    twin.append(batch(1))
    disk.failing = True
    ticket = twin.log.begin_flush()
    assert ticket is not None
    with pytest.raises(OSError, match="sync failed"):
        ticket.sync()
    twin.log.fail_flush(ticket)
    disk.failing = False
    now = segments(disk, DIRECTORY)
    assert now.keys() == before.keys()
    assert twin.log.failed
    with pytest.raises(StorageFailure, match="cannot be begun anew"):
        twin.log.copying.begin_anew()
    assert segments(disk, DIRECTORY) == now
    assert not {REPLACED, BEGUN_ANEW} & set(disk.list_directory(DIRECTORY))


def test_a_log_for_reading_only_can_be_appended_to_once_it_is_begun_anew() -> None:
    disk, twin, _ = damaged(0)
    twin.log.close()
    last = sorted(segments(disk, DIRECTORY))[-1]
    node = disk.file(DIRECTORY / last)
    del node.data[-1], node.durable[-1]
    log = open_log(disk)
    assert log.read_only is not None
    log.copying.begin_anew()
    assert [log.read_only, log.failed, log.log_end_offset, list(log.damages)] == [None, False, 0, []]
    new_copy(disk, log, [])


def gone(world: World) -> LocalLog:
    """Bytes that were flushed are gone from a log's own file, and the journal goes on behind them."""
    for _ in range(3):
        world.round()
    world.power_cut()
    directory = world.logs[0].directory
    node = world.disk.file(directory / f"{0:020d}.log")
    checkpoint = directory / "checkpoint.json"
    if checkpoint.name in world.disk.list_directory(directory):
        world.disk.remove(checkpoint)
    del node.data[:], node.durable[:]
    log = world.store.open(identity_of(0), LogConfig())
    assert log.read_only is not None
    return log


def test_what_the_journal_has_of_a_log_does_not_come_back_once_it_is_begun_anew() -> None:
    world = World(logs=1)
    log = gone(world)
    assert world.store.journal.earlier_keys
    log.copying.begin_anew()
    again = Twin(log, epoch=9)
    again.append(batch(1))
    flush(log)
    world.power_cut()
    log = world.store.open(identity_of(0), LogConfig())
    assert log.read_only is None
    assert read_all(log) == again.bytes_from(0)
