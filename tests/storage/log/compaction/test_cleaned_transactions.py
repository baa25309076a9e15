"""Compaction removes the records of aborted transactions, and a marker only once nobody needs it."""

from __future__ import annotations

from random import Random

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.broker.partitions.logs.opening import recover_producers
from headrace.storage.log.compaction.child import _decode_job, encode_job
from headrace.wire.batches import check_batches, encode_batch
from headrace.wire.records import Record
from headrace.wire.transactions import EndMarker, encode_marker
from tests.storage.log.compaction.test_log_compaction import CONFIG, World, raw_from, read_from, world
from tests.storage.log.log_world import open_log


class Transactions:
    """Transactions in a compacted log."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.states = recover_producers(here.log, here.now_ms)

    def write(self, producer: int, key: bytes, value: bytes | None) -> int:
        known = {each.producer_id: each for each in self.states.entries()}.get(producer)
        raw = encode_batch(
            [Record(0, self.here.now_ms, key, value)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0 if known is None else known.last_sequence + 1,
            transactional=True,
        )
        offset = self._append(raw)
        self.here.written[offset] = (key, value)
        self.states.on_appended(check_batches(raw)[0][1], Offset(offset), self.here.now_ms)
        return offset

    def mark(self, producer: int, *, committed: bool) -> int:
        marker = EndMarker(committed, 0)
        raw = encode_marker(producer, 0, marker, timestamp=self.here.now_ms)
        offset = self._append(raw)
        ended = self.states.on_marker(check_batches(raw)[0][1], marker, Offset(offset), self.here.now_ms)
        if ended is not None and ended.is_aborted:
            self.here.log.aborted.add(ended.aborted)
        return offset

    def _append(self, raw: bytes) -> int:
        log = self.here.log
        return log.append(raw, check_batches(raw), leader_epoch=LeaderEpoch(0), now_ms=self.here.now_ms).base_offset

    def clean(self) -> None:
        stable = self.states.stable_end(self.here.log.log_end_offset)
        self.here.clean(up_to=stable, remembered=self.states.remembered())


def offsets(here: World) -> list[int]:
    return [header.base_offset for header in here.headers()]


def last_committed(here: World, end: int) -> dict[bytes | None, bytes]:
    """Of each key the last value below `end`, as a reader under read_committed sees it."""
    raws = list(raw_from(here.log, 0))
    listed = here.log.aborted.between(Offset(0), Offset(end))
    aborted = {
        at
        for each in listed
        for raw in raws
        for _, header in check_batches(raw, gaps_below=2**62)
        if header.producer_id == each.producer_id and not header.is_control
        for at in range(header.base_offset, header.next_offset)
        if each.first_offset <= at <= each.last_offset
    }
    found: dict[bytes | None, bytes] = {}
    control = {header.base_offset for header in here.headers() if header.is_control}
    for at, (key, value) in read_from(here.log, 0).items():
        if at in aborted or at in control or at >= end:
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_of_committed_records_sees_the_same_last_values(seed: int) -> None:
    """Through rounds, restarts and power cuts, with transactions that are open meanwhile."""
    random, here = Random(seed), world(seed=seed)
    transactions = Transactions(here)
    for _ in range(6):
        for _ in range(25):
            producer = random.randint(1, 3)
            if random.random() < 0.3:
                transactions.mark(producer, committed=random.random() < 0.5)
            else:
                value = None if random.random() < 0.2 else random.randbytes(20)
                transactions.write(producer, random.choice([b"a", b"b", b"c"]), value)
        here.close_segment()
        stable = transactions.states.stable_end(here.log.log_end_offset)
        before = last_committed(here, stable)
        transactions.clean()
        assert last_committed(here, stable) == before
        open_now = dict(transactions.states.transactions.first_offsets)
        if random.random() < 0.5:
            here.disk.power_cut()
            here.log = open_log(here.disk, CONFIG)
            transactions.states = recover_producers(here.log, here.now_ms)
            assert dict(transactions.states.transactions.first_offsets) == open_now
            assert last_committed(here, stable) == before
        here.now_ms += 600


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_stays_until_its_records_are_gone_and_its_time_is_over(committed: bool) -> None:
    here = world()
    transactions = Transactions(here)
    transactions.write(1, b"a", b"of the transaction")
    marker = transactions.mark(1, committed=committed)
    transactions.write(2, b"a", b"later")
    transactions.mark(2, committed=True)
    here.close_segment()
    transactions.states.expire(2**62)
    transactions.clean()
    assert offsets(here) == [marker, 2, 3], "the record is gone, and readers under way need the marker"
    here.append([(b"b", b"")])
    here.close_segment()
    transactions.clean()
    assert marker in offsets(here), "its time begins with the first round that finds nothing left"
    here.now_ms += 1001
    here.append([(b"c", b"")])
    here.close_segment()
    transactions.clean()
    assert marker not in offsets(here)
    assert not here.log.aborted.between(Offset(0), here.log.log_end_offset)


def test_nothing_is_cleaned_behind_an_open_transaction() -> None:
    here = world()
    transactions = Transactions(here)
    here.append([(b"a", b"old")])
    transactions.write(1, b"a", b"open")
    here.append([(b"a", b"new")])
    here.close_segment()
    transactions.clean()
    assert offsets(here) == [0, 1, 2]
    transactions.mark(1, committed=False)
    here.close_segment()
    transactions.states.expire(2**62)
    transactions.clean()
    assert offsets(here) == [2, 3]


def test_a_marker_that_began_an_epoch_stays_for_its_producer() -> None:
    """Without it a batch of the epoch before would be taken after a restart (KIP-890)."""
    here = world()
    transactions = Transactions(here)
    raw = encode_marker(7, 5, EndMarker(True, 0), timestamp=here.now_ms)
    offset = transactions._append(raw)
    transactions.states.on_marker(check_batches(raw)[0][1], EndMarker(True, 0), Offset(offset), here.now_ms)
    for _ in range(3):
        here.append([(b"a", b"")])
        here.close_segment()
        transactions.clean()
        here.now_ms += 2000
    assert offset in offsets(here)
    assert next(iter(recover_producers(here.log, 0).entries())).epoch == 5


def test_a_job_reaches_its_process_with_its_transactions() -> None:
    here = world()
    transactions = Transactions(here)
    transactions.write(1, b"a", b"")
    transactions.mark(1, committed=False)
    here.append([(b"a", b"")])
    here.close_segment()
    begun = here.log.cleaning.begin_cleaning(here.now_ms, here.log.log_end_offset, frozenset(), "0" * 16)
    assert begun is not None
    job = begun.work.job
    assert len(job.aborted) == 1
    assert _decode_job(encode_job(job, 1.0))[0] == job
    begun.end()
