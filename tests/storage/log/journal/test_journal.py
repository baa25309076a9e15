"""The journal by itself and under an engine: its ring, its upkeep, its failures, and how its files go."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.storage.engine.flushing import Outcome
from headrace.storage.log.copying import LocalCopying
from headrace.storage.log.journal.journal import Journal, JournalSettings
from headrace.storage.log.journal.rounds import ALIGNMENT, rounds_in
from headrace.storage.log.names import DOUBT
from headrace.storage.log.partition import LocalLog
from tests.storage.log.journal.test_journal_power_cuts import ROOMY
from tests.storage.log.journal_world import JOURNAL, KEY, TINY, Store, identity_of
from tests.storage.log.log_world import ROOT, Twin, batch, new_disk, read_all
from tests.storage.log.memory_disk import MemoryDisk, MemoryFile, PowerCut

BIG = 900


class World:
    """A store with open logs, each already flushed once and the journal ready."""

    def __init__(self, logs: int = 2, settings: JournalSettings = TINY, seed: int = 0, *, late: float = 0.0) -> None:
        self.disk = new_disk(seed)
        self.settings = settings
        self.late = late
        self.store = Store(self.disk, settings)
        self.twins = [Twin(self.store.open(identity_of(number), ROOMY)) for number in range(logs)]
        self.round()
        self.store.keep_up()
        self.round()
        assert self.store.journal.is_ready
        self.store.late = late

    @property
    def logs(self) -> list[LocalLog]:
        return [twin.log for twin in self.twins]

    def append(self, *numbers: int, size: int = 20) -> None:
        for number in numbers or range(len(self.twins)):
            self.twins[number].append(batch(2, size=size, seed=len(self.twins[number].stored)))

    def round(self, *numbers: int, size: int = 20) -> list[Outcome]:
        """Append to some logs (none: all), and flush."""
        self.append(*numbers, size=size)
        return list(self.store.flush(*self.logs))

    def restart(self) -> None:
        """On the same page cache."""
        self.store = Store(self.disk, self.settings, late=self.late)

    def power_cut(self) -> None:
        """All that is not durable is gone."""
        self.disk.chance.random = lambda: 0.999  # type: ignore[method-assign]
        self.disk.power_cut()
        self.restart()

    def check(self, *numbers: int) -> None:
        """Open them; they hold all that was appended."""
        for number in numbers or range(len(self.twins)):
            twin = self.twins[number]
            twin.log = self.store.open(twin.log.identity, ROOMY)
            assert read_all(twin.log) == twin.bytes_from(0)


def journaled(disk: MemoryDisk) -> list[int]:
    """Numbers of the rounds that the journal's files hold, in rising order."""
    if not disk.is_directory(JOURNAL):
        return []
    files = [bytes(disk.file(JOURNAL / name).data) for name in disk.list_directory(JOURNAL)]
    return sorted(found.head.number for data in files for found in rounds_in(KEY, data))


# the usual road


def test_a_round_of_appends_is_one_sync_for_all_logs() -> None:
    world = World(logs=5)
    before = world.disk.syncs
    world.round()
    assert world.disk.syncs == before + 1


def test_what_only_the_journal_holds_is_there_after_a_power_cut() -> None:
    world = World()
    for _ in range(2):
        world.round()
    world.power_cut()
    assert world.store.journal.earlier_keys
    world.check()


def test_a_log_whose_file_ends_inside_an_entry_gets_the_rest() -> None:
    """The kernel wrote a part of it back by itself."""
    world = World(logs=1)
    world.append()
    world.append()
    world.round()
    [segment] = [path for path in world.disk.list_directory(world.logs[0].directory) if path.endswith(".log")]
    node = world.disk.file(world.logs[0].directory / segment)
    node.end_sync(node.begin_sync())
    stored = world.twins[0].stored
    for kept in range(len(stored) - 3, len(stored)):
        disk = world.disk.copy()
        size = sum(len(each.bytes) for each in stored[:kept])
        disk.file(world.logs[0].directory / segment).data[size:] = b""
        log = Store(disk).open(identity_of(0), ROOMY)
        assert read_all(log) == world.twins[0].bytes_from(0)


