"""A follower's log is cut where the leader's goes on otherwise: what is left of it says what it said before."""

from __future__ import annotations

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.storage.log.log_world import Twin, batch, flush, new_disk, open_log
from tests.storage.log.recovery.test_log_damage import flip


def test_a_producer_snapshot_that_waits_for_its_flush_is_read_after_a_cut() -> None:
    """Its file is not there yet: recovering the producers from it stopped the broker."""
    twin = Twin(open_log(new_disk()))
    twin.append(batch(1))
    twin.log.write_producer_snapshot(b"as of 1", Offset(1))
    twin.append(batch(1), batch(1))
    twin.log.write_producer_snapshot(b"as of 3", Offset(3))
    assert twin.log.latest_producer_snapshot() == (3, b"as of 3")
    twin.log.copying.truncate_to(Offset(2))
    assert twin.log.latest_producer_snapshot() == (1, b"as of 1")


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_told_of_producers_at_a_cut_is_durable_before_newer_snapshots_go(fails: bool) -> None:
    """At every moment of the cut, the newest snapshot that a recovery finds is of what it finds in the log."""
    for steps in range(100):
        disk = new_disk()
        twin = Twin(open_log(disk))
        twin.append(batch(1))
        twin.log.write_producer_snapshot(b"as of 1", Offset(1))
        twin.append(batch(1), batch(1))
        twin.log.write_producer_snapshot(b"as of 3", Offset(3))
        flush(twin.log)
        seen: list[tuple[int, bytes]] = []

        def told(end: Offset, log: LocalLog = twin.log, seen: list[tuple[int, bytes]] = seen) -> bytes:
            seen.append((end, b"".join(bytes([header.base_offset]) for header, _ in log.batches_from(Offset(0)))))
            return b"as of 2"

        if fails:
            disk.fail_after(steps)
        done = True
        try:
            twin.log.copying.truncate_to(Offset(2), told)
        except StorageFailure:
            done = False
        assert seen in ([], [(2, bytes([0, 1, 2]))]), "all of it is there while it is told"
        disk.fail_after(1 << 30)
        disk.power_cut()
        log = open_log(disk)
        assert log.latest_producer_snapshot() == (log.log_end_offset, b"as of %d" % log.log_end_offset)
        if done:
            assert log.log_end_offset == 2
            return
    pytest.fail("it is never done")


def test_what_was_known_at_an_earlier_time_is_found() -> None:
    twin = Twin(open_log(new_disk()))
    for end in (1, 2, 3):
        twin.append(batch(1))
        if end != 2:
            twin.log.write_producer_snapshot(b"as of %d" % end, Offset(end))
    for _ in range(2):
        known = [twin.log.latest_producer_snapshot(Offset(end)) for end in range(4)]
        assert known == [None, (1, b"as of 1"), (1, b"as of 1"), (3, b"as of 3")]
        flush(twin.log)


def test_a_snapshot_of_the_cut_stays_though_an_older_one_of_its_name_was_to_go() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk))
    for end in (1, 2, 3):
        twin.append(batch(1))
        twin.log.write_producer_snapshot(b"as of %d" % end, Offset(end))
        if end < 3:
            flush(twin.log)
    twin.log.copying.truncate_to(Offset(1), lambda end: b"as of %d" % end)
    flush(twin.log)
    for log in (twin.log, open_log(disk)):
        assert log.latest_producer_snapshot() == (1, b"as of 1")


def test_damage_behind_the_cut_is_not_looked_at() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk))
    sizes = []
    for number in range(3):
        raw = encode_batch([Record(0, 0, None, b".")], producer_id=7, producer_epoch=0, base_sequence=number)
        twin.append(raw)
        sizes.append(len(raw))
    flush(twin.log)
    flip(disk, twin.log.directory / f"{0:020d}.log", sizes[0] + sizes[1] - 1)
    seen: list[int] = []

    def told(end: Offset) -> bytes:
        seen.extend(header.base_offset for header, _ in twin.log.batches_from(Offset(0), end))
        return b""

    twin.log.copying.truncate_to(Offset(1), told)
    assert (twin.log.log_end_offset, seen) == (1, [0])
