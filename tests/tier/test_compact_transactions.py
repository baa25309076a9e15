"""Laws of durable history that is compacted by key and has transactions in it.

Readers under read_committed reach the same last value of every key as in a log of the committed records alone. Records
of aborted transactions go, and then their markers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import ClusterId, LeaderEpoch, Offset
from headrace.replica.producers import ProducerStates
from headrace.spark.read.committed import HiddenInAnswer, HiddenInStore
from headrace.storage.tier import merge
from headrace.storage.tier.blocks import read_block, read_plan, told_later
from headrace.storage.tier.ended import ended as how_ended
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.format import SegmentFooter, decode_footer
from headrace.storage.tier.marked import TransactionCheck
from headrace.storage.tier.packed import batches_of
from headrace.storage.tier.producers import producers_after
from headrace.wire.batches import decode_records, encode_batch, iterate_headers
from headrace.wire.records import Record
from headrace.wire.transactions import (
    AbortedTransaction,
    EndMarker,
    OpenTransaction,
    encode_marker,
    joined,
    overlapping,
)
from tests.tier.test_compact import DAY_MS, TOPIC, ZERO, History, Read, table
from tests.tiers import examples

PRODUCERS = 3
NOBODY = -1
Pair = tuple[bytes, bytes | None]


class Transacted(History):
    """A log with transactions, and its durable history. `log` has the records of a log without aborted ones."""

    def __init__(self) -> None:
        super().__init__()
        self.end = 0
        self.written: dict[int, tuple[int, list[Read]]] = {}
        """By offset of their batch: the producer of a transaction or none, and the records."""
        self.aborted: list[AbortedTransaction] = []
        self.markers: dict[int, bool] = {}
        self._waiting: list[bytes] = []
        """Batches that are not exported yet."""
        self._open: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._states = ProducerStates()

    def write(self, producer: int, pairs: Sequence[Pair]) -> None:
        records = [Record(self.end + at, at, key, value) for at, (key, value) in enumerate(pairs)]
        known: dict[str, Any] = {}
        if producer != NOBODY:
            self._open.setdefault(producer, self.end)
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(records)
            known = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        self.written[self.end] = (producer, [Read(each.offset, each.key, each.value) for each in records])
        self._waiting.append(encode_batch(records, leader_epoch=0, **known))
        self.end += len(records)

    def mark(self, producer: int, *, committed: bool) -> None:
        """End its transaction, where it has one."""
        if (first := self._open.pop(producer, None)) is None:
            return
        batch = bytearray(encode_marker(producer, 0, EndMarker(committed, 1), timestamp=1))
        batch[:8] = self.end.to_bytes(8)
        self._waiting.append(bytes(batch[:12] + (0).to_bytes(4) + batch[16:]))
        self.markers[self.end] = committed
        if not committed:
            stable = min(self._open.values(), default=self.end)
            self.aborted.append(AbortedTransaction(producer, first, self.end, min(stable, self.end)))
        self.end += 1

    @property
    def stable(self) -> int:
        return min(self._open.values(), default=self.end)

    def export(self, *, seals: bool = False) -> None:
        """One segment of what is stable, or of all."""
        limit, start = self.end if seals else self.stable, int(self.catalog.next_offset)
        chunks = []
        while self._waiting and int.from_bytes(self._waiting[0][:8]) < limit:
            chunks.append(self._waiting.pop(0))
        if not chunks:
            return
        ended_in = list[AbortedTransaction]()
        producers = producers_after(self._states, chunks, known=frozenset(range(PRODUCERS)), aborted=ended_in)
        source = ExportSource(
            cluster_id=ClusterId("cluster"),
            topic_id=TOPIC,
            topic="t",
            partition=ZERO,
            leader_epoch=LeaderEpoch(0),
            start_offset=Offset(start),
            limit_offset=Offset(limit),
            producers=producers,
            aborted_transactions=tuple(overlapping(self.aborted, start, limit)),
            undecided_transactions=tuple(
                OpenTransaction(producer, first) for producer, first in self._open.items() if first < limit
            ),
        )
        self.catalog = self.catalog.published(export_segment(self.shelf, source, chunks))  # type: ignore[arg-type]

    @property
    def committed(self) -> list[Read]:
        """The records of the log without those of aborted transactions and of open ones."""
        found = []
        for at, (producer, records) in self.written.items():
            is_open = self._open.get(producer, at + 1) <= at
            if not is_open and not any(
                each.producer_id == producer and each.first_offset <= at < each.last_offset for each in self.aborted
            ):
                found += records
        return found

    def footers(self, start: int = 0) -> Iterator[SegmentFooter]:
        for entry in self.catalog.reaching(start):
            yield decode_footer(self.shelf.get(entry.descriptor.key))

    def fetched(self, start: int = 0, *, parts: int = 1 << 20) -> list[Read]:
        """The committed records as a consumer reads them, in answers of at most so many bytes."""
        shelf: Any = self.shelf
        found, at = list[Read](), max(start, int(self.catalog.readable_start))
        end = min([self.stable, int(self.catalog.next_offset)])
        while at < end:
            segment = self.catalog.entries.holding(at).descriptor  # type: ignore[union-attr]
            plan = read_plan(shelf, segment)
            later = [entry.descriptor for entry in self.catalog.reaching(segment.next_offset)]
            block = told_later(shelf, plan, read_block(shelf, plan, plan.block_of(at)), later)
            answer = bytes(block.read(at, parts, end, at_least_one=True))
            *_, (_, last) = iterate_headers(answer)
            told = overlapping(joined(block.aborted, self._in_log(block.told_to)), at, last.next_offset)
            hidden = HiddenInAnswer(OpenTransaction(each.producer_id, each.first_offset) for each in told)
            found += visible(answer, hidden)
            at = last.next_offset
        return [each for each in found if start <= each.offset]

    def _in_log(self, told_to: int) -> list[AbortedTransaction]:
        """Transactions that the log tells to be aborted, of those that history calls undecided up to there."""
        return [each for each in self.aborted if each.last_offset >= told_to]

    def stored(self) -> list[Read]:
        """As a reader of the store has them."""
        found = list[Read]()
        for entry in self.catalog:
            segment, body = entry.descriptor, self.shelf.get(entry.descriptor.key)
            footer = decode_footer(body)
            told = how_ended(footer, segment.next_offset, self.footers(segment.next_offset))
            every = joined(told.aborted, self._in_log(told.told_to))
            found += visible(bytes(batches_of(body, footer)), HiddenInStore(lambda every=every: every))  # type: ignore[misc]
        return [each for each in found if each.offset < self.stable]

    def everything(self) -> tuple[list[Read], list[int]]:
        """All records that there are, and the offsets of all markers."""
        records, markers = list[Read](), list[int]()
        for entry in self.catalog:
            body = self.shelf.get(entry.descriptor.key)
            batches = bytes(batches_of(body, decode_footer(body)))
            records += visible(batches, None)
            markers += [
                header.base_offset for _, header in iterate_headers(batches) if header.is_control and header.count
            ]
        return records, markers

    def problems(self) -> list[str]:
        """As `durable verify` finds them."""
        check, found = TransactionCheck(), list[str]()
        for entry in self.catalog:
            body = self.shelf.get(entry.descriptor.key)
            footer = decode_footer(body)
            batches = batches_of(body, footer)
            if check.has_work(footer, (header for _, header in iterate_headers(batches))):
                found += check.problems(footer, batches, is_thinned=entry.descriptor.lacks_records)
        return found


def visible(batches: bytes, hidden: HiddenInAnswer | HiddenInStore | None) -> list[Read]:
    found = list[Read]()
    for at, header in iterate_headers(batches):
        is_hidden = header.is_control or (
            hidden is not None and header.is_transactional and hidden.hides(batches, at, header)
        )
        if header.is_control and hidden is not None:
            hidden.hides(batches, at, header)
        if header.count and not is_hidden:
            records = decode_records(batches[at : at + header.size])
            found += [Read(each.offset, each.key, each.value) for each in records]
    return found


SEEDS = st.integers(0, 1 << 32)
KEYS = 4
Step = tuple[str, Any, Any]


def steps_of(chance: Random, count: int) -> Iterator[Step]:
    """So that transactions lie in one another, and over several segments."""
    for _ in range(count):
        roll, producer = chance.random(), chance.randrange(NOBODY, PRODUCERS)
        if roll < 0.5:
            yield "write", producer, [_pair(chance) for _ in range(chance.randint(1, 3))]
        elif roll < 0.7:
            yield "mark", producer, chance.random() < 0.5
        elif roll < 0.85:
            yield "export", chance.random() < 0.1, None
        elif roll < 0.93:
            yield "compact", chance.choice([1, 3, 100]), chance.choice([1, 2, 100])
        elif roll < 0.96:
            yield "merge", None, None
        else:
            yield "wait", chance.choice([10, DAY_MS]), None


def _pair(chance: Random) -> Pair:
    return b"key %d" % chance.randrange(KEYS), None if chance.random() < 0.3 else b"%d" % chance.randrange(1000)


def step(here: Transacted, what: str, one: Any, other: Any) -> None:
    match what:
        case "write":
            here.write(one, other)
        case "mark":
            here.mark(one, committed=other)
        case "export":
            here.export(seals=one)
        case "compact":
            here.compact(retention_ms=DAY_MS, stops_after=one, keys_max=other)
        case "merge":
            here.merge()
        case _:
            here.now_ms += one


def judge(here: Transacted) -> None:
    end = min(here.stable, int(here.catalog.next_offset))
    owed = [each for each in here.committed if each.offset < end]
    for found in (here.fetched(), here.fetched(parts=1), here.stored()):
        assert table(found) == table(owed)
        assert set(found) <= set(owed)
    assert here.problems() == []
    here.check()


@settings(max_examples=examples(100))
@given(SEEDS)
def test_readers_of_committed_records_miss_no_last_value_and_see_nothing_aborted(seed: int) -> None:
    here = Transacted()
    for each in steps_of(Random(seed), 60):
        step(here, *each)
        if each[0] in ("compact", "merge"):
            judge(here)
    judge(here)
    assert here.catalog.unvouched() is None


@settings(max_examples=examples(100))
@given(SEEDS)
def test_who_is_on_the_way_misses_no_deletion_and_no_marker(seed: int) -> None:
    """A reader that has come to any offset, and goes on in what is there then, within delete.retention.ms."""
    here, chance = Transacted(), Random(seed)
    for each in steps_of(chance, 40):
        step(here, *each)
    end = min(here.stable, int(here.catalog.next_offset))
    at = chance.randrange(end + 1)
    before = [each for each in here.fetched() if each.offset < at]
    here.compact(retention_ms=DAY_MS, stops_after=chance.choice([1, 3, 100]))
    here.now_ms += DAY_MS - 1
    here.compact(retention_ms=DAY_MS)
    here.merge()
    owed = [each for each in here.committed if each.offset < end]
    assert table([*before, *(each for each in here.fetched(at) if each.offset < end)]) == table(owed)


@settings(max_examples=examples(100))
@given(SEEDS)
def test_nothing_is_left_of_aborted_transactions_in_the_end(seed: int) -> None:
    here, chance = Transacted(), Random(seed)
    for each in steps_of(chance, 40):
        step(here, *each)
    for producer in range(PRODUCERS):
        here.mark(producer, committed=producer == 0)
    here.export()
    here.write(NOBODY, [(b"last", b"v")])
    here.export()
    for _ in range(5):
        here.compact(retention_ms=DAY_MS, keys_max=chance.choice([1, 3, 100]))
        here.now_ms += DAY_MS + 1
    last = {each.key: each for each in here.committed}
    records, markers = here.everything()
    assert records == [each for each in here.committed if last[each.key] == each and each.value is not None]
    assert [at for at in markers if not here.markers[at]] == []
    judge(here)


def test_a_marker_stays_while_a_record_of_its_transaction_does() -> None:
    here = Transacted()
    here.write(0, [(b"a", b"1"), (b"b", b"1")])
    here.mark(0, committed=True)
    here.write(1, [(b"a", b"2")])
    here.mark(1, committed=False)
    here.export()
    here.write(NOBODY, [(b"c", b"1")])
    here.export()
    for _ in range(4):
        here.compact(retention_ms=DAY_MS)
        here.now_ms += DAY_MS + 1
    assert here.everything() == ([Read(0, b"a", b"1"), Read(1, b"b", b"1"), Read(5, b"c", b"1")], [2])
    here.write(NOBODY, [(b"a", b"3"), (b"b", b"3")])
    here.export()
    here.write(NOBODY, [(b"c", b"3")])
    here.export()
    here.compact(retention_ms=DAY_MS)
    assert here.everything()[1] == [2], "its transaction had records"
    here.compact(retention_ms=DAY_MS)
    here.now_ms += DAY_MS - 1
    here.compact(retention_ms=DAY_MS)
    assert here.everything()[1] == [2], "its horizon has not passed"
    here.now_ms += 2
    here.compact(retention_ms=DAY_MS)
    assert here.everything()[1] == []


def test_a_list_that_keeps_a_transaction_without_marker_hides_the_producers_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segments that are compacted alone, and put together later, as a plant that puts all lists together shows."""

    def made() -> Transacted:
        here = Transacted()
        here.write(0, [(b"a", b"1")])
        here.write(1, [(b"b", b"1")])
        here.mark(0, committed=False)
        here.export()
        assert here.catalog.next_offset == 1
        here.write(0, [(b"c", b"2")])
        here.mark(0, committed=True)
        here.mark(1, committed=True)
        here.export()
        here.write(NOBODY, [(b"d", b"1")])
        here.export()
        return here

    for plants in (False, True):
        here = made()
        for _ in range(4):
            here.compact(retention_ms=DAY_MS, bytes_max=1)
            here.now_ms += DAY_MS + 1
        if plants:
            every = lambda footers, _=(): joined(*(each.aborted_transactions for each in footers))  # noqa: E731
            monkeypatch.setattr(merge, "told_together", every)
        here.merge()
        assert (here.fetched() == here.committed) is not plants
        assert bool(here.problems()) is plants


@pytest.mark.parametrize("keys_max", [1, 100])
def test_an_abort_that_no_footer_tells_stops_compaction(keys_max: int) -> None:
    """An older version could write such footers, on a copy that began in the middle of a transaction."""
    here = Transacted()
    here.write(NOBODY, [(b"a", b"kept")])
    here.write(0, [(b"a", b"aborted")])
    here.export(seals=True)
    here.mark(0, committed=False)
    here.aborted.clear()
    here.export()
    before = [entry.descriptor for entry in here.catalog]
    with pytest.raises(CorruptData, match="no footer of durable history tells"):
        here.compact(retention_ms=DAY_MS, keys_max=keys_max)
    assert [entry.descriptor for entry in here.catalog] == before