def test_nothing_is_journaled_behind_what_was_left_to_the_page_cache() -> None:
    """flush.policy goes from os to fsync, with a flush of other things between: the journal alone would have a gap."""
    world = World(logs=1)
    log = world.logs[0]
    log.reconfigure(replace(ROOMY, fsync=False))
    world.append()
    log.write_producer_snapshot(b"producers", log.log_end_offset)
    assert world.store.flush(log) == [None]
    log.reconfigure(ROOMY)
    world.round()
    world.power_cut()
    world.check()


def test_what_is_more_than_appends_syncs_the_logs_own_files() -> None:
    world = World()
    rounds = journaled(world.disk)
    world.logs[0].roll()
    world.round(0)
    assert journaled(world.disk) == rounds
    world.round(0)
    assert len(journaled(world.disk)) == len(rounds) + 1


def test_a_clean_stop_leaves_no_file() -> None:
    world = World()
    for _ in range(12):
        world.round(size=BIG)
        world.store.keep_up()
    world.store.stop(*world.logs)
    assert world.store.files == []
    assert world.disk.open_files == 0
    world.power_cut()
    world.check()


def test_without_files_there_is_no_journal() -> None:
    disk = new_disk()
    store = Store(disk, JournalSettings(files_max=0, after_rounds=1))
    twin = Twin(store.open(identity_of(0), ROOMY))
    for _ in range(4):
        twin.append(batch())
        store.flush(twin.log)
        store.keep_up()
    assert not disk.is_directory(JOURNAL)


def test_an_unclean_stop_leaves_no_open_file_and_keeps_the_journal() -> None:
    world = World()
    world.round()
    for log in world.logs:
        log.close(clean=False)
    world.store.engine.close(clean=False)
    assert world.disk.open_files == 0
    world.power_cut()
    world.check()


# the ring


def test_files_are_used_again_and_are_never_more_than_allowed() -> None:
    world = World()
    for _ in range(60):
        world.round(size=BIG)
        world.store.keep_up()
        assert len(world.store.files) <= TINY.files_max
    numbers = journaled(world.disk)
    assert numbers[0] > 0, "the first ones were written over"
    world.power_cut()
    world.check()


def test_a_file_is_not_used_again_before_its_logs_are_synced() -> None:
    """Upkeep that never comes: the journal stops, and the logs' own files are synced."""
    world = World()
    for _ in range(40):
        world.round(size=BIG)
    assert not world.store.journal.is_ready
    before = world.disk.syncs
    world.round()
    assert world.disk.syncs == before + 2
    world.power_cut()
    world.check()


def test_a_journal_that_had_to_stop_goes_on_after_upkeep() -> None:
    world = World()
    for _ in range(40):
        world.round(size=BIG)
    for _ in range(6):
        world.store.keep_up()
        world.round()
    assert world.store.journal.is_ready
    before = world.disk.syncs
    world.store.keep_up()
    world.round()
    assert world.disk.syncs <= before + 3


@pytest.mark.parametrize("rounds", range(3, 20))
def test_a_torn_round_anywhere_in_the_ring_is_no_damage(rounds: int) -> None:
    for upkeep_every in (1, 2, 3):
        world = World(seed=rounds)
        for at in range(rounds):
            if at < 3 or at % upkeep_every == 0:
                world.store.keep_up()
            world.round(size=BIG)
        world.append(size=BIG)
        world.disk.cut_in = 1
        with pytest.raises(PowerCut):
            world.store.flush(*world.logs)
        world.disk.power_cut()
        world.restart()
        for twin in world.twins:
            log = world.store.open(twin.log.identity, ROOMY)
            flushed = b"".join(each.bytes for each in twin.stored[:-1])
            assert read_all(log)[: len(flushed)] == flushed


