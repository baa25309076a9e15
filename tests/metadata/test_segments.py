"""Laws of the durable catalog: contiguous, chained, and read back as written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import PACKED_SEGMENT_BYTES_MAX
from headrace.metadata.segments import (
    CatalogEntry,
    PartitionCatalog,
    SegmentDescriptor,
    Voucher,
    deleted_hash,
    genesis_hash,
    published_hash,
    replaced_hash,
)

TOPIC = TopicId(uuid.UUID(int=7))
ZERO = PartitionIndex(0)


def descriptor(start: int, count: int, **changes: Any) -> SegmentDescriptor:
    made = SegmentDescriptor(
        key=f"segment-{start}",
        start_offset=Offset(start),
        end_offset=Offset(start + count - 1),
        leader_epoch=LeaderEpoch(3),
        first_timestamp_ms=1_000,
        last_timestamp_ms=2_000,
        records=count,
        batch_bytes=100,
        object_bytes=300,
        crc32c=12345,
        sha256=hashlib.sha256(str(start).encode()).hexdigest(),
    )
    return dataclasses.replace(made, **changes)


@st.composite
def catalogs(draw: st.DrawFn) -> PartitionCatalog:
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    start = draw(st.integers(0, 2**40))
    for count in draw(st.lists(st.integers(1, 1_000), max_size=8)):
        catalog = catalog.published(descriptor(start, count))
        start += count
    return catalog


@given(catalogs())
def test_a_catalog_has_no_gap_and_its_chain_replays_to_the_same_head(catalog: PartitionCatalog) -> None:
    head, expected = genesis_hash(TOPIC, ZERO), catalog.start_offset
    for entry in catalog:
        assert entry.descriptor.start_offset == expected
        assert entry.previous_hash == head
        head, expected = published_hash(head, entry.descriptor), entry.descriptor.next_offset
        assert entry.hash == head
    assert catalog.head == head
    if catalog.entries:
        assert expected == catalog.next_offset
    assert len(list(catalog)) == len(catalog.entries)


@given(catalogs())
def test_entries_survive_json_and_any_changed_field_is_noticed(catalog: PartitionCatalog) -> None:
    for entry in catalog:
        text = json.loads(json.dumps(entry.to_json()))
        assert CatalogEntry.from_json(text) == entry
        for name, value in text["descriptor"].items():
            other = {**text["descriptor"], name: value + 1 if isinstance(value, int) else "0" * 64}
            with pytest.raises(CorruptData):
                CatalogEntry.from_json({**text, "descriptor": other})


@given(catalogs(), st.integers(-2, 2))
def test_only_the_next_segment_on_the_current_head_is_accepted(catalog: PartitionCatalog, shift: int) -> None:
    following = descriptor(max(0, catalog.next_offset + shift), 5)
    fits = not catalog.entries or following.start_offset == catalog.next_offset
    assert (catalog.refusal(following, catalog.head) is None) == fits
    assert "head" in (catalog.refusal(following, "0" * 64) or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"end_offset": 9},
        {"start_offset": -1},
        {"batch_bytes": 0},
        {"batch_bytes": PACKED_SEGMENT_BYTES_MAX + 1},
        {"object_bytes": 0},
        {"records": 6},
        {"crc32c": 2**32},
        {"sha256": "x"},
    ],
)
def test_an_impossible_descriptor_is_refused(changes: dict[str, Any]) -> None:
    bad = descriptor(10, 5, **changes)
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    assert "impossible" in (catalog.refusal(bad, catalog.head) or "")
    with pytest.raises(CorruptData):
        SegmentDescriptor.from_json(bad.to_json())


def test_a_descriptor_of_another_shape_is_corrupt() -> None:
    good = descriptor(0, 1).to_json()
    without = {name: value for name, value in good.items() if name != "key"}
    wrong: list[object] = [None, [], {**good, "records": True}, {**good, "key": 3}, without]
    for bad in wrong:
        with pytest.raises(CorruptData):
            SegmentDescriptor.from_json(bad)
    entries: list[object] = ["x", {"descriptor": good, "previous_hash": None, "hash": ""}]
    for entry in entries:
        with pytest.raises(CorruptData):
            CatalogEntry.from_json(entry)


def test_events_of_different_kinds_never_share_a_hash() -> None:
    head, one = genesis_hash(TOPIC, ZERO), descriptor(0, 1)
    hashes = {
        head,
        published_hash(head, one),
        replaced_hash(head, [one.sha256]),
        Voucher.of(one, head, one.sha256).proof,
        deleted_hash(head, [one.sha256]),
    }
    assert len(hashes) == 5
