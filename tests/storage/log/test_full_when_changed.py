"""The disk is full while a log is cut or restarted: nothing is in doubt, and no acknowledged record is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.base.errors import NoRoom
from headrace.base.ids import LeaderEpoch, Offset
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import BatchHeader, check_batches
from tests.storage.log.journal.test_journal import World
from tests.storage.log.journal.test_journal_power_cuts import ROOMY
from tests.storage.log.journal_world import identity_of
from tests.storage.log.log_world import batch, read_all
from tests.storage.log.memory_disk import MemoryDisk

KEPT = 6
"""Offsets that stay where the log is cut: three batches of two."""
CHANGES: dict[str, tuple[Callable[[LocalLog], object], int]] = {
    "cut": (lambda log: log.copying.truncate_to(Offset(KEPT), lambda _: b"producers"), KEPT),
    "cut to nothing": (lambda log: log.copying.truncate_to(Offset(0)), 0),
    "restarted": (lambda log: log.copying.restart_at(Offset(50), epoch=LeaderEpoch(3), producers=b"producers"), 50),
    "begun anew": (lambda log: log.copying.begin_anew(), 0),
    "given way": (lambda log: log.give_way(Offset(50), epoch=LeaderEpoch(3), producers=b"producers"), 50),
}
"""And where the log ends then."""


@contextmanager
def full_from(disk: MemoryDisk, operation: int) -> Iterator[None]:
    """From that operation on."""
    step, done = disk.step, 0

    def counted() -> None:
        nonlocal done
        done += 1
        disk.full = disk.full or done >= operation
        step()

    disk.step = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        disk.step = step  # type: ignore[method-assign]
        disk.full = False


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_wherever_the_disk_is_full_the_log_is_as_it_was_or_is_opened_again(change: str, is_held: bool) -> None:
    """In the same life, beside a journal that has what is acknowledged."""
    work, end = CHANGES[change]
    at, outcomes = 0, set()
    while "done" not in outcomes:
        at += 1
        world = World(logs=1, seed=at, late=1.0 if is_held else 0.0)
        [twin] = world.twins
        for _ in range(3):
            world.store.tidy_up()
            world.store.keep_up()
            world.append()
            world.store.flush(twin.log)
        assert twin.end > KEPT
        assert (twin.log.contents.held_size > 0) == is_held
        outcome = "done"
        with full_from(world.disk, at):
            try:
                work(twin.log)
            except NoRoom:
                outcome = "half" if twin.log.failed else "untouched"
        outcomes.add(outcome)
        if outcome == "untouched":
            assert read_all(twin.log) == twin.bytes_from(0)
            work(twin.log)
        if outcome == "half":
            twin.log.close(clean=False)
            twin.log = world.store.open(identity_of(0), ROOMY)
            before = (twin.log.log_start_offset, twin.log.log_end_offset)
            if before == (0, twin.end):
                assert read_all(twin.log) == twin.bytes_from(0)
            else:
                assert before in ((0, 0), (0, KEPT), (end, end))
            work(twin.log)
        assert twin.log.log_end_offset == end
        twin.stored = [each for each in twin.stored if each.last_offset < end == KEPT]
        start = twin.log.log_start_offset
        assert twin.log.append(*_sent(), leader_epoch=LeaderEpoch(7), now_ms=0).base_offset == end
        assert world.store.flush(twin.log) == [None]
        expected = read_all(twin.log)
        world.power_cut()
        again = world.store.open(identity_of(0), ROOMY)
        assert (again.log_start_offset, again.log_end_offset) == (start, end + 2)
        assert read_all(again) == expected
    assert outcomes == {"done", "half"} | ({"untouched"} if is_held else set())


def _sent() -> tuple[bytes, list[tuple[int, BatchHeader]]]:
    sent = batch(2)
    return sent, check_batches(sent)