def test_a_file_is_not_written_over_before_a_durable_round_lets_go_of_it() -> None:
    """A torn write over it would look like damage. A round without entries comes first, in the last page."""
    world = World()
    while not world.store.journal._spare:
        world.store.keep_up()
        world.round(size=BIG)
    journal = world.store.journal
    current, spare = journal._ring[-1], journal._spare[0]
    current.position = TINY.file_bytes - ALIGNMENT
    spare.last, journal._released = journal._next - 1, -1
    before = world.disk.syncs
    assert world.round() == [None, None]
    assert world.disk.syncs >= before + 3, "that round, and both logs' own files"
    assert current.last == journal._next - 1
    assert journal._released == journal._ring[0].first


def test_more_than_a_file_takes_syncs_the_logs_own_files() -> None:
    world = World()
    rounds = journaled(world.disk)
    assert world.round(0, size=TINY.file_bytes) == [None]
    assert journaled(world.disk) == rounds
    assert world.store.journal.is_ready


# failures


def test_no_room_for_a_file_is_told_and_tried_again_later() -> None:
    disk = new_disk()
    store = Store(disk)
    twin = Twin(store.open(identity_of(0), ROOMY))
    twin.append(batch())
    store.flush(twin.log)
    disk.full = True
    with capture_logs() as told:
        store.keep_up()
    disk.full = False
    assert [each["log_level"] for each in told] == ["warning"]
    assert store.files == []
    for _ in range(40):
        twin.append(batch())
        assert store.flush(twin.log) == [None]
        store.keep_up()
    assert store.journal.is_ready


def test_no_file_is_made_that_would_take_the_last_of_the_room() -> None:
    """The quorum's log may be on the same volume, and would stop the broker."""
    disk = new_disk()
    store = Store(disk)
    twin = Twin(store.open(identity_of(0), ROOMY))
    disk.usable = TINY.file_bytes
    for _ in range(3):
        twin.append(batch())
        assert store.flush(twin.log) == [None]
        store.keep_up()
    assert store.files == []
    disk.usable = 2**39
    for _ in range(40):
        twin.append(batch())
        assert store.flush(twin.log) == [None]
        store.keep_up()
    assert store.journal.is_ready


@pytest.mark.parametrize("names", [JOURNAL.parent, JOURNAL])
def test_a_journal_whose_name_may_not_be_durable_is_not_begun_in_this_life(names: Path) -> None:
    """Seed 77 of the simulator: the journal's directory was there, and so was not synced again. A power cut took it
    with everything acknowledged since."""
    disk = new_disk()
    store = Store(disk)
    twin = Twin(store.open(identity_of(0), ROOMY))
    twin.append(batch())
    store.flush(twin.log)
    sync = disk.sync_directory

    def failing(path: Path) -> None:
        if path == names:
            raise OSError("as told")
        sync(path)

    with patch.object(disk, "sync_directory", failing), capture_logs() as told:
        store.keep_up()
    assert [each["log_level"] for each in told] == ["warning"]
    for _ in range(40):
        twin.append(batch())
        assert store.flush(twin.log) == [None]
        store.keep_up()
    assert not store.journal.is_ready
    disk.chance.random = lambda: 0.999  # type: ignore[method-assign]
    disk.power_cut()
    assert read_all(Store(disk).open(twin.log.identity, ROOMY)) == twin.bytes_from(0)


def test_a_failed_sync_of_the_journal_costs_speed_and_is_told_once() -> None:
    world = World()
    world.append()
    world.disk.fail_after(0)
    sync = world.disk.begin_sync

    def heals(file, done) -> None:  # type: ignore[no-untyped-def]
        def healed(failure: OSError | None) -> None:
            world.disk.fail_after(-1)
            done(failure)

        sync(file, healed)

    with capture_logs() as told, patch.object(world.disk, "begin_sync", heals):
        assert world.store.flush(*world.logs) == [None, None]
        for _ in range(3):
            assert world.round() == [None, None]
            world.store.keep_up()
    assert [each["log_level"] for each in told] == ["error"]
    assert not world.store.journal.is_ready
    assert not any(log.failed for log in world.logs)
    world.power_cut()
    world.check()


