"""A copy of a compacted log has its gaps, durably, and no others.

After any power cut it ends where its own batches do. Or it ends where it was told, durably, that nothing more is
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.storage.engine.cutting import NO_GAPS
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import CorruptBatch, check_batches, emptied, encode_batch, iterate_headers
from headrace.wire.records import Record
from tests.storage.log.log_world import DIRECTORY, NOW_MS, SMALL, flush, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk, PowerCut

OS = replace(SMALL, fsync=False)


def led(*offsets: int, end: int = 0, epoch: int = 0, size: int = 40) -> bytes:
    """A batch of these records as it stands in the leader's log."""
    records = [Record(at, 1_700_000_000_000, b"key", b"%d" % at + b"." * size, ()) for at in offsets]
    return encode_batch(records, leader_epoch=epoch)


def copy(log: LocalLog, *batches: bytes, gaps_below: int = NO_GAPS) -> None:
    joined = b"".join(batches)
    headers = check_batches(joined, gaps_below=gaps_below)
    log.copying.append_verbatim(joined, headers, now_ms=NOW_MS, gaps_below=Offset(gaps_below))


def held(log: LocalLog) -> bytes:
    """All that a reader gets."""
    parts, at = [], log.log_start_offset
    while part := log.read(at, 4096, log.log_end_offset, at_least_one=True):
        parts.append(bytes(part))
        at = Offset(max(header.next_offset for _, header in iterate_headers(part)))
    return b"".join(parts)


def restarted(disk: MemoryDisk) -> LocalLog:
    disk.power_cut()
    return open_log(disk)


@pytest.mark.parametrize("config", [SMALL, OS])
def test_what_is_copied_with_its_gaps_is_there_after_a_power_cut(config: object) -> None:
    disk = new_disk()
    log = open_log(disk, config)  # type: ignore[arg-type]
    batches = [led(0), led(1, 3), led(7), led(8, 9), led(40, 44)]
    copy(log, *batches[:2], gaps_below=100)
    copy(log, *batches[2:], gaps_below=100)
    assert (log.log_end_offset, log.gaps_below) == (45, 45), "no further than it is itself"
    assert held(log) == b"".join(batches)
    flush(log)
    assert log.flushed_end == 45
    copy(log, led(45))
    again = restarted(disk)
    assert (again.log_start_offset, again.gaps_below) == (0, 45)
    assert held(again)[: len(b"".join(batches))] == b"".join(batches)
    copy(again, led(again.log_end_offset))


def test_gaps_are_taken_only_where_the_leader_has_been_compacted() -> None:
    log = open_log(new_disk())
    copy(log, led(0))
    with pytest.raises(CorruptBatch):
        copy(log, led(2), gaps_below=1)
    with pytest.raises(CorruptBatch):
        copy(log, led(1, 3), gaps_below=1)
    with pytest.raises(CorruptBatch):
        copy(log, led(0), gaps_below=100)
    copy(log, led(2), gaps_below=2)
    assert (log.log_end_offset, log.gaps_below) == (3, 3)


STEPS = ["copy", "gap", "holes", "skip", "flush", "roll", "cut"]


@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=12),
    cut_in=st.integers(1, 120),
    seed=st.integers(0, 1000),
    fsync=st.booleans(),
)
def test_no_power_cut_makes_a_copy_longer_than_what_it_has(
    steps: list[str], cut_in: int, seed: int, fsync: bool
) -> None:
    check(steps, cut_in, seed, fsync=fsync)


@pytest.mark.parametrize(
    "steps", [["copy", "flush", "gap"], ["copy", "flush", "holes"], ["skip"], ["gap", "roll", "gap"]]
)
@pytest.mark.parametrize("fsync", [True, False])
def test_nor_does_one_at_any_operation(steps: list[str], fsync: bool) -> None:
    for cut_in in range(1, 60):
        for seed in range(4):
            check([*steps, "flush", "copy"], cut_in, seed, fsync=fsync)


def check(steps: Sequence[str], cut_in: int, seed: int, *, fsync: bool) -> None:
    disk = new_disk(seed)
    log = open_log(disk, SMALL if fsync else OS)
    stored: list[tuple[int, bytes]] = []
    """Where each batch ends, or a gap that nothing follows; in offset order."""
    promised, end, disk.cut_in = 0, 0, cut_in
    try:
        for step in [*steps, "flush"]:
            base = end
            if step in ("copy", "gap", "holes"):
                base += 5 if step == "gap" else 0
                offsets = (base, base + 3) if step == "holes" else (base,)
                batch = led(*offsets)
                end = offsets[-1] + 1
                stored.append((end, batch))
                copy(log, batch, gaps_below=10_000)
            elif step == "skip":
                end += 3
                stored.append((end, b""))
                log.copying.skip_to(Offset(end), now_ms=NOW_MS)
            elif step == "flush":
                flush(log)
                promised = end if fsync or not stored else promised
            elif step == "roll":
                log.roll()
            elif stored:
                before = stored[-2][0] if len(stored) > 1 else 0
                promised = min(promised, before)
                log.copying.truncate_to(Offset(before))
                end = log.log_end_offset
                stored = [each for each in stored if each[0] <= end]
    except PowerCut:
        pass
    disk.cut_in = -1
    again = restarted(disk)
    ends = [0, *(each for each, _ in stored)]
    assert promised <= again.log_end_offset
    assert again.log_end_offset in ends
    assert held(again) == b"".join(batch for each, batch in stored if each <= again.log_end_offset)


def test_a_copy_that_begins_anew_before_its_gaps_has_none() -> None:
    disk = new_disk()
    log = open_log(disk)
    copy(log, led(0), led(60), gaps_below=100)
    flush(log)
    log.delete_records_before(Offset(61))
    flush(log)
    log.copying.restart_at(Offset(20))
    again = restarted(disk)
    assert (again.log_start_offset, again.log_end_offset, again.gaps_below) == (20, 20, 20)
    copy(again, led(20))


def test_an_epoch_begins_no_later_than_the_gap_before_its_first_batch() -> None:
    """Where it truly began is not known here: whoever compares its log with this one cuts rather too much."""
    disk = new_disk()
    log = open_log(disk)
    copy(log, led(0, epoch=1), led(9, epoch=2), gaps_below=100)
    assert log.end_offset_for_epoch(1).end == 1  # type: ignore[arg-type]
    flush(log)
    assert restarted(disk).end_offset_for_epoch(1).end == 1  # type: ignore[arg-type]
    assert disk.exists(DIRECTORY)


def test_the_time_of_what_is_gone_is_no_record_s() -> None:
    """An emptied batch keeps its highest time, which no look-up may come to."""
    log, (kept,) = open_log(new_disk()), [led(0)]
    (_, header), *_ = check_batches(kept)
    later = header._replace(base_offset=1, max_timestamp=header.max_timestamp + 1_000)
    copy(log, kept, emptied(later), gaps_below=2)
    for _ in range(2):
        found = log.max_timestamp()
        assert found is not None
        assert (found.offset, found.timestamp) == (0, header.max_timestamp)
        assert log.offset_for_timestamp(header.max_timestamp + 1) is None
        log.roll()
        flush(log)
