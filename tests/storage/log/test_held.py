"""Appends that are held in memory until their round: whatever becomes of it, and of the policy, in between."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.storage.log.partition import LocalLog
from tests.storage.log.journal_world import identity_of, inline_workers
from tests.storage.log.log_world import read_all
from tests.storage.log.memory_disk import MemoryFile
from tests.storage.log.test_journal import BIG, World
from tests.storage.log.test_journal_power_cuts import ROOMY

OS = replace(ROOMY, fsync=False)


@contextmanager
def writes_fail(number: int = errno.EIO, part: int = 30) -> Iterator[None]:
    """Of logs' files, not the journal's: a part is written, and then the disk refuses."""

    def append(self: MemoryFile, buffers: Sequence[Buffer]) -> int:
        self._write(self.size(), b"".join(buffers)[:part])
        raise OSError(number, "planted")

    with patch.object(MemoryFile, "append", append):
        yield


def file_of(world: World, number: int = 0) -> bytes:
    """All that the operating system has of a log."""
    directory = world.logs[number].directory
    names = [name for name in world.disk.list_directory(directory) if name.endswith(".log")]
    return b"".join(bytes(world.disk.file(directory / name).data) for name in names)


def is_held(log: LocalLog) -> bool:
    return log._contents.held_size > 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_round_whose_write_fails_is_told_though_the_journal_has_it(number: int) -> None:
    """The others of the round are not touched; what the journal has is there after the next start."""
    world = World(logs=2)
    flushed = world.logs[0].flushed_end
    world.append()
    good, bad = world.logs
    work = [(log, ticket) for log in (bad, good) if (ticket := log.begin_flush()) is not None]
    together = world.store.engine.begin_round([ticket for _, ticket in work])
    told: list[OSError | None] = []
    write_out = bad.write_out

    def failing() -> None:
        with writes_fail(number):
            write_out()

    work[0][1]._write_out = failing  # type: ignore[attr-defined]
    with inline_workers():
        together.begin(lambda outcomes: told.extend(outcomes()))
        world.disk.end_syncs()
    world.store.engine.end_round(together)
    assert [failure is None for failure in told] == [False, True]
    bad.fail_flush(work[0][1])
    good.finish_flush(work[1][1])
    assert bad.failed
    assert (bad.flushed_end, bad.log_end_offset) == (flushed, flushed)
    assert good.flushed_end == good.log_end_offset
    assert not world.disk.list_directory(bad.directory).count("absent")
    assert read_all(bad) == b"".join(each.bytes for each in world.twins[1].stored if each.last_offset < flushed)
    world.store.begin_upkeep()
    world.store.keep_up()
    world.store.stop(*world.logs)
    world.power_cut()
    world.check()


def test_a_ticket_is_worth_nothing_once_what_it_covers_was_lost() -> None:
    """By a read, or whoever else writes between the taking of the ticket and its round."""
    world = World(logs=1)
    [log] = world.logs
    flushed = log.flushed_end
    world.append()

    def lose() -> None:
        with writes_fail(), pytest.raises(StorageFailure):
            log.read(flushed, 4096, log.log_end_offset, at_least_one=True)

    [failure] = world.store.flush(log, meanwhile=lose)
    assert failure is not None
    assert log.failed
    assert log.flushed_end <= log.log_end_offset
    assert log.flushed_end == flushed


@pytest.mark.parametrize("lost", [True, False])
def test_what_is_held_behind_a_ticket_and_lost_takes_nothing_of_the_ticket_along(lost: bool) -> None:
    world = World(logs=1)
    [log] = world.logs
    world.append()
    ticket = log.begin_flush()
    assert ticket is not None
    together = world.store.engine.begin_round([ticket])
    told: list[OSError | None] = []
    with inline_workers():
        together.begin(lambda outcomes: told.extend(outcomes()))
    flushed = log.log_end_offset
    world.append()
    assert is_held(log)
    if lost:
        with writes_fail(), pytest.raises(StorageFailure):
            log.write_out()
        assert log.log_end_offset == flushed
        world.twins[0].stored.pop()
    with inline_workers():
        world.disk.end_syncs()
    world.store.engine.end_round(together)
    assert told == [None]
    assert log.finish_flush(ticket) == flushed
    assert not log.needs_flush or not lost
    assert read_all(log) == world.twins[0].bytes_from(0)
    if not lost:
        world.twins[0].stored.pop()
    world.power_cut()
    world.check()


def test_what_is_held_is_in_the_operating_systems_hands_once_it_is_written_out() -> None:
    world = World(logs=1)
    [log] = world.logs
    world.append()
    world.append()
    assert is_held(log)
    assert file_of(world) != world.twins[0].bytes_from(0)
    log.write_out()
    assert file_of(world) == world.twins[0].bytes_from(0)
    world.restart()  # a kill: the page cache stays
    world.check()


def test_after_a_round_the_logs_own_file_has_all_of_it() -> None:
    """Or a sync behind would let go of what only the journal holds."""
    world = World(logs=2)
    world.round()
    for number in range(2):
        assert file_of(world, number) == world.twins[number].bytes_from(0)


def test_syncs_behind_cover_what_was_held() -> None:
    world = World(logs=1)
    for _ in range(60):
        world.append(size=BIG // 3)
        world.append(size=BIG // 3)
        world.store.flush(*world.logs)
        world.store.keep_up()
        if world.disk.chance.random() < 0.1:
            world.store.begin_upkeep()
    world.power_cut()
    world.check()


@pytest.mark.parametrize("what", ["roll", "retention", "snapshot", "delete", "cut"])
def test_a_flush_of_more_than_appends_covers_what_is_held(what: str) -> None:
    world = World(logs=1)
    [log] = world.logs
    world.append()
    world.append()
    assert is_held(log)
    match what:
        case "roll":
            log.roll()
        case "retention":
            log.reconfigure(replace(ROOMY, segment_ms=1))
            log.apply_retention(10**12, log.log_end_offset)
        case "snapshot":
            log.write_producer_snapshot(b"all", log.log_end_offset)
        case "delete":
            log.delete_records_before(Offset(1))
        case _:
            log.truncate_to(Offset(world.twins[0].end - 2))
            world.twins[0].stored.pop()
    assert world.store.flush(log) in ([None], [])
    assert log.flushed_end == log.log_end_offset == world.twins[0].end
    if what == "snapshot":
        assert log.latest_producer_snapshot() == (log.log_end_offset, b"all")
    start = log.log_start_offset
    world.power_cut()
    log = world.twins[0].log = world.store.open(identity_of(0), ROOMY)
    assert log.log_start_offset == start
    assert read_all(log) == world.twins[0].bytes_from(start)


@pytest.mark.parametrize("held", [True, False])
def test_a_clean_close_and_an_unclean_one_with_batches_held(held: bool) -> None:
    world = World(logs=1)
    world.append()
    world.append()
    if held:
        world.logs[0].close(clean=False)
        world.twins[0].stored[-2:] = []
    else:
        world.logs[0].close()
    world.power_cut()
    world.check()
    assert world.store.journal._pending_bytes == 0


def test_a_segment_is_never_longer_than_it_may_be_with_what_is_held() -> None:
    world = World(logs=1)
    [log] = world.logs
    for _ in range(60):
        world.append(size=100)
        assert log._contents.active is not None
        assert log._contents.active.size + log._contents.held_size <= ROOMY.segment_bytes
    world.store.flush(log)
    assert all(segment.size <= ROOMY.segment_bytes for segment in log.closed_segments())
    assert read_all(log) == world.twins[0].bytes_from(0)


# the policy changes


def test_a_failed_flush_takes_nothing_of_what_counted_under_flush_policy_os() -> None:
    world = World(logs=1)
    [log] = world.logs
    log.reconfigure(OS)
    world.append()
    world.append()
    counted = log.flushed_end
    assert counted == log.log_end_offset
    log.reconfigure(ROOMY)
    world.append()
    world.disk.fail_after(0)
    [failure] = world.store.flush(log)
    assert failure is not None
    assert (log.flushed_end, log.log_end_offset) == (counted, counted)
    world.twins[0].stored.pop()
    assert read_all(log) == world.twins[0].bytes_from(0)
    world.disk.fail_after(-1)
    world.restart()
    world.check()


@pytest.mark.parametrize("journal_is_there", [True, False])
def test_what_was_held_when_the_policy_became_os_is_still_synced(journal_is_there: bool) -> None:
    world = World(logs=1)
    [log] = world.logs
    flushed = log.flushed_end
    world.append()
    log.reconfigure(OS)
    if not journal_is_there:
        world.store.journal.is_ready = False
    world.append()
    assert (log.flushed_end, log.needs_flush) == (flushed, True), "nothing skips what came before it"
    assert world.store.flush(log) == [None]
    assert log.flushed_end == log.log_end_offset
    assert not log.needs_flush
    world.power_cut()
    world.check()


@pytest.mark.parametrize("seed", range(40))
def test_policies_kills_and_power_cuts_in_any_order(seed: int) -> None:
    """What was flushed under fsync outlives the power; what was written out, or counted under os, a kill."""
    world = World(logs=2, seed=seed)
    chance = world.disk.chance
    durable, safe, start = [0, 0], [0, 0], [0, 0]
    fsync = [True, True]

    def note() -> None:
        for at, log in enumerate(world.logs):
            if fsync[at]:
                durable[at] = max(durable[at], log.flushed_end)
            safe[at] = max(safe[at], log.flushed_end)

    def append() -> None:
        for _ in range(chance.randrange(1, 4)):
            world.append(chance.randrange(2), size=chance.choice((5, 80, 700)))

    for _ in range(80):
        at = chance.randrange(2)
        log, twin = world.logs[at], world.twins[at]
        match chance.choice(
            ["append"] * 4 + ["flush"] * 4 + ["half", "out", "os", "fsync", "roll", "read", "snap", "up", "kill", "cut"]
        ):
            case "append":
                append()
            case "flush":
                world.store.flush(*world.logs)
            case "half":
                world.store.flush(*world.logs, meanwhile=append)
            case "out":
                log.write_out()
                safe[at] = log.log_end_offset
            case "os" | "fsync" as policy:
                # what counts from now on under os is not durable, and what was before stays so
                note()
                fsync[at] = policy == "fsync" and log.flushed_end == durable[at]
                log.reconfigure(ROOMY if policy == "fsync" else OS)
            case "roll":
                log.roll()
            case "read":
                assert read_all(log) == twin.bytes_from(0)
                safe[at] = log.log_end_offset
            case "snap":
                log.write_producer_snapshot(b"x", log.log_end_offset)
            case "up":
                world.store.keep_up()
                world.store.begin_upkeep()
            case "kill" | "cut" as end:
                note()
                promised = list(safe if end == "kill" else durable)
                if end == "cut":
                    world.disk.power_cut()
                world.restart()
                for number, each in enumerate(world.twins):
                    each.log = world.store.open(identity_of(number), ROOMY)
                    each.epoch += 1
                    stored = read_all(each.log)
                    assert each.log.log_end_offset >= promised[number], (seed, end)
                    each.stored = [one for one in each.stored if one.last_offset < each.log.log_end_offset]
                    assert stored == each.bytes_from(start[number])
                    durable[number] = safe[number] = each.log.log_end_offset
                    fsync[number] = True
        note()
        assert world.store.journal._pending_bytes >= 0
