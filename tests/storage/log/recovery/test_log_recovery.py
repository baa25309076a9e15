"""Recovery after a crash keeps exactly the whole valid prefix above the recovery point, and everything below it."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.checkpoints import decode_fields, encode_fields, read_file, write_file
from headrace.storage.log.names import STAMP
from headrace.storage.log.partition import LocalLog
from tests.storage.log.log_world import DIRECTORY, SMALL, Twin, batch, flush, new_disk, open_log, read_all
from tests.storage.log.memory_disk import MemoryDisk
from tests.tiers import examples

EPOCH_BYTES = range(12, 16)
"""Of a batch: the CRC does not cover the leader epoch, and a higher one looks like a new leadership."""


def killed(config: LogConfig = SMALL, batches: int = 9) -> tuple[MemoryDisk, Twin]:
    """A log of several segments, flushed, and then forgotten as kill -9 does."""
    disk = new_disk()
    twin = Twin(open_log(disk, config))
    for number in range(batches):
        twin.epoch = number // 4
        twin.append(batch(1 + number % 3, size=100, seed=number))
        if number == batches // 2:
            flush(twin.log)
    return disk, twin


def segment_file(log: LocalLog, at: int = -1) -> Path:
    return log.contents.segments[at].path


def test_a_clean_close_leaves_nothing_to_check_and_costs_no_sync() -> None:
    disk, twin = killed()
    twin.log.close()
    assert disk.open_files == 0
    syncs, reads = disk.syncs, disk.reads
    again = open_log(disk)
    assert disk.syncs - syncs == 2  # of the root and its name, at start
    assert disk.reads - reads < 12
    assert (again.log_start_offset, again.flushed_end, again.log_end_offset) == (0, twin.end, twin.end)
    assert again.epochs == twin.log.epochs
    assert not again.needs_flush
    again.close()
    assert disk.syncs - syncs == 2
    assert read_all(open_log(disk)) == twin.bytes_from(0)


def test_after_a_kill_everything_is_found_and_flushed_before_it_counts() -> None:
    disk, twin = killed()
    assert twin.log.flushed_end < twin.end
    again = open_log(disk)
    assert again.flushed_end == again.log_end_offset == twin.end
    assert again.epochs == twin.log.epochs
    disk.power_cut()
    assert read_all(open_log(disk)) == twin.bytes_from(0)


def test_a_kill_in_the_first_life_costs_three_syncs_and_no_new_file() -> None:
    """Where thousands of logs are opened, each file that is replaced is felt."""
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    twin.append(batch(1))
    flush(twin.log)
    stamp, syncs = disk.file(DIRECTORY / STAMP), disk.syncs
    again = open_log(disk, LogConfig())
    assert disk.syncs - syncs == 2 + 3, "the root and its name, at start; the batches, the stamp, the directory"
    assert disk.file(DIRECTORY / STAMP) is stamp
    assert again.flushed_end == twin.end


def test_a_stamp_of_an_earlier_form_is_replaced() -> None:
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    twin.append(batch(1))
    flush(twin.log)
    written = read_file(disk, DIRECTORY / STAMP)
    fields = {key: value for key, value in decode_fields(written).items() if key != "lineage"}
    write_file(disk, DIRECTORY / STAMP, encode_fields(fields))
    assert read_all(open_log(disk, LogConfig())) == twin.bytes_from(0)
    assert read_file(disk, DIRECTORY / STAMP) == written


def test_a_log_cut_at_any_byte_recovers_its_whole_batches() -> None:
    disk, twin = killed(LogConfig())
    path = segment_file(twin.log)
    size = disk.size(path)
    ends = [sum(len(each.bytes) for each in twin.stored[: count + 1]) for count in range(len(twin.stored))]
    for cut in range(size):
        copy = disk.copy()
        del copy.file(path).data[cut:]
        again = open_log(copy, LogConfig())
        whole = sum(end <= cut for end in ends)
        assert read_all(again) == b"".join(each.bytes for each in twin.stored[:whole])
        assert copy.size(path) == again.size_bytes == sum(len(each.bytes) for each in twin.stored[:whole])


def test_a_log_with_any_byte_flipped_ends_before_that_batch() -> None:
    disk, twin = killed(LogConfig(), batches=5)
    path, at = segment_file(twin.log), 0
    for number, stored in enumerate(twin.stored):
        for within in range(len(stored.bytes)):
            if within in EPOCH_BYTES:
                continue
            copy = disk.copy()
            copy.file(path).data[at + within] ^= 0x40
            assert read_all(open_log(copy, LogConfig())) == b"".join(each.bytes for each in twin.stored[:number])
        at += len(stored.bytes)


def _epoch_bytes(batches: bytes) -> set[int]:
    """Where the leader epochs of a segment's batches stand."""
    found: set[int] = set()
    at = 0
    while at < len(batches):
        found |= {at + within for within in EPOCH_BYTES}
        at += 12 + int.from_bytes(batches[at + 8 : at + 12])
    return found


