"""Laws of durable history that is compacted by key.

Its readers reach the same last value of every key as readers of the log. That holds however often it was compacted,
wherever that stopped, and whichever catalog the reader began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.ports import Buffer
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage import keeping
from headrace.storage.tier.blocks import first_at_or_after, read_block, read_plan
from headrace.storage.tier.compact import Keys, compact_segments, compactable
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.merge import merge_segments, mergeable
from headrace.storage.tier.reader import DamagedHistory, SegmentSlice, Store, check_object
from headrace.wire.batches import check_batches, decode_records, encode_batch, parse_header
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.tiers import examples
from tests.wire.emptied import unreadable, unreadable_in

TOPIC = TopicId(UUID(int=7))
ZERO = PartitionIndex(0)
DAY_MS = 86_400_000
ASKED_MS = 1_000
"""When the first round of compaction is; records are older."""


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        if if_absent and key in self.held:
            return False
        self.held[key] = bytes(data)
        return True

    def get(self, key: str) -> bytes:
        if key not in self.held:
            raise FileNotFoundError(key)
        return self.held[key]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]


class Read(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


class History:
    """A log, and its durable history."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.catalog = PartitionCatalog.empty(TOPIC, ZERO)
        self.log: list[Read] = []
        self.now_ms = ASKED_MS
        self.replacements = 0

    def publish(self, batches: Sequence[Sequence[tuple[bytes, bytes | None]]], epoch: int, codec: Compression) -> None:
        """One segment of these batches."""
        parts, start = [], len(self.log)
        for batch in batches:
            records = [Record(len(self.log) + at, at, key, value) for at, (key, value) in enumerate(batch)]
            parts.append(encode_batch(records, leader_epoch=epoch, compression=codec))
            self.log += [Read(each.offset, each.key, each.value) for each in records]
        source = ExportSource(
            cluster_id=ClusterId("cluster"),
            topic_id=TOPIC,
            topic="t",
            partition=ZERO,
            leader_epoch=LeaderEpoch(epoch),
            start_offset=Offset(start),
            limit_offset=Offset(len(self.log)),
            producers={},
        )
        self.catalog = self.catalog.published(export_segment(self.shelf, source, parts))  # type: ignore[arg-type]

    def compact(
        self, *, retention_ms: int, keys_max: int = 1_000, stops_after: int = 1_000, bytes_max: int = 400
    ) -> None:
        """All passes, or as many groups of them as `stops_after` says."""
        left, read_to, is_full = stops_after, int(self.catalog.readable_start), True
        while is_full:
            keys = Keys(read_to, keys_max=keys_max)
            for entry in self.catalog.reaching(read_to):
                if not keys.is_read:
                    keys.read(self.shelf, entry.descriptor, self.catalog)  # type: ignore[arg-type]  # it has all it needs
            self.show()
            keeping = keys.keeping(now_ms=self.now_ms, delete_retention_ms=retention_ms)
            for group in list(compactable(self.catalog, bytes_max=bytes_max)):
                if group[0].start_offset >= keeping.clean_to:
                    break
                if not left:
                    return
                left -= 1
                keeping.now_ms = self.now_ms
                made = compact_segments(
                    self.shelf,  # type: ignore[arg-type]
                    group,
                    keeping,
                    made_in=LeaderEpoch(9),
                    joins=not keys.is_full,
                    history=self.catalog,
                )
                if made is not None:
                    self._replace(made, group)
            read_to, is_full = keys.read_to, keys.is_full

    def show(self) -> None:
        """Before each pass readers of the store are shown what there is. Here they always are."""

    def merge(self) -> None:
        for group in list(mergeable(self.catalog, bytes_max=2_000)):
            self._replace(merge_segments(self.shelf, group, made_in=LeaderEpoch(9)), group)  # type: ignore[arg-type]

    def _replace(self, made: SegmentDescriptor, group: Sequence[SegmentDescriptor]) -> None:
        assert self.catalog.replacement_refusal(made, [each.sha256 for each in group]) is None
        self.catalog = self.catalog.replaced(made)
        self.replacements += 1

    def read(self, start: int = 0, end: int | None = None, catalog: PartitionCatalog | None = None) -> list[Read]:
        """The records that a reader of the store gets, with all its checks."""
        known, store = catalog or self.catalog, Store(self.shelf)  # type: ignore[arg-type]
        found: list[Read] = []
        end = known.next_offset if end is None else end
        for part in store.slices("t", 0, known, start, end, slice_bytes=200) if start < end else ():
            for buffer, batches in store.read(part, read_bytes=150):
                for at, header in batches:
                    records = decode_records(buffer[at : at + header.size]) if header.count else []
                    found += [Read(each.offset, each.key, each.value) for each in records]
        return [each for each in found if start <= each.offset < end]

    def check(self) -> None:
        """Every object is what its descriptor says, and its offsets have no gap."""
        for entry in self.catalog:
            check_object(entry.descriptor, self.shelf.get(entry.descriptor.key))


