"""Segments that are merged: the same batches, proven before and after, and nothing lost whatever is done twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, PartitionIndex
from headrace.base.limits import MERGE_READ_BYTES_MAX
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.format import decode_footer
from headrace.storage.tier.merge import merge_segments, mergeable
from headrace.storage.tier.reader import Store
from tests.metadata.test_runs import TOPIC, ZERO, segment

NOW = LeaderEpoch(12)


def grown(history: Any, count: int = 6) -> Any:
    for number in range(count):
        history.export([history.batch([b"v%d" % number] * (1 + number % 3), epoch=7 + number // 4) for _ in range(2)])
    return history


def test_a_merged_segment_holds_their_batches_and_what_their_footers_say(history: Any) -> None:
    grown(history)
    parts = [entry.descriptor for entry in history.catalog][1:5]
    made = merge_segments(history.objects, parts, made_in=NOW)
    assert merge_segments(history.objects, parts, made_in=NOW) == made
    body = history.objects.get(made.key)
    assert body[: made.batch_bytes] == b"".join(history.batches[2:10])
    named = SegmentKey.parse(made.key)
    assert named is not None
    assert named.made_in == NOW
    assert (made.start_offset, made.end_offset) == (parts[0].start_offset, parts[-1].end_offset)
    assert (made.leader_epoch, made.last_epoch) == (9, parts[-1].last_epoch)
    assert made.records == sum(part.records for part in parts)
    footer, footers = decode_footer(body), [decode_footer(history.objects.get(part.key)) for part in parts]
    assert footer.producers == footers[-1].producers
    starts = {each.leader_epoch: each.start_offset for one in reversed(footers) for each in one.leader_epochs}
    assert {each.leader_epoch: each.start_offset for each in footer.leader_epochs} == starts
    assert history.catalog.replacement_refusal(made, [part.sha256 for part in parts]) is None


def test_readers_of_the_store_see_the_same_records_and_the_proof_holds(history: Any) -> None:
    grown(history, 8)
    store, before = Store(history.objects), history.catalog
    records = [bytes(batch) for batch, _ in store.batches(history.topic, PartitionIndex(0), 0, 1_000)]
    for first, after in ((1, 3), (4, 6), (1, 3)):  # the last of these takes the first two and what lies behind
        parts = [entry.descriptor for entry in history.catalog][first:after]
        known, made = history.catalog, merge_segments(history.objects, parts, made_in=NOW)
        history.catalog = known.replaced(made)
        history.raft_index += 1
        history.mirror.write_partition(history.topic.topic_id, ZERO, history.catalog, history.raft_index, known=known)
        assert store.catalog(history.topic, ZERO) == history.catalog
        assert [bytes(batch) for batch, _ in store.batches(history.topic, ZERO, 0, 1_000)] == records
        assert store.verify(history.topic, ZERO).head == history.catalog.head
    assert len(history.catalog.entries) == 5
    planned = store.slices("orders", 0, before, 0, 1_000, slice_bytes=1 << 30)  # a reader of the old one reads on
    assert b"".join(buffer for part in planned for buffer, _ in store.read(part)) == b"".join(records)
    history.export([history.batch([b"late"])])
    assert store.catalog(history.topic, ZERO) == history.catalog


@pytest.mark.parametrize(
    "damage", [lambda body: body[:-1], lambda body: body[:20] + b"?" + body[21:], lambda body: b""]
)
def test_nothing_is_made_of_what_is_damaged(history: Any, damage: Any) -> None:
    grown(history)
    parts = [entry.descriptor for entry in history.catalog][:3]
    history.objects.put(parts[1].key, damage(history.objects.get(parts[1].key)), if_absent=False)
    there = [meta.key for meta in history.objects.list("clusters/")]
    with pytest.raises(CorruptData, match=parts[1].key):
        merge_segments(history.objects, parts, made_in=NOW)
    assert [meta.key for meta in history.objects.list("clusters/")] == there


sizes = st.lists(st.tuples(st.integers(1, 120), st.integers(0, 3)), max_size=30)


@given(sizes, st.integers(2, 200))
def test_what_may_be_merged_is_merged_once(parts: Any, bytes_max: int) -> None:
    catalog, epoch = PartitionCatalog.empty(TOPIC, ZERO), 0
    for number, (size, step) in enumerate(parts):
        epoch += step == 3
        one = segment(number, number, number, epoch=epoch + 3)
        catalog = catalog.published(type(one)(**{**fields(one), "batch_bytes": size}))
    before = -1
    while groups := list(mergeable(catalog, bytes_max=bytes_max)):
        assert before in (-1, *range(len(catalog.entries) + 1, 1_000)), "each round leaves fewer"
        before = len(catalog.entries)
        for group in groups:
            size = sum(each.batch_bytes for each in group)
            assert len(group) >= 2
            assert size <= bytes_max
            assert max(each.batch_bytes for each in group) <= bytes_max // 2
            made = segment(group[0].start_offset, group[-1].end_offset, 0, epoch=group[0].leader_epoch)
            made = type(made)(**{**fields(made), "batch_bytes": size, "object_bytes": size + 9})
            assert catalog.replacement_refusal(made, [each.sha256 for each in group]) is None
            catalog = catalog.replaced(made)
    left = list(catalog)[:-1]
    for before_it, following in pairwise(entry.descriptor for entry in left):
        small = [each.batch_bytes <= bytes_max // 2 for each in (before_it, following)]
        alike = before_it.leader_epoch == following.leader_epoch
        together = before_it.batch_bytes + following.batch_bytes
        assert not (all(small) and alike and together <= bytes_max)


def test_objects_whose_footers_are_long_are_not_read_all_at_once() -> None:
    catalog = PartitionCatalog.empty(TOPIC, ZERO)
    size = MERGE_READ_BYTES_MAX // 3
    for number in range(8):
        catalog = catalog.published(replace(segment(number, number, number), object_bytes=size))
    assert [len(group) for group in mergeable(catalog)] == [3, 3]


def fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__slots__}