def test_a_failed_sync_behind_fails_that_log_and_keeps_the_journal() -> None:
    world = World()
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(size=BIG)
    bad = world.logs[0]
    sync_behind = world.store.journal.sync_behind

    def failing(path: Path) -> None:
        if path.parent == bad.directory:
            world.disk.fail_after(0)
        try:
            sync_behind(path)
        finally:
            world.disk.fail_after(-1)

    heard: list[int] = []
    for number, log in enumerate(world.logs):
        log.on_failed = partial(lambda which, _: heard.append(which), number)
    with capture_logs() as told, patch.object(world.store.journal, "sync_behind", failing):
        world.store.keep_up()
    assert [each["log_level"] for each in told] == ["error"]
    assert heard == [0], "at once, though nothing more is asked of it"
    assert [log.failed for log in world.logs] == [True, False]
    assert DOUBT in world.disk.list_directory(bad.directory)
    for _ in range(30):
        world.append(1, size=BIG)
        world.store.flush(*world.logs)
        world.store.keep_up()
    world.store.stop(*world.logs)
    assert world.store.files
    world.power_cut()
    world.check()


def test_a_sync_after_a_failed_sync_behind_proves_nothing() -> None:
    """The flush's own sync of the same file comes after it, and the kernel calls it a success."""
    world = World(logs=1)
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(size=BIG)
    flushed = world.logs[0].flushed_end
    world.append()
    world.logs[0].roll()
    assert world.store.upkeep is not None
    world.disk.fail_after(0)
    world.store.upkeep.run()
    world.disk.fail_after(-1)
    [failure] = world.store.flush(*world.logs)
    assert isinstance(failure, OSError)
    assert failure.errno == errno.EIO
    assert world.logs[0].flushed_end == flushed
    world.store.upkeep.end()
    world.twins[0].stored.pop()
    world.power_cut()
    world.check()


def test_a_sync_behind_is_not_believed_while_the_log_syncs_its_file_itself() -> None:
    world = World(logs=1)
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(size=BIG)
    work, journal = world.store.upkeep, world.store.journal
    work.run()
    journal.note_syncing([world.logs[0].key])
    journal.end_upkeep(work)
    assert journal._ring[0].held, "kept until that sync is known to be good"


# a failed sync that something else meets than a flush


def failed_behind(*, is_told: bool) -> World:
    """Upkeep has failed to sync the first log's file; `is_told`: the journal and the log have heard of it."""
    world = World(logs=2)
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(size=BIG)
    world.disk.fail_after(0)
    world.store.upkeep.run()
    world.disk.fail_after(-1)
    if is_told:
        hear(world)
    return world


def hear(world: World) -> None:
    upkeep, world.store.upkeep = world.store.upkeep, None
    assert upkeep is not None
    upkeep.end()


def change(log: LocalLog, how: str, at: Offset) -> None:
    match how:
        case "cut":
            log.copying.truncate_to(at)
        case "restart":
            log.copying.restart_at(at)
        case "give way":
            log.give_way(at)
        case "anew":
            log.copying.begin_anew()


CHANGES = ["cut", "restart", "give way", "anew"]


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("how", CHANGES)
def test_what_has_failed_to_sync_behind_is_neither_cut_nor_begun_anew(how: str, is_told: bool) -> None:
    """The cut syncs the same file once more, which the kernel calls a success, and voids what the journal holds."""
    world = failed_behind(is_told=is_told)
    for log, twin in zip(world.logs, world.twins, strict=True):
        with pytest.raises(StorageFailure):
            change(log, how, Offset(twin.stored[-2].last_offset + 1))
        assert log.failed
    if not is_told:
        hear(world)
    world.power_cut()
    world.check()


@pytest.mark.parametrize("how", CHANGES)
def test_what_its_own_file_could_not_take_is_neither_cut_nor_begun_anew(how: str) -> None:
    """No sync has failed, and a cut's would succeed; but only the journal has what was acknowledged."""
    world = unwritable()
    with pytest.raises(StorageFailure):
        change(world.logs[0], how, Offset(world.twins[0].stored[-2].last_offset + 1))
    world.power_cut()
    world.check()