def table(read: Iterable[Read]) -> dict[bytes | None, bytes | None]:
    """The table that a consumer makes of them."""
    found: dict[bytes | None, bytes | None] = {}
    for each in read:
        if each.value is None:
            found.pop(each.key, None)
        else:
            found[each.key] = each.value
    return found


KEYS = st.sampled_from([b"a", b"b", b"c", b"a key that is longer than a digest of it"])
RECORDS = st.tuples(KEYS, st.one_of(st.none(), st.binary(min_size=1, max_size=20)))
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=3), min_size=1, max_size=3)
CODECS = st.sampled_from([Compression.NONE, Compression.GZIP])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), BATCHES, st.booleans()),
        st.tuples(st.just("compact"), st.integers(0, 9), st.sampled_from([1, 2, 3, 1_000])),
        st.tuples(st.just("merge"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([10, DAY_MS]), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=examples(150))
@given(STEPS, CODECS, st.sampled_from([0, DAY_MS]))
def test_the_last_record_of_every_key_is_that_of_the_log(
    steps: list[tuple[str, object, object]], codec: Compression, retention_ms: int
) -> None:
    here, epoch = History(), 0
    for kind, one, other in steps:
        match kind:
            case "publish":
                epoch += bool(other)
                here.publish(one, epoch, codec)  # type: ignore[arg-type]
            case "compact":
                here.compact(retention_ms=retention_ms, stops_after=one, keys_max=other)  # type: ignore[arg-type]
            case "merge":
                here.merge()
            case _:
                here.now_ms += one  # type: ignore[operator]
        read = here.read()
        assert table(read) == table(here.log)
        assert set(read) <= set(here.log)
        assert [each.offset for each in read] == sorted({each.offset for each in read})
        here.check()
    assert here.catalog.next_offset == len(here.log)
    assert here.catalog.unvouched() is None


@settings(max_examples=examples(100))
@given(st.lists(BATCHES, min_size=2, max_size=6), st.integers(0, 60), st.integers(0, 6))
def test_who_is_on_the_way_misses_no_deletion(
    segments: list[list[list[tuple[bytes, bytes | None]]]], at: int, stops: int
) -> None:
    """A reader that has come as far as `at` when history is compacted, and goes on in what is there then, within
    delete.retention.ms."""
    here = History()
    for batches in segments:
        here.publish(batches, 0, Compression.NONE)
    at = min(at, len(here.log))
    before = here.read(0, at)
    here.compact(retention_ms=DAY_MS, stops_after=stops)
    here.now_ms += DAY_MS // 2
    here.compact(retention_ms=DAY_MS)
    assert table([*before, *here.read(at)]) == table(here.log)


SEGMENTS = st.lists(BATCHES, min_size=1, max_size=7)


def owed(here: History, horizons: dict[int, int]) -> list[Read]:
    """The records that remain when all of a log's history was compacted, by all keys at once. They are those of the
    last segment and, below it, the last record of each key. A tombstone remains until the time that `horizons` has for
    its offset."""
    last = {each.key: each.offset for each in here.log}
    return [
        each
        for each in here.log
        if each.offset >= here.catalog.last_start
        or (each.offset == last[each.key] and (each.value is not None or horizons[each.offset] > here.now_ms))
    ]


@settings(max_examples=examples(150))
@given(SEGMENTS, st.integers(1, 4), st.integers(0, 8), st.integers(0, 8), CODECS)
def test_passes_leave_nothing_that_one_with_all_keys_would_not(
    segments: list[list[list[tuple[bytes, bytes | None]]]], keys_max: int, stops: int, again: int, codec: Compression
) -> None:
    """However few keys a pass can keep, and wherever rounds before stopped; and what is done is not done again."""
    here = History()
    for epoch, batches in enumerate(segments):
        here.publish(batches, epoch // 2, codec)
    here.compact(retention_ms=DAY_MS, keys_max=keys_max, stops_after=stops)
    here.compact(retention_ms=DAY_MS, keys_max=keys_max + again)
    assert here.read() == owed(here, {each.offset: here.now_ms + DAY_MS for each in here.log})
    here.compact(retention_ms=DAY_MS, keys_max=keys_max + again)  # tombstones' time begins
    done, count = -1, len(here.catalog.entries) + 1
    while here.replacements > done:  # segments that have become small enough are still merged
        assert len(here.catalog.entries) < count
        done, count = here.replacements, len(here.catalog.entries)
        here.compact(retention_ms=DAY_MS, keys_max=keys_max + again)
    here.now_ms += DAY_MS + 1
    here.compact(retention_ms=DAY_MS, keys_max=keys_max)
    assert here.read() == owed(here, {each.offset: 0 for each in here.log})
    assert table(here.read()) == table(here.log)
    here.check()


@pytest.mark.parametrize(("bytes_max", "expected"), [(1, (0, 0)), (400, (0, 4))])
def test_a_pass_that_finds_nothing_to_replace_makes_nothing(bytes_max: int, expected: tuple[int, int]) -> None:
    """The last alone puts small segments together, and takes what it replaces with that."""
    here = History()
    for number in range(6):
        here.publish([[(b"%d" % number, b"v")]], 0, Compression.NONE)
    here.publish([[(b"0", b"v")]], 0, Compression.NONE)
    before = set(here.shelf.held)
    for _ in range(2):
        here.compact(retention_ms=DAY_MS, keys_max=2, bytes_max=bytes_max)
        (made,) = set(here.shelf.held) - before
        found = [entry.descriptor for entry in here.catalog if entry.descriptor.key == made]
        assert [(each.start_offset, each.end_offset) for each in found] == [expected]


def test_what_was_replaced_goes_and_a_tombstone_when_it_is_due() -> None:
    here = History()
    for value in (b"1", b"2", None):
        here.publish([[(b"a", value)], [(b"b", value or b"3")]], 0, Compression.NONE)
    here.publish([[(b"c", b"1")]], 0, Compression.NONE)
    here.compact(retention_ms=DAY_MS)
    assert here.read() == [Read(4, b"a", None), Read(5, b"b", b"3"), Read(6, b"c", b"1")]
    here.now_ms += DAY_MS
    here.compact(retention_ms=DAY_MS)
    size = here.catalog.batch_bytes
    here.now_ms += DAY_MS - 1
    here.compact(retention_ms=DAY_MS)
    assert here.read() == [Read(4, b"a", None), Read(5, b"b", b"3"), Read(6, b"c", b"1")]
    assert here.catalog.batch_bytes == size, "its time began when readers were shown that there is nothing below it"
    here.now_ms += 2
    here.compact(retention_ms=DAY_MS)
    assert here.read() == [Read(5, b"b", b"3"), Read(6, b"c", b"1")]
    first = next(iter(here.catalog)).descriptor
    body = here.shelf.get(first.key)
    assert (first.start_offset, first.end_offset, first.records) == (0, 5, 1)
    assert parse_header(body).last_offset_delta == 4, "what is empty is one batch"


def test_a_tombstone_stays_behind_what_cannot_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key may have a value there."""
    here = History()
    monkeypatch.setattr("headrace.wire.batches.UNPACKED_RECORDS_MAX", 2)
    here.publish([[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]], 0, Compression.NONE)
    here.publish([[(b"a", None)]], 0, Compression.NONE)
    here.publish([[(b"d", None)]], 0, Compression.NONE)
    for _ in range(3):
        here.compact(retention_ms=0)
        here.now_ms += 1
    assert table(here.read()) == {b"b": b"2", b"c": b"3"}


def test_what_is_damaged_is_not_compacted() -> None:
    here = History()
    for value in (b"1", b"2", b"3"):
        here.publish([[(b"a", value)]], 0, Compression.NONE)
    key = next(iter(here.catalog)).descriptor.key
    here.shelf.held[key] = here.shelf.held[key][:-1] + b"x"
    with pytest.raises(CorruptData, match="SHA-256"):
        here.compact(retention_ms=0)


def test_a_batch_that_lacks_records_where_none_may_lack_is_damage() -> None:
    here = History()
    for value in (b"1", b"2"):
        here.publish([[(b"a", value), (b"b", value)]], 0, Compression.NONE)
    here.compact(retention_ms=0)
    made = next(iter(here.catalog)).descriptor
    assert made.lacks_records
    body = here.shelf.get(made.key)
    check_object(made, body)
    with pytest.raises(CorruptData):
        check_object(replace(made, records=2), body)
    whole = SegmentSlice(
        topic="t",
        partition=0,
        key=made.key,
        position=0,
        end_position=made.batch_bytes,
        base_offset=int(made.start_offset),
        end_offset=int(made.next_offset),
        first_offset=int(made.start_offset),
        next_offset=int(made.next_offset),
        crc32c=made.crc32c,
        is_thinned=made.lacks_records,
    )
    store = Store(here.shelf)  # type: ignore[arg-type]
    assert sum(header.count for _, found in store.read(whole) for _, header in found) == made.records
    with pytest.raises(DamagedHistory):
        list(store.read(whole._replace(is_thinned=False)))


@pytest.fixture
def older_history(monkeypatch: pytest.MonkeyPatch) -> History:
    """Compacted by an older version: a lone emptied batch with a codec is in the first of its three segments."""
    here = History()
    here.publish([[(b"a", b"1")], [(b"b", b"1")]], 0, Compression.ZSTD)
    here.publish([[(b"a", b"2")]], 0, Compression.ZSTD)
    here.publish([[(b"c", b"1")]], 1, Compression.ZSTD)
    with monkeypatch.context() as older:
        older.setattr(keeping, "emptied", lambda header: unreadable(header, header.compression))
        here.compact(retention_ms=DAY_MS, bytes_max=1)
    assert [unreadable_in(body) for body in bodies(here)] == [1, 0, 0]
    return here


def bodies(here: History) -> list[bytes]:
    """Of each segment its batches, as they are in the store."""
    return [here.shelf.get(each.descriptor.key)[: each.descriptor.batch_bytes] for each in here.catalog]


def test_what_an_older_version_emptied_is_read_rightly(older_history: History) -> None:
    here = older_history
    assert here.read() == [each for each in here.log if each.offset]
    first = next(iter(here.catalog)).descriptor
    block = read_block(here.shelf, read_plan(here.shelf, first), 0)  # type: ignore[arg-type]
    assert unreadable_in(bytes(block.data)) == 0
    found = block.read(0, 61, 2, at_least_one=False)
    assert [(header.base_offset, header.count) for _, header in check_batches(found, gaps_below=2)] == [(0, 0)]
    assert first_at_or_after(here.shelf, read_plan(here.shelf, first), 0, 0) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["compact", "merge"])
def test_what_an_older_version_emptied_is_mended_by_the_next_round(older_history: History, way: str) -> None:
    here, before = older_history, older_history.read()
    here.compact(retention_ms=DAY_MS, bytes_max=1) if way == "compact" else here.merge()
    assert sum(map(unreadable_in, bodies(here))) == 0
    assert here.read() == before
    here.check()
    assert here.catalog.unvouched() is None
