"""A log knows its aborted transactions: complete, in order, and the same after a crash, a cut and a compaction."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.broker.partitions.logs.opening import recover_producers
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.names import SNAPSHOT, TRANSACTION_INDEX, numbered, offsets_of
from headrace.wire.batches import check_batches, encode_batch
from headrace.wire.records import Record
from headrace.wire.transactions import AbortedTransaction, EndMarker, decode_aborted, encode_marker
from tests.storage.log.log_world import DIRECTORY, NOW_MS, SMALL, flush, new_disk, open_log
from tests.storage.log.memory_disk import MemoryDisk


class Written(NamedTuple):
    """One batch: the producer's, or its marker."""

    base: int
    next: int
    producer: int
    committed: bool | None
    """None: it is no marker."""


class World:
    """A log under its leader, and the twin that looks at everything written."""

    def __init__(self, disk: MemoryDisk, config: LogConfig = SMALL) -> None:
        self.disk, self.config = disk, config
        self.written: list[Written] = []
        self.open()

    def open(self) -> None:
        self.log = open_log(self.disk, self.config)
        self.states = recover_producers(self.log, NOW_MS)

    def write(self, producer: int, *, count: int = 1) -> None:
        known = next((each for each in self.states.entries() if each.producer_id == producer), None)
        sequence = 0 if known is None else known.last_sequence + 1
        records = [Record(at, NOW_MS, b"k", b"v" * 20) for at in range(count)]
        self._append(
            encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True),
            producer,
            None,
        )

    def mark(self, producer: int, *, committed: bool) -> None:
        marker = encode_marker(producer, 0, EndMarker(committed, 0), timestamp=NOW_MS)
        self._append(marker, producer, committed)

    def _append(self, batch: bytes, producer: int, committed: bool | None) -> None:
        headers = check_batches(batch)
        appended = self.log.append(batch, headers, leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
        self.written.append(Written(appended.base_offset, appended.end, producer, committed))
        header = headers[0][1]
        if committed is None:
            self.states.on_appended(header, appended.base_offset, NOW_MS)
            return
        ended = self.states.on_marker(header, EndMarker(committed, 0), appended.base_offset, NOW_MS)
        if ended is not None and ended.is_aborted:
            self.log.aborted.add(ended.aborted)

    def snapshot(self) -> None:
        self.log.write_producer_snapshot(self.states.snapshot(), self.log.log_end_offset)

    def lose_above(self, end: int) -> None:
        self.written = [each for each in self.written if each.next <= end]

    def expected(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Aborted transactions with offsets in the range: producer, first and last offset, by their markers."""
        first: dict[int, int] = {}
        found = []
        for each in self.written:
            if each.committed is None:
                first.setdefault(each.producer, each.base)
                continue
            begun = first.pop(each.producer, None)
            if begun is not None and not each.committed and each.base >= start and begun < end:
                found.append((each.producer, begun, each.base))
        return found

    def check(self) -> None:
        """Every range that a reader may fetch gets exactly its transactions."""
        end = self.log.log_end_offset
        starts = range(self.log.log_start_offset, end, 3)
        for start, upper in [*((at, min(at + 5, end)) for at in starts), (self.log.log_start_offset, end)]:
            found = self.log.aborted.between(Offset(start), Offset(upper))
            assert [(each.producer_id, each.first_offset, each.last_offset) for each in found] == self.expected(
                start, upper
            )

    def close(self) -> None:
        self.log.close()


def fill(world: World, random: Random, steps: int) -> None:
    for _ in range(steps):
        producer = random.randint(1, 4)
        match random.randrange(9):
            case 0 | 1:
                world.mark(producer, committed=random.random() < 0.4)
            case 2 if random.random() < 0.3:
                world.snapshot()
            case 3:
                flush(world.log)
            case _:
                world.write(producer, count=random.randint(1, 3))


def in_files(disk: MemoryDisk) -> list[AbortedTransaction]:
    paths = [
        numbered(DIRECTORY, base, TRANSACTION_INDEX)
        for base in offsets_of(disk.list_directory(DIRECTORY), TRANSACTION_INDEX)
    ]
    return [each for path in paths for each in decode_aborted(disk.open(path).read(0, disk.size(path)))]


@pytest.mark.parametrize("seed", range(12))
def test_readers_are_told_of_every_aborted_transaction_that_overlaps_with_their_range(seed: int) -> None:
    """Through restarts, clean ones and crashes that lose what was not flushed."""
    random = Random(seed)
    world = World(new_disk(seed))
    for _ in range(5):
        fill(world, random, 60)
        world.check()
        if random.random() < 0.5:
            world.close()
        else:
            world.disk.power_cut()
        world.open()
        world.lose_above(world.log.log_end_offset)
        world.check()
    world.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_cut_takes_aborted_transactions_along(seed: int) -> None:
    """Later batches in their place count alone, after a crash too."""
    random = Random(seed)
    world = World(new_disk(seed))
    for _ in range(3):
        fill(world, random, 60)
        flush(world.log)
        cut = Offset(random.randint(world.log.log_start_offset, world.log.log_end_offset))

        def forget(end: Offset) -> bytes:
            world.states = recover_producers(world.log, NOW_MS, end)
            return world.states.snapshot() if len(world.states) else b""

        world.log.copying.truncate_to(cut, forget)
        world.lose_above(world.log.log_end_offset)
        world.check()
        if random.random() < 0.5:
            world.disk.power_cut()
            world.open()
            world.lose_above(world.log.log_end_offset)
            world.check()
        fill(world, random, 20)
        world.check()
    world.close()


def test_an_index_that_is_cut_is_built_again() -> None:
    world = World(new_disk())
    fill(world, Random(5), 120)
    world.snapshot()
    world.close()
    bases = offsets_of(world.disk.list_directory(DIRECTORY), TRANSACTION_INDEX)
    path = numbered(DIRECTORY, bases[0], TRANSACTION_INDEX)
    file = world.disk.open(path)
    file.truncate(file.size() - 5)
    file.close()
    world.open()
    assert not offsets_of(world.disk.list_directory(DIRECTORY), SNAPSHOT)
    world.check()
    flush(world.log)
    world.close()
    assert in_files(world.disk) == list(world.log.aborted.between(Offset(0), Offset(2**62)))


def test_segments_that_leave_take_their_aborted_transactions_along() -> None:
    world = World(new_disk())
    for _ in range(30):
        world.write(1)
        world.mark(1, committed=False)
    flush(world.log)
    start = Offset(33)
    world.log.delete_records_before(start)
    flush(world.log)
    left = in_files(world.disk)
    assert left
    assert all(each.last_offset >= world.log.contents.segments[0].base for each in left)
    first = world.log.aborted.between(start, Offset(world.log.log_end_offset))[0]
    assert (first.first_offset, first.last_offset) == (32, 33)


def test_a_segment_is_closed_when_its_index_of_aborted_transactions_is_full() -> None:
    config = LogConfig(segment_bytes=2**20, segment_index_bytes=10 * 34, index_interval_bytes=2**20, retention_ms=-1)
    world = World(new_disk(), config)
    for _ in range(25):
        world.write(1)
        world.mark(1, committed=False)
    assert len(world.log.contents.segments) == 3
    world.check()


def test_a_state_is_restored_with_what_is_open() -> None:
    """A snapshot may lie between a transaction's first batch and its marker."""
    world = World(new_disk())
    world.write(1)
    world.snapshot()
    flush(world.log)
    world.log.delete_records_before(Offset(1))
    flush(world.log)
    world.disk.power_cut()
    world.open()
    assert isinstance(world.states, ProducerStates)
    assert dict(world.states.transactions.first_offsets) == {1: 0}
    world.mark(1, committed=False)
    assert world.log.aborted.between(Offset(1), Offset(2)) == [AbortedTransaction(1, 0, 1, 2)]


def test_a_snapshot_covers_only_markers_whose_transactions_are_written() -> None:
    """Nothing below it is read again after a crash."""
    world = World(new_disk())
    world.write(1)
    world.mark(1, committed=False)
    world.snapshot()
    flush(world.log)
    world.disk.power_cut()
    world.open()
    assert world.log.snapshots.offsets == [2]
    world.check()
    assert world.log.aborted.has_any
