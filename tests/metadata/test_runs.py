"""Entries are unpacked as they were packed, and the chain binds them, also through deletions and replacements.

The oracle is a list of the expected entries, and hashes over `json.dumps`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base import limits
from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.metadata import image as images
from headrace.metadata import runs
from headrace.metadata.codec import shape_of
from headrace.metadata.pieces import Piece, piece_of, run_of
from headrace.metadata.segments import CatalogEntry, Entries, PartitionCatalog, Run, SegmentDescriptor, published_hash

TOPIC = TopicId(uuid.UUID(int=7))
ZERO = PartitionIndex(0)
DIRECTORY = f"clusters/c/topics/{TOPIC}/0/"


@pytest.fixture(autouse=True)
def few_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CATALOG_RUN_ENTRIES", 3)
    monkeypatch.setattr(images, "CATALOG_CHUNK_ENTRIES", 2)
    assert limits.CATALOG_RUN_ENTRIES > 3


def segment(start: int, end: int, number: int, *, usual: bool = True, epoch: int = 3) -> SegmentDescriptor:
    digest = hashlib.sha256(f"{start} {end} {number}".encode()).hexdigest()
    name = f"{start:020d}-{end:020d}-{epoch:010d}-{digest[:16]}.segment"
    return SegmentDescriptor(
        key=DIRECTORY + name if usual else f"é-{number}",
        start_offset=Offset(start),
        end_offset=Offset(end),
        leader_epoch=LeaderEpoch(epoch),
        first_timestamp_ms=number,
        last_timestamp_ms=2 * number,
        records=end - start + 1,
        batch_bytes=100 + number,
        object_bytes=300 + number,
        crc32c=number,
        sha256=digest,
        last_epoch=LeaderEpoch(2 if usual else -1),
    )


def sha(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def told(one: SegmentDescriptor) -> dict[str, Any]:
    known = dataclasses.asdict(one)
    if known["last_epoch"] == -1:
        del known["last_epoch"]
    return known


@st.composite
def grown(draw: st.DrawFn) -> tuple[PartitionCatalog, list[PartitionCatalog], list[SegmentDescriptor]]:
    """A catalog, all that it was before, and what the model says that it holds."""
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    there: list[SegmentDescriptor] = []
    before: list[PartitionCatalog] = []
    for number in range(draw(st.integers(0, 24))):
        before.append(catalog)
        what = draw(st.sampled_from(["publish"] * 4 + ["replace"] * 2 + ["delete", "trim"]))
        if what == "publish" or not there:
            start = catalog.next_offset
            one = segment(start, start + draw(st.integers(0, 5)), number, usual=draw(st.integers(0, 5)) > 0)
            catalog = catalog.published(one)
            there.append(one)
        elif what == "replace" and len(there) > 1:
            first = draw(st.integers(0, len(there) - 2))
            after = draw(st.integers(first + 1, len(there) - 1))
            gone = there[first:after]
            one = segment(gone[0].start_offset, gone[-1].end_offset, number)
            one = replace(one, last_epoch=gone[-1].last_epoch)
            assert catalog.replacement_refusal(one, [each.sha256 for each in gone]) is None
            catalog = catalog.replaced(one)
            there[first:after] = [one]
        else:
            at = draw(st.integers(0, len(there)))
            end = there[at - 1].next_offset if at else there[0].start_offset
            if what == "trim" and at < len(there):
                end = Offset(end + draw(st.integers(0, there[at].end_offset - there[at].start_offset)))
            gone = [each for each in there if each.end_offset < end]
            catalog = catalog.deleted(end, tuple(each.sha256 for each in gone))
            del there[: len(gone)]
    return catalog, before, there


@given(grown())
def test_a_catalog_holds_what_was_put_in_whatever_happened_to_it(made: Any) -> None:
    catalog, _, there = made
    assert [entry.descriptor for entry in catalog] == there
    assert list(catalog.entries) == [each.start_offset for each in there]
    assert len(catalog.entries) == len(there)
    assert [catalog.entries.at(number).descriptor for number in range(len(there))] == there
    with pytest.raises(IndexError):
        catalog.entries.at(len(there))
    assert list(catalog.entries.times()) == [(each.start_offset, each.last_timestamp_ms) for each in there]
    for end in {each.next_offset for each in there}:
        below = [each for each in there if each.next_offset <= end]
        assert [catalog.below(end), catalog.below(end, 2)] == [below, below[:2]]
    assert catalog.batch_bytes == sum(each.batch_bytes for each in there)
    end = there[-1].next_offset if there else catalog.next_offset
    for offset in range(max(0, (there[0].start_offset if there else end) - 2), end + 2):
        holding = [each for each in there if each.start_offset <= offset <= each.end_offset]
        found = catalog.entries.holding(offset)
        assert [found.descriptor] if found else holding == []
        assert not holding or (found is not None and found.descriptor == holding[0])
        assert (Offset(offset) in catalog.entries) == any(each.start_offset == offset for each in there)
        reaching = [each for each in there if each.end_offset >= offset]
        assert [entry.descriptor for entry in catalog.reaching(offset)] == reaching
        assert list(catalog.entries.starts(offset)) == [
            each.start_offset for each in there if each.start_offset >= offset
        ]
        assert catalog.entries.count(offset, offset + 4) == len(
            [e for e in there if offset <= e.start_offset <= offset + 4]
        )


@given(grown())
def test_every_entry_has_its_place_in_the_chain_however_it_is_read(made: Any) -> None:
    catalog, _, _ = made
    entries = list(catalog)
    assert [catalog.entries[entry.descriptor.start_offset] for entry in entries] == entries
    assert Entries.of(entries) == catalog.entries
    head = catalog.anchor.head
    for entry in entries:
        for link in entry.deletions:
            kind = "replaced" if len(link[0]) > 64 else "deleted"
            head = sha(head, kind, list(link))
        assert entry.previous_hash == head
        assert entry.is_substitute or entry.hash == sha(head, "published", told(entry.descriptor))
        head = entry.hash
    for link in catalog.deletions:
        head = sha(head, "replaced" if len(link[0]) > 64 else "deleted", list(link))
    assert head == catalog.head
    assert catalog.unvouched() is None


@given(grown())
def test_what_has_gone_since_is_told(made: Any) -> None:
    catalog, before, there = made
    for known in before:
        gone = [entry.descriptor for entry in known if entry.descriptor not in there]
        assert list(known.entries.gone(catalog.entries)) == gone


@given(grown(), st.data())
def test_pieces_give_the_same_catalog_and_any_change_in_one_is_noticed(made: Any, data: st.DataObject) -> None:
    catalog, _, _ = made
    entries, again = list(catalog), catalog.anchor
    shape = shape_of(Piece)
    while entries:
        size = data.draw(st.integers(1, len(entries)))
        text = json.loads(json.dumps(shape.encode(piece_of(entries[:size]))))
        again = again.joined(run_of(shape.decode(text, "piece")))
        row, column = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 10))
        if not entries[row].is_substitute:  # these are for their vouchers to prove
            value = text["rows"][row][column]
            text["rows"][row][column] = value + 1 if isinstance(value, int) else value[::-1]
            assert is_noticed(shape.decode(text, "piece"), entries[:size])
        del entries[:size]
    assert again.with_links(catalog.deletions) == catalog


def is_noticed(piece: Piece, entries: list[CatalogEntry]) -> bool:
    """At once, or by the voucher of the substitute that stands behind it."""
    try:
        found = list(run_of(piece).entries())
    except CorruptData:
        return True
    return [each.voucher for each in found if each.is_substitute] != [
        each.voucher for each in entries if each.is_substitute
    ]


@given(grown(), st.data())
def test_a_substitute_of_another_content_or_of_before_is_noticed(made: Any, data: st.DataObject) -> None:
    """The chain detects any fitting earlier segment that is put in the place of a substitute."""
    catalog, before, there = made
    substitutes = [entry for entry in catalog if entry.is_substitute]
    for entry in substitutes:
        other = replace(entry, descriptor=replace(entry.descriptor, records=0))
        entries = [other if each == entry else each for each in catalog]
        assert replace(catalog, entries=Entries.of(entries)).unvouched() is not None
    for known in before:
        for entry in known:
            one = entry.descriptor
            if one in there or not (catalog.start_offset <= one.start_offset <= catalog.end_offset):
                continue
            inside = [each for each in known if each.descriptor.start_offset >= one.start_offset]
            now = catalog.entries.get(one.start_offset)
            if now is None or now.previous_hash != entry.previous_hash:
                continue
            old = []
            for each in inside:
                old.append(each)
                if each.descriptor.end_offset >= now.descriptor.end_offset:
                    break
            if old[-1].descriptor.end_offset != now.descriptor.end_offset or old[-1].hash != now.hash:
                continue
            rest = [each for each in catalog if each.descriptor != now.descriptor]
            mixed = sorted([*rest, *old], key=lambda each: each.descriptor.start_offset)
            assert replace(catalog, entries=Entries.of(mixed)).unvouched() is not None


@given(st.text(max_size=70), st.integers(-1, 5), st.text(max_size=20))
def test_the_hash_is_that_of_canonical_json(previous: str, last_epoch: int, key: str) -> None:
    one = replace(segment(5, 9, 4, epoch=7), last_epoch=LeaderEpoch(last_epoch), key=key)
    assert published_hash(previous, one) == sha(previous, "published", told(one))


def test_an_entry_takes_little_room() -> None:
    """Some 150 bytes: what it is packed in, and its share of what is common."""
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    entries = []
    for number in range(256):
        catalog = catalog.published(segment(number, number, number))
        entries.append(catalog.last)
    run = Run.of([entry for entry in entries if entry is not None])
    assert len(run.packed) / 256 <= 150
    assert not run.unusual


def test_replacements_are_refused_that_are_not_of_whole_segments_of_one_epoch() -> None:
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    parts = [segment(0, 4, 0), segment(5, 9, 1), segment(10, 14, 2, epoch=4), segment(15, 19, 3, epoch=4)]
    for part in parts:
        catalog = catalog.published(part)
    shas = [part.sha256 for part in parts]
    assert catalog.replacement_refusal(segment(0, 9, 9), shas[:2]) is None
    for wrong, removed, words in (
        (segment(0, 9, 9), shas[:1], "not just what"),
        (segment(0, 8, 9), shas[:2], "not just what"),
        (segment(1, 9, 9), shas[:2], "not just what"),
        (segment(0, 9, 9), shas[1::-1], "not just what"),
        (segment(20, 24, 9), [], "not just what"),
        (segment(5, 14, 9, epoch=4), shas[1:3], "Not all"),
        (segment(10, 19, 9, epoch=4), shas[2:], "last segment"),
        (replace(segment(0, 9, 9), last_epoch=LeaderEpoch(3)), shas[:2], "do not"),
        (replace(segment(0, 9, 9), batch_bytes=0), shas[:2], "impossible"),
    ):
        assert words in (catalog.replacement_refusal(wrong, removed) or "")


def test_a_catalog_that_is_trimmed_within_a_segment_keeps_what_was_deleted_before() -> None:
    """It lost that, and with it the chain's last link: readers of the mirror were told of damage."""
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    for number in range(3):
        catalog = catalog.published(segment(10 * number, 10 * number + 9, number))
    first = next(iter(catalog)).descriptor
    trimmed = catalog.deleted(Offset(10), (first.sha256,)).deleted(Offset(15), ())
    assert trimmed.deletions == ((first.sha256,),)
    assert trimmed.head == sha(catalog.head, "deleted", [first.sha256])


@pytest.mark.parametrize(
    "change",
    [
        {"rows": []},
        {"rows": [[1, 2, 3]]},
        {"rows": [["x"] * 11]},
        {"rows": [[0, 4, 3, 2, 0, 0, 5, 1.5, 300, 0, "0" * 64]]},
        {"hash": "0" * 64},
        {"previous_hash": "0" * 64},
        {"directory": "elsewhere/"},
        {"unusual": [{"at": 9}]},
        {"unusual": [{"at": 0, "hash": "no hash"}]},
        {"unusual": [{"at": 0, "key": "another"}]},
    ],
)
def test_a_piece_of_another_shape_is_corrupt(change: dict[str, Any]) -> None:
    catalog = PartitionCatalog.empty(TOPIC, ZERO).published(segment(0, 4, 0)).published(segment(5, 9, 1))
    shape = shape_of(Piece)
    text = json.loads(json.dumps(shape.encode(piece_of(list(catalog)))))
    assert list(run_of(shape.decode(text, "piece")).entries()) == list(catalog)
    rows = {**text, **change}.pop("rows")
    with pytest.raises(CorruptData):
        run_of(replace(shape.decode({**text, **change, "rows": []}, "piece"), rows=tuple(rows)))