def unwritable() -> World:
    """The first log's file could not be written behind an acknowledgement."""
    world = World(logs=2, late=1.0)
    world.round()
    planted = OSError(errno.EIO, "planted")
    with patch.object(MemoryFile, "append", side_effect=planted), pytest.raises(StorageFailure):
        world.logs[0].write_out()
    return world


def test_a_sync_behind_that_fails_while_a_cut_is_at_it_stops_the_cut() -> None:
    """Between the cut's own sync of that file and the checkpoint that voids the journal."""
    world = World(logs=1)
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(size=BIG)
    log, upkeep = world.logs[0], world.store.upkeep
    sync = log.copying._sync_unsynced

    def beaten() -> None:
        world.disk.fail_after(0)
        upkeep.run()
        world.disk.fail_after(-1)
        sync()

    with patch.object(LocalCopying, "_sync_unsynced", lambda _: beaten()), pytest.raises(StorageFailure):
        log.copying.truncate_to(Offset(world.twins[0].stored[-2].last_offset + 1))
    hear(world)
    world.power_cut()
    world.check()


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("seed", range(8))
def test_a_cut_that_cannot_sync_has_the_journal_keep_what_it_has(seed: int, how: str) -> None:
    """From then on the log's own file never counts as synced: it lacks the data."""
    world = World(logs=2, seed=seed)
    world.round(size=BIG)
    cut = Offset(world.twins[0].stored[-2].last_offset + 1)
    world.round(0, size=BIG)
    log = world.logs[0]
    flushed = log.flushed_end
    world.disk.fail_after(0)
    with pytest.raises(StorageFailure):
        change(log, how, cut)
    world.disk.fail_after(-1)
    for _ in range(40):
        world.append(1, size=BIG)
        world.store.flush(world.logs[1])
        world.store.keep_up()
    world.power_cut()
    assert world.store.open(log.identity, ROOMY).log_end_offset == flushed
    world.check()


@pytest.mark.parametrize("seed", range(4))
def test_a_sync_behind_is_not_believed_while_the_log_is_cut(seed: int) -> None:
    """The cut's own sync of that file may have been told of a failure, which then nobody else is."""
    world = World(logs=2, seed=seed)
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(1, size=BIG)  # the first log is in the oldest file alone
    log, sync = world.logs[0], world.logs[0].copying._sync_unsynced

    def failing() -> None:
        world.disk.fail_after(0)
        try:
            sync()
        finally:
            world.disk.fail_after(-1)
            world.store.keep_up()  # after it, and over before the cut has heard of the failure

    with patch.object(LocalCopying, "_sync_unsynced", lambda _: failing()), pytest.raises(StorageFailure):
        log.copying.truncate_to(Offset(world.twins[0].stored[-2].last_offset + 1))
    for _ in range(40):
        world.append(1, size=BIG)
        world.store.flush(world.logs[1])
        world.store.keep_up()
    world.power_cut()
    world.check()


@contextmanager
def no_marks(disk: MemoryDisk, error: int, *, links: bool) -> Iterator[None]:
    """No file can be made that says that a sync has failed, nor, without `links`, a second name for another."""
    opens, makes_links = disk.open, disk.link

    def opened(path: Path, *, create: bool = False) -> MemoryFile:
        if create and path.name == DOUBT:
            raise OSError(error, os.strerror(error), str(path))
        return opens(path, create=create)

    def linked(source: Path, target: Path) -> None:
        if not links and target.name == DOUBT:
            raise OSError(error, os.strerror(error), str(target))
        makes_links(source, target)

    with patch.object(disk, "open", opened), patch.object(disk, "link", linked):
        yield


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC, errno.EDQUOT])
def test_what_failed_to_sync_is_written_anew_though_nothing_could_be_marked(error: int, links: bool) -> None:
    """A restart, no reboot: the page cache passes for clean, and the journal is let go of once all logs are open."""
    world = failed_behind(is_told=False)
    with no_marks(world.disk, error, links=links), capture_logs() as told:
        hear(world)
    marks = [DOUBT in world.disk.list_directory(log.directory) for log in world.logs]
    assert marks == [links, links]
    assert ["reboot" in str(each) for each in told].count(True) == (0 if links else 2)
    world.restart()
    world.check()
    for _ in range(3):
        world.store.begin_upkeep()
        world.store.keep_up()
    assert world.store.files == []
    world.power_cut()
    world.check()


