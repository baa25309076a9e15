"""Appends that are held in memory until their round: whatever becomes of it, and of the policy, in between."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest.mock import patch

import pytest

from headrace.base.errors import NoRoom, StorageFailure
from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.storage.engine.flushing import Outcome
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import check_batches
from tests.storage.log.journal.test_journal import BIG, World
from tests.storage.log.journal.test_journal_power_cuts import ROOMY
from tests.storage.log.journal_world import identity_of, inline_workers
from tests.storage.log.log_world import NOW_MS, batch, read_all
from tests.storage.log.memory_disk import MemoryFile

OS = replace(ROOMY, fsync=False)


@contextmanager
def writes_fail(number: int = errno.EIO, part: int = 30, *, of: LocalLog | None = None) -> Iterator[None]:
    """Of segments (of one log, or of all), and of nothing else: a part is written, and then the disk refuses."""
    sound = MemoryFile.append

    def append(self: MemoryFile, buffers: Sequence[Buffer]) -> int:
        if self.path.suffix != ".log" or (of is not None and self.path.parent != of.directory):
            return sound(self, buffers)
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
    return log.contents.held_size > 0


def test_what_was_acknowledged_before_its_own_file_failed_is_kept_by_the_journal() -> None:
    """Later syncs of the file do not count, because it lacks the data. The others of the round are not touched."""
    world = World(logs=2, late=1.0)
    world.append()
    assert world.store.flush(*world.logs) == [None, None]
    good, bad = world.logs
    assert is_held(bad)
    with writes_fail(), pytest.raises(StorageFailure):
        bad.write_out()
    assert bad.failed
    assert bad.flushed_end == bad.log_end_offset == world.twins[1].end
    good.write_out()
    assert not good.failed
    for _ in range(30):
        world.append(0, size=BIG)
        world.store.flush(*world.logs)
        world.store.keep_up()
    assert not world.store.journal.is_ready, "its files are not written over any more"
    world.store.stop(*world.logs)
    world.power_cut()
    world.check()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("ends_with", ["room", "restart", "power cut"])
def test_what_was_acknowledged_before_its_own_file_found_no_room_is_read_and_written_later(
    ends_with: str, error: int
) -> None:
    """Syncs behind the journal meanwhile do not make it release the data."""
    world = World(logs=2, late=1.0)
    world.append()
    assert world.store.flush(*world.logs) == [None, None]
    good, full = world.logs
    with writes_fail(error):
        with pytest.raises(NoRoom):
            full.write_out()
        with pytest.raises(NoRoom):
            full.append(sent := batch(), check_batches(sent), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
        assert not full.failed
        assert full.flushed_end == full.log_end_offset == world.twins[1].end
        assert read_all(full) == world.twins[1].bytes_from(0)
        assert is_held(full), "there was no room for it"
    with writes_fail(error, of=full):
        world.store.answered = [good]
        for _ in range(30):
            world.append(0, size=BIG)
            assert world.store.flush(good) == [None]
            world.store.tidy_up()
            world.store.keep_up()
    assert not world.store.journal.is_ready, "its files are not written over any more"
    if ends_with == "room":
        world.append(1)
        world.store.flush(*world.logs)
        assert not is_held(full)
        assert not full.lacks_room
        world.store.stop(*world.logs)
    if ends_with == "restart":
        world.restart()
    else:
        world.power_cut()
    world.check(1)


def test_a_flush_that_finds_no_room_for_its_small_files_is_made_up_for() -> None:
    """A segment is closed in it, whose indexes are to be written, and a checkpoint."""
    world = World(logs=1)
    [log] = world.logs
    world.append()
    log.roll()
    log.write_producer_snapshot(b"known", log.log_end_offset)
    flushed, closed = log.flushed_end, len(log.closed_segments())
    world.disk.full = True
    [failure] = world.store.flush(log)
    assert failure is not None
    assert not log.failed
    assert (log.flushed_end, len(log.closed_segments())) == (flushed, closed)
    world.disk.full = False
    world.append()
    assert world.store.flush(log) == [None]
    assert log.flushed_end == log.log_end_offset
    assert len(log.closed_segments()) == closed + 1
    snapshot = log.latest_producer_snapshot()
    assert snapshot is not None
    assert snapshot[1] == b"known"
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
def test_what_is_lost_behind_a_ticket_takes_it_along_and_the_journal_keeps_what_it_has(lost: bool) -> None:
    world = World(logs=1)
    [log] = world.logs
    world.append()
    ticket = log.begin_flush()
    assert ticket is not None
    together = world.store.engine.begin_round([ticket])
    told: list[Outcome] = []
    with inline_workers():
        together.begin(lambda outcomes: told.extend(outcomes()))
    flushed = log.log_end_offset
    world.append()
    assert is_held(log)
    if lost:
        with writes_fail(), pytest.raises(StorageFailure):
            log.write_out()
        assert log.log_end_offset == log.flushed_end < flushed
        assert log.failed, "more than the append that was refused is lost, and others wait for it"
    with inline_workers():
        world.disk.end_syncs()
    together.end()
    world.twins[0].stored.pop()
    if lost:
        assert [failure is None for failure in told] == [False], "the log itself has lost it"
        log.fail_flush(ticket)
    else:
        assert told == [None]
        assert log.finish_flush(ticket) == flushed
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
            log.copying.truncate_to(Offset(world.twins[0].end - 2))
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
        assert log.contents.active is not None
        assert log.contents.active.size + log.contents.held_size <= ROOMY.segment_bytes
    world.store.flush(log)
    assert all(segment.size <= ROOMY.segment_bytes for segment in log.closed_segments())
    assert read_all(log) == world.twins[0].bytes_from(0)


@pytest.mark.parametrize("more", [True, False])
def test_a_full_disk_takes_nothing_of_what_was_written_out(more: bool) -> None:
    """It may be acknowledged by the leader alone; no sync has failed. Nor of what was taken since: followers may have
    it, and nothing else may ever be at its offsets."""
    world = World(logs=1)
    [log] = world.logs
    world.append()
    log.write_out()
    safe = log.log_end_offset
    world.append()
    if more:
        log.write_producer_snapshot(b"", log.log_end_offset)
    world.store.journal.is_ready = False  # it cannot help
    with writes_fail(errno.ENOSPC), pytest.raises(NoRoom):
        world.store.flush(log)
    assert not log.failed
    assert len(file_of(world)) == len(world.twins[0].bytes_from(0)) - len(world.twins[0].stored[-1].bytes)
    assert safe < log.log_end_offset
    assert read_all(log) == world.twins[0].bytes_from(0)
    world.append()
    assert world.store.flush(log) == [None]
    assert log.flushed_end == log.log_end_offset
    world.power_cut()
    world.check()


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


def test_a_policy_of_os_counts_from_the_flush_on_that_it_found_under_way() -> None:
    """Under steady load too: there is always a later append than those that a flush covers."""
    world = World(logs=1)
    [log] = world.logs
    world.append()
    log.reconfigure(OS)
    world.append()
    assert world.store.flush(log, meanwhile=world.append) == [None]
    assert log.flushed_end == log.log_end_offset
    assert not log.needs_flush
    world.append()
    assert log.flushed_end == log.log_end_offset
    world.restart()
    world.check()


def test_the_journal_is_given_no_entry_that_lacks_what_came_under_os() -> None:
    world = World(logs=1)
    [log] = world.logs
    for config in (ROOMY, OS, ROOMY):
        log.reconfigure(config)
        world.append()
    assert world.store.flush(log) == [None]
    world.power_cut()
    world.check()


def flushed_part(log: LocalLog) -> tuple[bytes, Offset]:
    """All that is flushed; of a log that has failed, what its own file has of that."""
    parts, at = [], Offset(0)
    end = min(log.flushed_end, log.contents.segments[-1].end) if log.failed else log.flushed_end
    while part := log.read(at, 4096, Offset(end), at_least_one=True):
        parts.append(bytes(part))
        at = Offset(check_batches(part)[-1][1].next_offset)
    assert at == end
    return b"".join(parts), at


class Law:
    """Two logs whose policies change. `durable`: below it the power may go; `safe`: below it a kill may come."""

    def __init__(self, seed: int) -> None:
        self.world = World(logs=2, seed=seed, late=0.5)
        self.chance = self.world.disk.chance
        self.durable, self.safe, self.fsync = [0, 0], [0, 0], [True, True]

    def note(self) -> None:
        for at, log in enumerate(self.world.logs):
            if self.fsync[at]:
                self.durable[at] = max(self.durable[at], log.flushed_end)
            self.safe[at] = max(self.safe[at], log.flushed_end)
            assert log.flushed_end <= log.log_end_offset

    def append(self, times: int = 3) -> None:
        for _ in range(self.chance.randrange(1, times + 1)):
            self.world.append(self.chance.randrange(2), size=self.chance.choice((5, 80, 700)))

    def step(self) -> None:
        world, chance = self.world, self.chance
        at = chance.randrange(2)
        log = world.logs[at]
        match chance.choice([*["append"] * 5, *["flush"] * 4, "half", "out", *MORE]):
            case "append":
                self.append()
            case "flush":
                world.store.flush(*world.logs)
            case "half":
                world.store.flush(*world.logs, meanwhile=self.append)
            case "out":
                log.write_out()
                self.safe[at] = log.log_end_offset
            case "os" | "fsync" as policy:  # data that counts under os is not durable before a flush that includes it
                self.note()
                self.fsync[at] = policy == "fsync" and log.flushed_end == self.durable[at]
                log.reconfigure(ROOMY if policy == "fsync" else OS)
            case "roll":
                log.roll()
            case "read":
                assert read_all(log) == world.twins[at].bytes_from(0)
                self.safe[at] = log.log_end_offset
            case "snapshot":
                log.write_producer_snapshot(b"x", log.log_end_offset)
            case "upkeep":
                world.store.keep_up()
                world.store.begin_upkeep()
            case "fail":
                self.fail(log)
            case end:
                self.end(power=end == "power")
        self.note()

    def fail(self, log: LocalLog) -> None:
        """The logs' files take no more. Where they were full, there is room again; else the broker is started again."""
        error = self.chance.choice((errno.EIO, errno.ENOSPC))
        with suppress(StorageFailure), writes_fail(error):
            match self.chance.choice(["append", "flush", "half", "out", "roll", "read"]):
                case "append":
                    self.append(1)
                case "flush":
                    self.world.store.flush(*self.world.logs)
                case "half":
                    self.world.store.flush(*self.world.logs, meanwhile=lambda: self.append(1))
                case "out":
                    log.write_out()
                case "roll":
                    log.roll()
                case _:
                    log.read(Offset(0), 10**6, log.log_end_offset, at_least_one=True)
        for twin in self.world.twins:
            found, end = flushed_part(twin.log)
            assert found == b"".join(one.bytes for one in twin.stored if one.last_offset < end)
        if error == errno.EIO or self.chance.random() < 0.3:
            self.end(power=self.chance.random() < 0.5)
            return
        for twin in self.world.twins:
            assert not twin.log.failed
            twin.stored = [one for one in twin.stored if one.last_offset < twin.log.log_end_offset]

    def end(self, *, power: bool) -> None:
        self.note()
        promised = list(self.durable if power else self.safe)
        if power:
            self.world.disk.power_cut()
        self.world.restart()
        for number, twin in enumerate(self.world.twins):
            log = twin.log = self.world.store.open(identity_of(number), ROOMY)
            twin.epoch += 1
            assert log.log_end_offset >= promised[number]
            twin.stored = [one for one in twin.stored if one.last_offset < log.log_end_offset]
            assert read_all(log) == twin.bytes_from(0)
            self.durable[number] = self.safe[number] = log.log_end_offset
            self.fsync[number] = True


MORE = ("os", "fsync", "roll", "read", "snapshot", "upkeep", "fail", "kill", "power")


@pytest.mark.parametrize("seed", range(60))
def test_policies_failures_kills_and_power_cuts_in_any_order(seed: int) -> None:
    """Data flushed under fsync survives a power cut; data that was written, or counted under os, survives a kill."""
    law = Law(seed)
    for _ in range(120):
        law.step()