@given(st.integers(0, 8), st.integers(0, 200), st.integers(1, 400), st.randoms(use_true_random=False))
@example(0, 12, 1, Random(0))
@settings(max_examples=examples(60), deadline=None)
def test_garbage_in_any_segment_cuts_there_and_drops_what_follows(
    victim: int, skip: int, length: int, chance: object
) -> None:
    disk, twin = killed()
    disk.remove(DIRECTORY / "checkpoint.json") if disk.exists(DIRECTORY / "checkpoint.json") else None
    segments = twin.log.contents.segments
    segment = segments[victim % len(segments)]
    data = disk.file(segment.path).data
    start = min(skip, len(data) - 1)
    garbage = chance.randbytes(length)  # type: ignore[attr-defined]  # a random.Random
    before = bytes(data)
    data[start : start + length] = garbage
    if {at for at, byte in enumerate(before) if data[at] != byte} <= _epoch_bytes(before):
        return  # no checksum covers it
    again = open_log(disk)
    kept = read_all(again)
    assert twin.bytes_from(0).startswith(kept)
    assert again.log_end_offset <= segment.end
    assert [each.base for each in again.contents.segments] == [
        each.base for each in segments if each.base <= segment.base and each.base <= again.log_end_offset
    ]
    follow = Twin(again, epoch=9)
    follow.append(batch(2))
    flush(again)
    disk.power_cut()
    assert read_all(open_log(disk)) == kept + follow.stored[0].bytes


def test_a_batch_with_an_older_epoch_or_a_wrong_offset_is_no_continuation() -> None:
    """A truncation that was not synced may bring such batches back behind new ones."""
    for field, value in ((slice(12, 16), 0), (slice(0, 8), 77)):
        disk, twin = killed(LogConfig(), batches=6)
        path = segment_file(twin.log)
        at = sum(len(each.bytes) for each in twin.stored[:5])
        width = field.stop - field.start
        disk.file(path).data[at + field.start : at + field.stop] = value.to_bytes(width, "big")
        assert open_log(disk, LogConfig()).log_end_offset == twin.stored[5].base_offset


def test_damage_below_the_recovery_point_is_never_cut_away() -> None:
    disk, twin = killed()
    twin.log.close()
    first = twin.log.contents.segments[0]
    disk.file(first.path).data[70:90] = bytes(20)
    again = open_log(disk)
    assert (again.log_start_offset, again.log_end_offset) == (0, twin.end)
    assert disk.size(first.path) == first.size


def test_a_flushed_tail_that_is_gone_is_damage_not_a_shorter_log() -> None:
    disk, twin = killed()
    twin.log.close()
    path = segment_file(twin.log)
    del disk.file(path).data[-1:]
    assert "were flushed" in (open_log(disk).read_only or "")
    disk.remove(path)
    assert "is gone" in (open_log(disk).read_only or "")


def test_a_lost_or_cut_index_is_rebuilt() -> None:
    disk, twin = killed()
    twin.log.close()
    first, *_, last = twin.log.contents.segments
    disk.remove(first.path.with_suffix(".index"))
    disk.remove(last.path.with_suffix(".timeindex"))
    again = open_log(disk)
    assert Twin(again).read_all() == twin.bytes_from(0)
    for start in range(twin.end):
        assert again.read(Offset(start), 1, Offset(twin.end), at_least_one=True)
    again.close()
    assert disk.exists(first.path.with_suffix(".index"))


def test_a_damaged_checkpoint_makes_everything_suspect() -> None:
    disk, twin = killed()
    twin.log.close()
    disk.file(DIRECTORY / "checkpoint.json").data[3] ^= 1
    assert read_all(open_log(disk)) == twin.bytes_from(0)


def test_leftovers_of_a_crash_are_removed() -> None:
    disk, twin = killed()
    for name in ("x.tmp", f"{999:020d}.index", f"{999:020d}.timeindex", f"{twin.end + 1:020d}.snapshot"):
        disk.open(DIRECTORY / name, create=True).close()
    open_log(disk)
    assert not [name for name in disk.list_directory(DIRECTORY) if "999" in name or name.endswith((".tmp", "shot"))]


def test_headers_are_given_from_any_offset_for_rebuilding_the_producers() -> None:
    _, twin = killed()
    for start in range(twin.end + 1):
        expected = [each.base_offset for each in twin.stored if each.last_offset >= start]
        assert [header.base_offset for header, _ in twin.log.batches_from(Offset(start))] == expected


def test_after_a_kill_a_log_costs_few_syncs() -> None:
    """There may be thousands of them."""
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    for life, most in ((0, 3), (1, 1)):
        twin.append(batch(2))
        flush(twin.log)
        before = disk.syncs
        twin.log = open_log(disk, LogConfig())
        assert disk.syncs - before - 2 <= most, f"life {life}"  # two at the engine's start
        disk.power_cut()
        twin.log = open_log(disk, LogConfig())
        assert read_all(twin.log) == twin.bytes_from(0)
        twin.log.close()
        twin.log = open_log(disk, LogConfig())


def test_the_recovery_point_moves_up_where_much_was_checked() -> None:
    """Or each start after a kill would read it all again."""
    disk = new_disk()
    twin = Twin(open_log(disk, LogConfig()))
    for seed in range(18):
        twin.append(batch(1, size=1 << 20, seed=seed))
    flush(twin.log)
    open_log(disk, LogConfig())
    reads = disk.reads
    assert open_log(disk, LogConfig()).log_end_offset == twin.end
    assert disk.reads - reads < 12