def test_what_the_kernel_lost_before_anybody_heard_of_it_is_written_anew() -> None:
    """Killed between a failed sync behind and its hearing of it."""
    world = failed_behind(is_told=False)
    world.restart()
    world.check()
    for _ in range(3):
        world.store.begin_upkeep()
        world.store.keep_up()
    world.power_cut()
    world.check()


def test_only_what_the_journal_holds_is_written_anew() -> None:
    """A start after a kill is to cost what the journal has, not what the logs have."""
    world = World(logs=1)
    for _ in range(3):
        world.logs[0].roll()
        world.round(size=BIG)  # synced by itself, for it was rolled
    world.round()
    directory = world.logs[0].directory
    written: list[tuple[str, int]] = []
    write_at = MemoryFile.write_at

    def noted(file: MemoryFile, offset: int, buffers: Sequence[Buffer]) -> None:
        if file.path.parent == directory:
            written.append((file.path.name, offset))
        write_at(file, offset, buffers)

    world.restart()
    with patch.object(MemoryFile, "write_at", noted):
        world.check()
    stored = world.twins[0].stored
    segment = max(name for name in world.disk.list_directory(directory) if name.endswith(".log"))
    assert written == [(segment, len(stored[-2].bytes))]


@pytest.mark.parametrize("again", ["open", "set aside"])
@pytest.mark.parametrize("fails", ["write", "sync"])
def test_what_only_the_journal_of_this_life_holds_is_neither_opened_nor_set_aside(fails: str, again: str) -> None:
    """As where a partition is handed over and comes back: recovery asks the journal of earlier lives alone."""
    world = unwritable() if fails == "write" else failed_behind(is_told=True)
    bad = world.logs[0]
    bad.close(clean=False)
    with pytest.raises(StorageFailure, match="restart the broker"):
        world.store.open(bad.identity, ROOMY) if again == "open" else world.store.engine.set_aside(bad.identity)
    world.power_cut()
    world.check()


# an earlier life


def test_what_is_set_aside_is_whole() -> None:
    world = World(logs=1)
    world.round()
    world.power_cut()
    moved = world.store.engine.set_aside(world.logs[0].identity)
    assert moved is not None
    [segment] = [name for name in world.disk.list_directory(moved) if name.endswith(".log")]
    assert bytes(world.disk.file(moved / segment).durable) == world.twins[0].bytes_from(0)


def damage(disk: MemoryDisk, number: int) -> None:
    for name in disk.list_directory(JOURNAL):
        node = disk.file(JOURNAL / name)
        at = 0
        for found in list(rounds_in(KEY, bytes(node.data))):
            if found.head.number == number:
                node.data[at + 20] ^= 1
            at = found.stop


def test_a_damaged_round_in_the_middle_is_told_in_one_sentence() -> None:
    world = World()
    world.round()
    world.round()
    numbers = journaled(world.disk)
    damage(world.disk, numbers[-2])
    with pytest.raises(StorageFailure, match=r"^The journal in .* is damaged: restore the disk, or remove"):
        Store(world.disk)


def test_a_damaged_last_round_was_never_acknowledged() -> None:
    world = World()
    world.round()
    damage(world.disk, journaled(world.disk)[-1])
    world.restart()
    world.check()  # the page cache still has what it held


def test_behind_a_gap_between_log_and_journal_nothing_is_appended_and_nothing_changed() -> None:
    world = World(logs=1)
    world.round()
    log = world.logs[0]
    [segment] = [name for name in world.disk.list_directory(log.directory) if name.endswith(".log")]
    node = world.disk.file(log.directory / segment)
    whole = bytes(node.data)
    node.data[100:] = b""
    world.restart()
    for _ in range(2):
        opened = world.store.open(log.identity, ROOMY)
        assert "the journal goes on at" in (opened.read_only or "")
        assert opened.failed
        assert bytes(node.data) == whole[:100]
        world.store.begin_upkeep()
        world.store.keep_up()
        world.restart()
    node.data[:] = whole
    world.check()


