"""Laws of idempotence: whatever is sent again, in whatever order, each batch is in the log once and in sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.limits import PRODUCER_BATCHES_CACHED, PRODUCERS_PER_PARTITION_MAX
from headrace.replica.producers import Accept, Duplicate, ProducerStates, Refuse
from headrace.wire.batches import SEQUENCE_MAX, BatchHeader
from headrace.wire.errors import ErrorCode


def batch(producer: int, epoch: int, sequence: int, count: int) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, 0, count - 1, 0, 0, producer, epoch, sequence, count)


class Log:
    """The oracle: it appends what is accepted and remembers every batch by what the client called it."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0
        self.now_ms = 0
        self.offsets: dict[tuple[int, int, int], int] = {}

    def send(self, header: BatchHeader) -> Accept | Duplicate | Refuse:
        verdict = self.states.check(header)
        if isinstance(verdict, Accept):
            self.states.on_appended(header, Offset(self.end), self.now_ms)
            self.offsets.setdefault((header.producer_id, header.producer_epoch, header.base_sequence), self.end)
            self.end += header.count
        return verdict


counts = st.lists(st.integers(1, 4), min_size=1, max_size=12)


@given(counts, st.lists(st.integers(0, 11), max_size=30), st.sampled_from([0, SEQUENCE_MAX - 5]))
def test_a_retry_is_never_appended_again_and_a_recent_one_gets_its_first_offsets(
    sizes: list[int], retries: list[int], first: int
) -> None:
    log, sent, sequence = Log(), [], first
    for size in sizes:
        header = batch(7, 0, sequence, size)
        sequence = (sequence + size) & SEQUENCE_MAX
        assert isinstance(log.send(header), Accept)
        sent.append(header)
    end = log.end
    for at in retries:
        if at >= len(sent):
            continue
        verdict = log.send(sent[at])
        if at >= len(sent) - PRODUCER_BATCHES_CACHED:
            base = log.offsets[7, 0, sent[at].base_sequence]
            assert verdict == Duplicate(Offset(base), Offset(base + sent[at].count - 1), 0)
        else:
            assert isinstance(verdict, Refuse)
    assert log.end == end


@given(counts, st.integers(1, 50))
def test_a_gap_is_refused(sizes: list[int], gap: int) -> None:
    log, sequence = Log(), 0
    for size in sizes:
        log.send(batch(7, 0, sequence, size))
        sequence += size
    verdict = log.send(batch(7, 0, sequence + gap, 1))
    assert isinstance(verdict, Refuse)
    assert verdict.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    log = Log()
    log.send(batch(7, 3, 0, 2))
    old, late, fresh = log.send(batch(7, 2, 2, 1)), log.send(batch(7, 4, 5, 1)), log.send(batch(7, 4, 0, 1))
    assert isinstance(old, Refuse)
    assert old.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert isinstance(late, Refuse)
    assert late.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(fresh, Accept)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=20))
def test_a_snapshot_restores_to_the_same_verdicts(sends: list[tuple[int, int]]) -> None:
    log, sequences, sent = Log(), dict.fromkeys(range(1, 5), 0), []
    for producer, size in sends:
        header = batch(producer, 0, sequences[producer], size)
        sequences[producer] += size
        log.send(header)
        sent.append(header)
    restored = ProducerStates.restore(log.states.snapshot())
    probes = [*sent, *(batch(producer, epoch, at, 1) for producer, at in sequences.items() for epoch in (0, 1))]
    assert [restored.check(probe) for probe in probes] == [log.states.check(probe) for probe in probes]


def test_producers_are_bounded_and_the_one_silent_longest_is_forgotten() -> None:
    log = Log()
    for producer in range(PRODUCERS_PER_PARTITION_MAX + 1):
        log.send(batch(producer, 0, 0, 1))
    assert len(log.states) == PRODUCERS_PER_PARTITION_MAX
    assert isinstance(log.send(batch(1, 0, 0, 1)), Duplicate)
    assert isinstance(log.send(batch(0, 0, 0, 1)), Accept)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 9}', b'{"version": 1, "producers": [{"id": 1}]}'])
def test_a_damaged_snapshot_is_told(data: bytes) -> None:
    with pytest.raises(CorruptData):
        ProducerStates.restore(data)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 100)), max_size=20), st.integers(0, 2000))
def test_a_producer_is_forgotten_once_it_has_been_silent_for_too_long_also_after_a_restart(
    writes: list[tuple[int, int]], before_ms: int
) -> None:
    log, last_ms, sequences = Log(), dict[int, int](), dict[int, int]()
    for producer, pause_ms in writes:
        log.now_ms += pause_ms
        log.send(batch(producer, 0, sequences.get(producer, 0), 1))
        sequences[producer] = sequences.get(producer, 0) + 1
        last_ms[producer] = log.now_ms
    for states in (log.states, ProducerStates.restore(log.states.snapshot())):
        forgotten = states.expire(before_ms)
        kept = {producer for producer, at_ms in last_ms.items() if at_ms >= before_ms}
        assert {entry.producer_id for entry in states.entries()} == kept
        assert forgotten == len(last_ms) - len(kept)


def test_a_batch_leaves_others_out_only_where_it_lies_ahead() -> None:
    log = Log()
    log.send(batch(1, 1, SEQUENCE_MAX - 1, 2))
    assert log.states.skips(batch(1, 1, 3, 1)), "0 is next: sequences begin anew"
    assert not log.states.skips(batch(1, 1, 0, 1))
    assert not log.states.skips(batch(1, 1, SEQUENCE_MAX - 5, 1))
    assert log.states.skips(batch(1, 2, 1, 1)), "another epoch begins at 0"
    assert not log.states.skips(batch(1, 0, 9, 1))
    assert not log.states.skips(batch(2, 0, 9, 1)), "nothing is known of it"
    log.send(batch(3, 1, SEQUENCE_MAX - 3, 2))
    assert log.states.skips(batch(3, 1, 2, 1)), "ahead of what is next, beyond where sequences begin anew"


@given(st.lists(st.integers(7, 10), min_size=1, max_size=20), st.data())
def test_who_remembers_what_was_known_knows_as_much_as_who_has_forgotten_nothing(
    order: list[int], data: st.DataObject
) -> None:
    """Of a log that was cut at `end`, and whose beginning had gone up to `start`."""
    end = data.draw(st.integers(0, len(order)))
    start = data.draw(st.integers(0, end))
    whole, wanted, left = Log(), Log(), Log()
    sent: list[BatchHeader] = []
    for offset, producer in enumerate(order):
        header = batch(producer, 0, order[:offset].count(producer), 1)
        sent.append(header)
        whole.send(header)
        if offset < end:
            wanted.send(header)
        if start <= offset < end:
            left.states.on_appended(header, Offset(offset), 0)
    before = whole.states.as_of(end)
    known = before.ids
    left.states.remember(before)
    for header in sent:
        if header.producer_id in known and order[end:].count(header.producer_id) == 0:
            assert left.states.check(header) == wanted.states.check(header)
