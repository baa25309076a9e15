"""Laws of transactions in one partition, against a twin that looks at the whole log each time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.base.limits import OPEN_TRANSACTIONS_PER_PARTITION_MAX, PRODUCERS_PER_PARTITION_MAX
from headrace.replica.producers import ACCEPT, ProducerStates, Refuse
from headrace.replica.transactions import CompletedTransaction, Guard
from headrace.wire.batches import TRANSACTIONAL, BatchHeader, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import EndMarker, encode_marker


class Entry(NamedTuple):
    """One batch of the log: a producer's, or a marker."""

    base: int
    header: BatchHeader
    marker: EndMarker | None


def batch(producer: int, epoch: int, sequence: int, *, transactional: bool = True) -> BatchHeader:
    attributes = TRANSACTIONAL if transactional else 0
    return BatchHeader(0, 49, 0, 2, 0, attributes, 0, 0, 0, producer, epoch, sequence, 1)


class Log:
    """The twin: it has every batch, and knows nothing else."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.entries: list[Entry] = []
        self.completed: list[CompletedTransaction] = []
        self.now_ms = 0

    @property
    def end(self) -> int:
        return len(self.entries)

    def write(self, producer: int, epoch: int = 0, *, transactional: bool = True) -> None:
        last = next((each for each in self.states.entries() if each.producer_id == producer), None)
        sequence = last.last_sequence + 1 if last is not None and last.epoch == epoch else 0
        header = batch(producer, epoch, sequence, transactional=transactional)
        if self.states.check(header) is ACCEPT:
            self._add(header, None)

    def mark(self, producer: int, epoch: int, *, committed: bool, coordinator: int = 0) -> None:
        marker = EndMarker(committed, coordinator)
        if self.states.check_marker(producer, epoch, coordinator) is ACCEPT:
            self._add(parse_header(encode_marker(producer, epoch, marker, timestamp=0)), marker)

    def _add(self, header: BatchHeader, marker: EndMarker | None) -> None:
        entry = Entry(self.end, header, marker)
        self.entries.append(entry)
        self.completed += replayed(self.states, entry, self.now_ms)

    def open_at(self, end: int) -> dict[int, int]:
        """First offsets of the transactions that are open where the log ends there, by producer."""
        found: dict[int, int] = {}
        for entry in self.entries[:end]:
            if entry.marker is not None:
                found.pop(entry.header.producer_id, None)
            elif entry.header.is_transactional:
                found.setdefault(entry.header.producer_id, entry.base)
        return found

    def stable_end(self, high_watermark: int) -> int:
        """No record below is of a transaction whose marker is not below the high watermark."""
        return min([high_watermark, *self.open_at(high_watermark).values()])


def replayed(states: ProducerStates, entry: Entry, now_ms: int = 0) -> list[CompletedTransaction]:
    if entry.marker is None:
        states.on_appended(entry.header, Offset(entry.base), now_ms)
        return []
    ended = states.on_marker(entry.header, entry.marker, Offset(entry.base), now_ms)
    return [] if ended is None else [ended]


def log_of(steps: list[tuple[int, int, int]]) -> Log:
    """A log of three producers whose epochs rise with some of their markers."""
    log, epochs = Log(), dict.fromkeys(range(3), 0)
    for producer, kind, coordinator in steps:
        if kind < 4:
            log.write(producer, epochs[producer], transactional=kind > 0)
        else:
            epochs[producer] += kind % 2
            log.mark(producer, epochs[producer], committed=kind < 6, coordinator=coordinator)
    return log


steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(0, 1)), max_size=40)


@given(steps, st.lists(st.integers(0, 40)))
def test_all_below_the_stable_end_is_decided_and_it_never_falls(
    told: list[tuple[int, int, int]], marks: list[int]
) -> None:
    log = log_of(told)
    stable = 0
    for mark in sorted(min(each, log.end) for each in marks):
        before, stable = stable, log.states.stable_end(Offset(mark))
        assert before <= stable == log.stable_end(mark)


@given(steps)
def test_an_aborted_transaction_is_told_with_all_of_its_offsets(told: list[tuple[int, int, int]]) -> None:
    log = log_of(told)
    ended = []
    for entry in log.entries:
        first = log.open_at(entry.base).get(entry.header.producer_id)
        if entry.marker is not None and first is not None:
            others = [each for pid, each in log.open_at(entry.base).items() if pid != entry.header.producer_id]
            stable = min([entry.base + 1, *others])
            ended.append((entry.header.producer_id, first, entry.base, stable, not entry.marker.committed))
    assert log.completed == ended


@given(steps, st.integers(0, 40))
def test_a_restart_anywhere_in_the_log_knows_the_same(told: list[tuple[int, int, int]], at: int) -> None:
    """From a snapshot and the batches behind it: what is open, what ends it, and what is refused."""
    log = log_of(told)
    until = ProducerStates()
    for entry in log.entries[:at]:
        replayed(until, entry)
    restored, ended = ProducerStates.restore(until.snapshot()), []
    for entry in log.entries[at:]:
        ended += replayed(restored, entry)
    assert ended == [each for each in log.completed if each.last_offset >= at]
    assert dict(restored.transactions.first_offsets) == log.open_at(log.end)
    assert sorted(restored.entries()) == sorted(log.states.entries())


@given(steps, st.integers(0, 40))
def test_what_is_left_of_an_earlier_state_has_its_open_transactions(told: list[tuple[int, int, int]], at: int) -> None:
    """Those that have ended since are not among them: the batches of the log tell of these."""
    log = log_of(told)
    then, now = log.open_at(at), log.open_at(log.end)
    before = log.states.as_of(at)
    assert dict(before.transactions.first_offsets) == {
        pid: first for pid, first in then.items() if now.get(pid) == first
    }
    scanned = ProducerStates()
    for entry in log.entries[:at]:
        replayed(scanned, entry)
    scanned.remember(before)
    assert dict(scanned.transactions.first_offsets) == then


def test_no_producer_is_forgotten_while_its_transaction_is_open() -> None:
    log = Log()
    log.write(1)
    log.now_ms = 10
    log.write(2, transactional=False)
    assert log.states.expire(before_ms=100) == 1
    assert log.states.ids == {1}
    for producer in range(2, PRODUCERS_PER_PARTITION_MAX + 5):
        log.states.on_appended(batch(producer, 0, 0, transactional=False), Offset(producer), 200)
    assert len(log.states) == PRODUCERS_PER_PARTITION_MAX
    assert 1 in log.states.ids
    log.now_ms = 200
    log.mark(1, 0, committed=True)
    assert log.states.expire(before_ms=201) == PRODUCERS_PER_PARTITION_MAX
    assert len(log.states) == 0


def test_open_transactions_are_bounded() -> None:
    states = ProducerStates()
    for producer in range(OPEN_TRANSACTIONS_PER_PARTITION_MAX):
        states.on_appended(batch(producer, 0, 0), Offset(producer), 0)
    more = states.check(batch(2**40, 0, 0))
    assert isinstance(more, Refuse)
    assert more.error is ErrorCode.REQUEST_TIMED_OUT
    assert states.check(batch(7, 0, 1)) is ACCEPT, "its transaction is open already"


def test_a_guard_is_for_one_beginning() -> None:
    """A marker that comes between the coordinator's answer and the batch makes it void (KIP-890)."""
    states = ProducerStates()
    first = states.begin_verification(batch(7, 0, 0), 0)
    assert isinstance(first, Guard)
    assert states.begin_verification(batch(7, 0, 3), 0) is first, "the same question"
    assert states.check(batch(7, 0, 0), first, verifies=True) is ACCEPT
    marker = EndMarker(False, 0)
    states.on_marker(parse_header(encode_marker(7, 0, marker, timestamp=0)), marker, Offset(0), 0)
    late = states.check(batch(7, 0, 0), first, verifies=True)
    assert isinstance(late, Refuse)
    assert late.error is ErrorCode.INVALID_TXN_STATE
    again = states.begin_verification(batch(7, 0, 0), 0)
    assert again is not first
    assert isinstance(again, Guard)
    assert states.check(batch(7, 0, 0), again, verifies=True) is ACCEPT