def test_files_of_an_earlier_life_stay_until_every_log_was_opened() -> None:
    world = World(logs=3)
    world.round()
    earlier = set(world.store.files)
    for opened in (0, 1):
        world.power_cut()
        world.check(opened)
        world.twins[opened].append(batch(seed=99))
        world.store.flush(world.logs[opened])
        world.store.keep_up()
        assert earlier <= set(world.store.files)
    world.check()
    world.store.flush(*world.logs)
    for twin in world.twins:
        twin.append(batch(seed=77))
    world.store.flush(*world.logs)
    world.store.keep_up()
    assert not earlier & set(world.store.files)
    world.power_cut()
    world.check()


def test_the_removal_of_an_earlier_life_survives_a_power_cut_at_every_operation() -> None:
    for cut_in in range(1, 12):
        for seed in range(4):
            world = World(seed=seed)
            for _ in range(8):
                world.round(size=BIG)
                world.store.keep_up()
            world.disk.power_cut()
            world.restart()
            world.check()
            world.store.begin_upkeep()
            world.disk.cut_in = cut_in
            with suppress(PowerCut):
                world.store.keep_up()
            world.disk.power_cut()
            world.restart()
            world.check()


def test_what_the_journal_has_of_deleted_logs_keeps_nothing() -> None:
    world = World()
    world.round()
    deleted = world.logs[0]
    deleted.close(clean=False)
    world.store.engine.delete(deleted.identity)
    world.store.stop(world.logs[1])
    assert world.store.files == []


def test_a_name_that_comes_back_gets_nothing_of_the_old_log() -> None:
    world = World()
    world.round()
    old = world.logs[0]
    old.close(clean=False)
    world.store.engine.delete(old.identity)
    world.power_cut()
    new = world.store.open(identity_of(0, generation=1), ROOMY)
    assert (new.log_start_offset, new.log_end_offset) == (0, 0)
    world.check(1)


def test_a_deletion_that_was_cut_short_does_not_keep_the_files_for_ever() -> None:
    world = World()
    world.round()
    world.power_cut()
    new = world.store.open(identity_of(0, generation=1), ROOMY)
    assert new.set_aside is not None
    world.check(1)
    world.store.begin_upkeep()
    world.store.keep_up()
    assert world.store.files == []


def test_logs_that_are_gone_keep_nothing() -> None:
    world = World()
    world.round()
    world.disk.remove_tree(world.logs[0].directory)
    world.disk.sync_directory(ROOT)
    world.power_cut()
    assert [key.directory for key in world.store.journal.earlier_keys] == ["orders-0", "orders-1"]
    world.check(1)
    world.store.begin_upkeep()
    world.store.keep_up()
    assert world.store.files == []


def test_a_file_that_is_not_ours_is_left_alone() -> None:
    disk = new_disk()
    disk.make_directory(JOURNAL)
    disk.open(JOURNAL / "notes.journal", create=True).append([b"HRJ1"])
    journal = Journal(disk, JOURNAL, KEY, TINY)
    journal.start()
    assert not journal.earlier_keys
    assert disk.list_directory(JOURNAL) == ["notes.journal"]


def test_a_file_of_zeros_alone_goes() -> None:
    """The power went between its making and the first round."""
    disk = new_disk()
    store = Store(disk)
    twin = Twin(store.open(identity_of(0), ROOMY))
    twin.append(batch())
    store.flush(twin.log)
    store.keep_up()
    assert len(store.files) == 1
    disk.power_cut()
    store = Store(disk)
    store.begin_upkeep()
    store.keep_up()
    assert store.files == []


# cuts


def truncated() -> World:
    """Everything is in the journal; then the log is cut, and its file holds what was left."""
    world = World(logs=2)
    world.round()
    world.round()
    log = world.logs[0]
    keep = world.twins[0].stored[0].last_offset + 1
    log.copying.truncate_to(Offset(keep))
    del world.twins[0].stored[1:]
    return world


