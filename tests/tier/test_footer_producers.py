"""The producers in footers: at each segment's end, they equal a list from all batches up to there."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.replica.producers import ProducerStates
from headrace.storage.objects import open_objects
from headrace.storage.tier import frontier
from headrace.storage.tier.blocks import read_footer, read_plan
from headrace.storage.tier.export import export_segment
from headrace.storage.tier.frontier import check_all, read_beginning
from headrace.storage.tier.producers import producers_after, producers_of
from headrace.wire.batches import Record, encode_batch
from headrace.wire.transactions import AbortedTransaction, EndMarker, encode_marker
from tests.tier.conftest import History

REMEMBERED = 5


class Written(NamedTuple):
    """One batch: who wrote it (-1: nobody who wants it once), and of how many records."""

    producer: int
    records: int


segments = st.lists(
    st.lists(st.builds(Written, st.integers(-1, 3), st.integers(1, 3)), min_size=1, max_size=12), max_size=5
)


class Story:
    """Batches as they are written, and who wrote what last, kept as a list."""

    def __init__(self) -> None:
        self.end = 0
        self.sequences: dict[int, int] = {}
        self.known: dict[int, list[tuple[int, int, int, int]]] = {}

    def write(self, producer: int, count: int) -> bytes:
        first = self.sequences.get(producer, 0)
        records = [Record(self.end + at, 1_000, None, b"v", ()) for at in range(count)]
        about: dict[str, Any] = {}
        if producer >= 0:
            about = {"producer_id": producer, "producer_epoch": 0, "base_sequence": first}
            batches = self.known.setdefault(producer, [])
            batches.append((first, first + count - 1, self.end, self.end + count - 1))
            del batches[:-REMEMBERED]
            self.sequences[producer] = first + count
        self.end += count
        return encode_batch(records, **about)


def as_told(states: ProducerStates) -> dict[int, list[tuple[int, int, int, int]]]:
    return {entry.producer_id: [tuple(each[:4]) for each in entry.batches] for entry in states.entries()}  # type: ignore[misc]


@given(segments)
def test_each_footer_goes_on_from_the_one_before(story: list[list[Written]]) -> None:
    written, told = Story(), producers_after(ProducerStates(), [], known=frozenset())
    for segment in story:
        chunks = [written.write(*each) for each in segment]
        before = producers_of(told)
        assert before is not None
        told = producers_after(before, chunks, known=frozenset(range(4)))
        after = producers_of(told, now_ms=77)
        assert after is not None
        assert as_told(after) == written.known
        assert all(each.timestamp == 77 for entry in after.entries() for each in entry.batches)


@given(
    st.lists(
        st.tuples(segments.map(lambda many: [each for some in many for each in some]), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_where_footers_tell_none_all_batches_since_do(story: list[tuple[list[Written], bool]]) -> None:
    """Segments with and without, as exported before and after an upgrade."""
    written, told = Story(), producers_after(ProducerStates(), [], known=frozenset())
    history: Any = History(open_objects("memory:///"))
    for segment, tells in story:
        chunks = [written.write(*each) for each in segment] or [written.write(-1, 1)]
        history.records += [None] * (written.end - len(history.records))
        before = producers_of(told)
        assert before is not None
        told = producers_after(before, chunks, known=frozenset(range(4)))
        source = history.source(producers=told if tells else None)
        history.catalog = history.catalog.published(export_segment(history.objects, source, chunks))
    found = read_beginning(history.objects, history.catalog, now_ms=7, reads_batches=True)
    assert found.offset == written.end
    assert as_told(found.producers) == written.known
    if not story[-1][1]:
        with pytest.raises(CorruptData, match="does not tell its producers"):
            read_beginning(history.objects, history.catalog, now_ms=7)


@given(segments, st.integers(0, 30))
def test_what_was_known_at_an_offset_is_what_is_left_of_it(story: list[list[Written]], offset: int) -> None:
    """A producer that is left has its newest batches below the offset; one that is not has none, or too many since."""
    written, states = Story(), ProducerStates()
    below: dict[int, list[tuple[int, int, int, int]]] = {}
    since: dict[int, int] = {}
    for segment in story:
        for each in segment:
            states = producers_of(producers_after(states, [written.write(*each)], known=frozenset(range(4)))) or states
            if each.producer < 0:
                continue
            if written.end <= offset:
                below[each.producer] = list(written.known[each.producer])
            else:
                since[each.producer] = since.get(each.producer, 0) + 1
    left = as_told(states.as_of(offset))
    for producer, batches in below.items():
        kept = REMEMBERED - since.get(producer, 0)
        assert left.get(producer, []) == (batches[-kept:] if kept > 0 else [])
    assert left.keys() <= below.keys()


def test_who_is_forgotten_is_not_told_any_more() -> None:
    written = Story()
    chunks = [written.write(1, 1), written.write(2, 1)]
    told = producers_of(producers_after(ProducerStates(), chunks, known=frozenset({2})))
    assert told is not None
    assert told.ids == {2}


def test_the_same_batches_always_give_the_same_object() -> None:
    def told() -> str:
        written = Story()
        return producers_after(ProducerStates(), [written.write(1, 1), written.write(2, 1)], known=frozenset({1, 2}))

    assert told() == told()


@pytest.mark.parametrize("told", [7, "no base64!", "AAAA", {"a": 1}])
def test_what_are_no_producers_is_damage(told: object) -> None:
    with pytest.raises(CorruptData):
        producers_of(told)


def test_a_beginning_is_given_out_only_of_what_the_catalog_says(three_segments: Any) -> None:
    """The footers of these tell no producers."""
    history = three_segments
    last = history.catalog.last.descriptor
    with pytest.raises(CorruptData, match="does not tell its producers"):
        read_beginning(history.objects, history.catalog, now_ms=0)
    written = Story()
    written.end = len(history.records)
    batches = [written.write(3, 2)]
    history.records += [None] * 2
    told = producers_after(ProducerStates(), batches, known=frozenset({3}))
    history.catalog = history.catalog.published(
        export_segment(history.objects, history.source(producers=told), batches)
    )
    found = read_beginning(history.objects, history.catalog, now_ms=5)
    assert found.offset == history.catalog.next_offset == last.next_offset + 2
    assert as_told(found.producers) == written.known
    newest = history.catalog.last.descriptor
    assert read_footer(history.objects, newest).producers == told
    assert read_plan(history.objects, newest).footer.producers is None, "plans are kept in memory"
    for entry in list(history.catalog)[:2]:
        kept = history.objects.get(entry.descriptor.key)
        history.objects.put(entry.descriptor.key, kept[:-1] + b"?", if_absent=False)
        with pytest.raises(CorruptData):
            check_all(history.objects, history.catalog)
        history.objects.put(entry.descriptor.key, kept, if_absent=False)
    check_all(history.objects, history.catalog)
    kept = bytearray(history.objects.get(newest.key))
    kept[30] ^= 1
    history.objects.put(newest.key, bytes(kept), if_absent=False)
    with pytest.raises(CorruptData):
        read_beginning(history.objects, history.catalog, now_ms=5)


@pytest.mark.parametrize("size", [None, 100])
def test_no_segment_may_be_missing_or_short(
    three_segments: Any, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    """Also one whose footer is not looked at."""
    history = three_segments
    monkeypatch.setattr(frontier, "FRONTIER_FOOTERS_READ_MAX", 1)
    for entry in list(history.catalog):
        kept = history.objects.get(entry.descriptor.key)
        history.objects.delete(entry.descriptor.key)
        if size is not None:
            history.objects.put(entry.descriptor.key, kept[:-size])
        with pytest.raises((CorruptData, FileNotFoundError), match=entry.descriptor.key):
            check_all(history.objects, history.catalog)
        history.objects.put(entry.descriptor.key, kept, if_absent=False)
    check_all(history.objects, history.catalog)


def test_a_footer_tells_which_transactions_were_aborted_in_its_batches_and_which_are_open() -> None:
    """One may begin in one segment and end in another."""

    def data(offset: int, producer: int, sequence: int) -> bytes:
        record = Record(offset, 1_000, None, b"v", ())
        return encode_batch(
            [record],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    def marker(offset: int, producer: int, *, committed: bool) -> bytes:
        raw = encode_marker(producer, 0, EndMarker(committed, 4), timestamp=1_000)
        return offset.to_bytes(8, "big") + raw[8:]

    first = [data(0, 1, 0) + data(1, 2, 0), marker(2, 2, committed=True) + data(3, 3, 0)]
    second = [marker(4, 1, committed=False), data(5, 2, 1) + marker(6, 3, committed=False)]
    known, aborted = frozenset({1, 2, 3}), list[AbortedTransaction]()
    told = producers_of(producers_after(ProducerStates(), first, known=known, aborted=aborted))
    assert told is not None
    assert (aborted, dict(told.transactions.first_offsets)) == ([], {1: 0, 3: 3})
    told = producers_of(producers_after(told, second, known=known, aborted=aborted))
    assert told is not None
    assert aborted == [AbortedTransaction(1, 0, 4, 3), AbortedTransaction(3, 3, 6, 5)]
    assert dict(told.transactions.first_offsets) == {2: 5}
    assert {each.producer_id: each.coordinator_epoch for each in told.entries()} == {1: 4, 2: 4, 3: 4}
