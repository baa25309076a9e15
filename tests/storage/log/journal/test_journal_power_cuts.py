"""The law of the journal, for any actions on several logs and a power cut at any time.

Data reported as flushed is there, byte for byte, at its offset. Data that was cut or deleted never comes back. The
power goes in the middle of any operation, including recovery's own. Several lives in a row may end before every log was
opened.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.storage.log.journal.journal import JournalSettings
from headrace.storage.log.names import key_of
from headrace.storage.log.partition import LocalLog
from tests.storage.log.journal_world import TINY, Store, identity_of
from tests.storage.log.log_world import NOW_MS, SMALL, Stored, Twin, batch, new_disk, read_all
from tests.storage.log.memory_disk import PowerCut
from tests.tiers import examples

LOGS = 3
ROOMY = replace(SMALL, segment_bytes=6000)
STEPS = [
    *["append"] * 5,
    *["burst"] * 4,
    *["round"] * 5,
    *["half"] * 3,
    *["upkeep"] * 4,
    "roll",
    "retain",
    "delete",
    "snapshot",
    "cut",
    "drop",
    "return",
    "full",
    "stop",
    "kill",
    "fail",
    "fail-behind",
    "fail-cut",
    "behind-cut",
]
steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, LOGS - 1), st.integers(0, 99)), min_size=5, max_size=40
)


class One:
    """One log through its lives. `promised`: below it all is durable; `start_max`: nothing from it on was deleted."""

    def __init__(self, number: int, generation: int = 0) -> None:
        self.identity = identity_of(number, generation)
        self.log: LocalLog | None = None
        self.may_be_gone = False
        """It was about to be when the power went."""
        self.may_be_cut = False
        """Its log has failed in the middle of a cut."""
        self.forget()

    def forget(self) -> None:
        """Another begins under its key, with nothing in it."""
        self.twin: Twin | None = None
        self.promised = 0
        self.start_max = 0
        self.refused: list[Stored] = []
        """Batches that may be there instead, until the next flush: an append that the disk had no room for."""


class Lives:
    def __init__(self, seed: int, config_seed: int) -> None:
        self.disk = new_disk(seed)
        self.settings = (TINY, TINY, JournalSettings(file_bytes=8 * 1024, files_max=4, after_rounds=2))[config_seed % 3]
        self.store = Store(self.disk, self.settings, late=0.5)
        self.logs = [One(number) for number in range(LOGS)]
        self.seed = 0
        self.recovered = False
        self.is_untidy = False
        """Files of the journal could not be made or removed in this life."""

    # open logs

    def open(self, one: One) -> LocalLog:
        """Where it is not: it holds what it must."""
        if one.log is None:
            self.recovered = self.recovered or bool(self.store.journal.recoverable(key_of(one.identity)))
            one.log = self.store.open(one.identity, ROOMY)
            if one.may_be_gone and one.log.log_end_offset == 0:
                one.forget()
            one.may_be_gone = one.may_be_cut = False
            if one.twin is None:
                one.twin = Twin(one.log)
            one.twin.log = one.log
            self.check(one)
        return one.log

    def twin(self, one: One) -> Twin:
        self.open(one)
        assert one.twin is not None
        return one.twin

    def opened(self) -> list[One]:
        return [one for one in self.logs if one.log is not None]

    def check(self, one: One) -> None:
        log, twin = one.log, one.twin
        assert log is not None
        assert twin is not None
        assert log.flushed_end == log.log_end_offset >= one.promised
        assert log.log_start_offset <= one.start_max
        held = read_all(log)
        if one.refused:
            twin.stored = min(twin.stored, one.refused, key=lambda each: not begins_with(each, log, held))
            one.refused = []
        twin.stored = [stored for stored in twin.stored if stored.last_offset < log.log_end_offset]
        assert twin.end == log.log_end_offset or log.log_start_offset == log.log_end_offset
        assert held == twin.bytes_from(log.log_start_offset)
        one.promised, twin.epoch = log.log_end_offset, twin.epoch + 1

    # actions

    def step(self, what: str, number: int, by: int) -> None:
        one = self.logs[number]
        match what:
            case "append":
                self.append(one, by)
            case "burst":
                for _ in range(3):
                    for each in self.logs[: number + 1]:
                        self.append(each, by)
                    self.round()
            case "round":
                self.round()
            case "half":
                self.round(meanwhile=lambda: self.append(one, by))
            case "upkeep":
                self.store.keep_up()
            case "roll":
                self.open(one).roll()
            case "retain":
                log = self.open(one)
                log.reconfigure(replace(ROOMY, retention_bytes=400 + 10 * by))
                log.apply_retention(NOW_MS, Offset(one.promised))
                one.start_max = max(one.start_max, log.log_start_offset)
            case "delete":
                wanted = Offset(by % (one.promised + 1))
                one.start_max = max(one.start_max, self.open(one).delete_records_before(wanted))
            case "snapshot":
                log = self.open(one)
                log.write_producer_snapshot(b"%d" % log.log_end_offset, log.log_end_offset)
            case "cut":
                self.cut(one, by)
            case "fail-cut" | "behind-cut":
                self.fail_cut(one, by, behind=what == "behind-cut")
            case "drop":
                self.drop(number)
            case "return":
                self.come_back(one, is_kept=by % 2 > 0)
            case "full":
                self.fill(one, by)
            case "stop":
                self.stop()
            case "kill":
                self.restart(by)
            case _:
                self.fail(what, by)

    def append(self, one: One, by: int) -> None:
        twin = self.twin(one)
        if not twin.log.failed:
            self.seed += 1
            twin.append(*(batch(1 + by % 3, size=10 * by, seed=self.seed) for _ in range(1 + by % 2)))

    def round(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        opened = self.opened()
        self.store.flush(*(one.log for one in opened if one.log is not None), meanwhile=meanwhile)
        self.promise()

    def promise(self) -> None:
        for one in self.opened():
            if one.log is not None and not one.may_be_cut:
                one.promised = max(one.promised, one.log.flushed_end)

    def cut(self, one: One, by: int) -> None:
        """As a follower does at a new epoch."""
        twin = self.twin(one)
        log = twin.log
        if log.failed:
            return
        at = log.log_start_offset + by % (log.log_end_offset - log.log_start_offset + 1)
        cut_at = max((stored.base_offset for stored in twin.stored if stored.base_offset <= at), default=0)
        one.promised = min(one.promised, cut_at)
        log.copying.truncate_to(Offset(at))
        twin.stored = [stored for stored in twin.stored if stored.last_offset < log.log_end_offset]
        twin.epoch += 1
        one.start_max = min(one.start_max, log.log_end_offset)

    def fail_cut(self, one: One, by: int, *, behind: bool) -> None:
        """A cut that cannot sync, or one of a log whose file has just failed to sync `behind` the journal. The life
        goes on."""
        self.open(one)
        upkeep = self.store.upkeep if behind else None
        if upkeep is not None:
            self.store.upkeep = None
            self.disk.fail_after(by % 2)
            upkeep.run()
            self.is_untidy = self.is_untidy or upkeep.failure is not None
            self.disk.fail_after(-1)
            if by % 3 == 0:
                upkeep.end()
        elif not behind:
            self.disk.fail_after(by % 4)
        one.may_be_cut, was = True, one.may_be_cut  # where the cut fails: what it was to drop is promised no more
        with suppress(StorageFailure):
            self.cut(one, by)
            one.may_be_cut = was
        self.disk.fail_after(-1)
        if upkeep is not None and by % 3:
            upkeep.end()
        self.promise()

    def drop(self, number: int) -> None:
        """Delete the log; its name comes back with another topic."""
        old = self.logs[number]
        self.open(old)
        new = self.logs[number] = One(number, old.identity.topic_id.int - 99)
        assert old.log is not None
        old.log.close(clean=False)
        self.store.engine.delete(old.identity)
        self.open(new)

    def come_back(self, one: One, *, is_kept: bool) -> None:
        """A copy that goes elsewhere and comes back: the same key, and nothing of what was there."""
        log = self.open(one)
        log.close(clean=False)
        one.log, one.may_be_gone = None, True
        if is_kept and self.store.journal.has_lost(log.key):
            with pytest.raises(StorageFailure):
                self.store.engine.set_aside(one.identity)
            one.may_be_gone = False
            self.restart(0)
            return
        if is_kept:
            self.store.engine.set_aside(one.identity)
        else:
            self.store.engine.delete(one.identity)
        one.forget()
        one.may_be_gone = False
        assert self.open(one).log_end_offset == 0

    def fill(self, one: One, by: int) -> None:
        """The disk is full in the middle of an append; the next one takes its place."""
        twin = self.twin(one)
        if twin.log.failed:
            return
        before = list(twin.stored)
        self.disk.full = True
        try:
            self.append(one, by)
        except StorageFailure:
            one.refused, twin.stored = twin.stored, before
        finally:
            self.disk.full = False
        self.append(one, by + 1)
        self.round()
        one.refused = []

    def stop(self) -> None:
        """A clean stop. Nothing is left of the journal where nothing needs it."""
        for one in self.logs:
            self.open(one)
        self.store.stop(*(one.log for one in self.logs if one.log is not None))
        self.promise()
        self.store.begin_upkeep()
        if not (self.is_untidy or any(one.log is not None and one.log.failed for one in self.logs)):
            assert self.store.files == []
        self.restart(0)

    def fail(self, what: str, by: int) -> None:
        """Syncs fail from some point on, in a round or in the upkeep; then the broker is started again."""
        try:
            if what == "fail":
                self.disk.fail_after(by % 4)
                self.round()
                self.disk.fail_after(-1)
                self.store.keep_up()
                self.round()
            else:
                self.disk.fail_after(by % 3)
                self.store.keep_up()
                self.disk.fail_after(-1)
                for one in self.opened():
                    self.append(one, by)
                self.round()
                self.store.keep_up()
        except StorageFailure:
            pass
        self.disk.fail_after(-1)
        self.promise()
        self.restart(by)

    # lives

    def restart(self, by: int) -> None:
        """On the same page cache; some logs are opened at once, others later."""
        for one in self.logs:
            one.log = None
        self.is_untidy = False
        self.store = Store(self.disk, self.settings, late=0.5)
        for one in self.logs:
            if by >> one.identity.partition & 1:
                self.open(one)

    def crash(self, cuts: list[int], by: int) -> None:
        """The power goes, and in the middle of what comes next again."""
        for cut_in in [*cuts, -1]:
            self.disk.power_cut()
            self.disk.cut_in = cut_in
            try:
                self.restart(by)
            except PowerCut:
                continue
            break
        self.disk.cut_in = -1


def begins_with(stored: list[Stored], log: LocalLog, held: bytes) -> bool:
    return b"".join(each.bytes for each in stored if each.last_offset >= log.log_start_offset).startswith(held)


@given(
    st.lists(
        st.tuples(steps, st.integers(1, 250), st.lists(st.integers(1, 30), max_size=2), st.integers(0, 7)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**32),
    st.integers(0, 2),
)
@example(  # a release that was not synced: after the power went, the journal holds again what was cut meanwhile
    [
        ([("drop", 1, 0), ("fail", 0, 0), ("append", 0, 0)], 23, [], 5),
        ([("append", 1, 0), ("round", 0, 0), ("fail-behind", 0, 1), ("append", 0, 0), ("cut", 0, 24)], 35, [], 0),
    ],
    447,
    2,
)
@example(  # a log whose cut failed is deleted: with it goes the last need of the journal
    [([("append", 1, 0), ("fail-cut", 0, 0), ("burst", 0, 0), ("drop", 0, 0), ("stop", 0, 0)], 58, [], 0)], 0, 0
)
@settings(max_examples=examples(400), deadline=None, report_multiple_bugs=False)
def test_what_was_flushed_survives_any_power_cut(
    lives: list[tuple[list[tuple[str, int, int]], int, list[int], int]], seed: int, config_seed: int
) -> None:
    world = Lives(seed, config_seed)
    for what in ("burst", "upkeep", "burst"):
        world.step(what, LOGS - 1, seed % 30)
    for plan, cut_in, cuts, by in lives:
        world.disk.cut_in = cut_in
        try:
            for what, number, amount in plan:
                world.step(what, number, amount)
        except PowerCut:
            pass
        world.crash(cuts, by)
    for one in world.logs:
        world.open(one)
    event(f"something to recover from the journal: {world.recovered}")