def test_what_is_known_of_producers_is_durable_before_the_start_that_rose_with_it() -> None:
    """Both wait for the next flush; a cut, which leaves the journal, writes down where the log begins."""
    for good in range(100):
        world = World(logs=1)
        world.round()
        log, end = world.logs[0], world.twins[0].end
        log.write_producer_snapshot(b"as of %d" % end, Offset(end))
        log.delete_records_before(Offset(2))
        assert log.is_journaled
        world.disk.fail_after(good)
        done = True
        try:
            log.copying.truncate_to(Offset(end - 2), lambda end: b"as of %d" % end)
        except StorageFailure:
            done = False
        world.disk.fail_after(-1)
        world.power_cut()
        again = world.store.open(log.identity, ROOMY)
        known = (again.log_end_offset, b"as of %d" % again.log_end_offset)
        assert again.log_start_offset == 0 or again.latest_producer_snapshot() == known
        if done:
            assert (again.log_start_offset, again.log_end_offset) == (2, end - 2)
            return
    pytest.fail("it is never done")


def test_what_was_cut_does_not_come_back() -> None:
    world = truncated()
    world.power_cut()
    world.check()


def test_without_a_new_lineage_it_would() -> None:
    with patch.object(LocalCopying, "_leave_journal", lambda self: None):
        world = truncated()
    world.power_cut()
    log = world.store.open(world.logs[0].identity, ROOMY)
    assert read_all(log) != world.twins[0].bytes_from(0)


def test_what_is_cut_in_a_later_life_does_not_come_back_while_the_journal_is_kept_for_another_log() -> None:
    world = World(logs=2)
    world.round()
    world.power_cut()
    world.check(0)
    world.logs[0].copying.truncate_to(Offset(world.twins[0].stored[0].last_offset + 1))
    del world.twins[0].stored[1:]
    world.power_cut()
    world.check()


def test_a_round_that_failed_counts_as_journaled_for_a_cut() -> None:
    """It may be on the disk all the same."""
    world, planted = World(logs=1), OSError(errno.EIO, "planted")
    begin = world.disk.begin_sync
    world.append()
    with patch.object(world.disk, "begin_sync", lambda file, done: begin(file, lambda _: done(planted))):
        assert world.store.flush(*world.logs) == [None]
    for name in world.disk.list_directory(JOURNAL):
        node = world.disk.file(JOURNAL / name)
        node.end_sync(node.begin_sync())
    world.logs[0].copying.truncate_to(Offset(world.twins[0].stored[0].last_offset + 1))
    del world.twins[0].stored[1:]
    world.power_cut()
    world.check()


def test_a_lost_checkpoint_does_not_hide_what_the_journal_holds() -> None:
    world = truncated()
    for _ in range(3):
        world.round()
    checkpoint = world.disk.file(world.logs[0].directory / "checkpoint.json")
    world.disk.power_cut()
    checkpoint.data[:] = checkpoint.durable[:] = b"damaged"
    world.restart()
    world.check()


def test_a_sync_behind_from_before_a_cut_says_nothing_of_what_came_after_it() -> None:
    """The offsets are given again; what they hold now is in the journal alone."""
    world = World()
    while world.store.upkeep is None or not world.store.upkeep.behind:
        world.store.keep_up()
        world.round(size=BIG)
    upkeep = world.store.upkeep
    upkeep.run()
    log, twin = world.logs[0], world.twins[0]
    log.copying.truncate_to(Offset(twin.stored[0].last_offset + 1))
    del twin.stored[1:]
    for _ in range(2):  # the first syncs the log's own file
        assert world.round(0) == [None]
    world.store.upkeep = None
    upkeep.end()
    for _ in range(60):  # the ring comes round
        world.round(1, size=BIG)
        world.store.keep_up()
    world.power_cut()
    world.check()


def test_the_pages_of_a_file_are_its_rounds() -> None:
    assert TINY.file_bytes % ALIGNMENT == 0
    assert Journal(new_disk(), JOURNAL, KEY).recoverable(World().logs[0].key) == ()