def test_many_ended_transactions_hold_the_stable_end_back_rather_than_take_room() -> None:
    states = ProducerStates()
    marker = parse_header(encode_marker(7, 0, EndMarker(True, 0), timestamp=0))
    for number in range(5_000):
        states.on_appended(batch(7, 0, number), Offset(2 * number), 0)
        states.on_marker(marker, EndMarker(True, 0), Offset(2 * number + 1), 0)
    assert states.stable_end(Offset(2)) == 2
    assert states.stable_end(Offset(9_000)) <= 9_000
    assert states.stable_end(Offset(10_000)) == 10_000


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_marker_of_the_new_protocol_ends_no_transaction_of_its_own_epoch(is_restored: bool) -> None:
    """A leader that took its state from a snapshot has not seen by which protocol the transaction was begun."""
    states = ProducerStates()
    states.on_appended(batch(7, 2, 0), Offset(0), 0)
    if is_restored:
        states = ProducerStates.restore(states.snapshot())
    refused = states.check_marker(7, 2, 0, bumps_epochs=True)
    assert isinstance(refused, Refuse)
    assert refused.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check_marker(7, 2, 0) is ACCEPT, "of the old protocol"
    assert states.check_marker(7, 3, 0, bumps_epochs=True) is ACCEPT
    ended = EndMarker(True, 0)
    states.on_marker(parse_header(encode_marker(7, 3, ended, timestamp=0)), ended, Offset(1), 0)
    assert states.check_marker(7, 3, 0, bumps_epochs=True) is ACCEPT, "it is written again, and ends nothing"


def test_a_question_that_was_never_used_says_nothing_of_the_next_epoch() -> None:
    """A client of the new protocol asked and died. One of the old protocol has its id now, and its marker has the epoch
    of its batches. In the new protocol such a marker would be of the transaction before."""
    states = ProducerStates()
    old = states.begin_verification(batch(7, 0, 0), 0, bumps_epochs=True)
    guard = states.begin_verification(batch(7, 2, 0), 0)
    assert isinstance(guard, Guard)
    assert guard is not old
    assert states.check(batch(7, 2, 0), guard, verifies=True) is ACCEPT
    states.on_appended(batch(7, 2, 0), Offset(0), 0)
    assert states.check_marker(7, 2, 0) is ACCEPT
