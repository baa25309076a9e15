"""The judge's own reading of a catalog's chain: it holds for every history of publications, merges and deletions. Each
way to break it is reported."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.metadata.descriptors import segment_name
from headrace.metadata.segments import CatalogEntry, Entries, PartitionCatalog, Run, SegmentDescriptor
from headrace.sim.cluster.moves.chain import Chains
from headrace.sim.history import PartitionKey

TOPIC = TopicId(uuid.UUID(int=7))
KEY = PartitionKey(TOPIC, 0)
EMPTY = PartitionCatalog.empty(TOPIC, PartitionIndex(0))


def segment(start: int, end: int, what: str = "") -> SegmentDescriptor:
    digest = hashlib.sha256(f"{start} {end} {what}".encode()).hexdigest()
    return SegmentDescriptor(
        key=segment_name(start, end, 0, digest),
        start_offset=Offset(start),
        end_offset=Offset(end),
        leader_epoch=LeaderEpoch(0),
        last_epoch=LeaderEpoch(0),
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        records=end - start + 1,
        batch_bytes=100,
        object_bytes=200,
        crc32c=0,
        sha256=digest,
    )


def published(catalog: PartitionCatalog, count: int) -> PartitionCatalog:
    for _ in range(count):
        catalog = catalog.published(segment(catalog.next_offset, catalog.next_offset + 1))
    return catalog


def merged(catalog: PartitionCatalog, first: int, last: int, what: str = "") -> PartitionCatalog:
    """Its segments of these numbers as one; the same where they cannot be."""
    there = [entry.descriptor for entry in catalog][first : last + 1]
    if len(there) < 2 or there[-1].start_offset == catalog.last_start:
        return catalog
    return catalog.replaced(segment(there[0].start_offset, there[-1].end_offset, what))


def deleted(catalog: PartitionCatalog, start: int) -> PartitionCatalog:
    gone = catalog.below(Offset(start))
    return catalog.deleted(Offset(start), tuple(each.sha256 for each in gone))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("merge"), st.integers(0, 6), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.integers(0, 12), st.just(0)),
    ),
    max_size=12,
)


@given(STEPS)
def test_every_history_is_sound(steps: list[tuple[str, int, int]]) -> None:
    catalog, chains = published(EMPTY, 4), Chains()
    assert chains.problem(KEY, catalog) is None
    for kind, one, other in steps:
        match kind:
            case "publish":
                catalog = published(catalog, one)
            case "merge":
                catalog = merged(catalog, one, one + other)
            case _:
                catalog = deleted(catalog, min(catalog.next_offset, catalog.log_start_offset + one))
        assert chains.problem(KEY, catalog) is None


def with_entry(catalog: PartitionCatalog, start: int, entry: CatalogEntry) -> PartitionCatalog:
    entries = {**catalog.entries, Offset(start): entry}
    return replace(catalog, entries=Entries(Run.of([entries[at]]) for at in sorted(entries)))


MERGED = published(merged(published(EMPTY, 5), 1, 2), 1)


@pytest.mark.parametrize(
    "catalog",
    [
        with_entry(MERGED, 2, replace(MERGED.entries[Offset(2)], descriptor=segment(2, 5, "another"))),
        with_entry(MERGED, 2, replace(MERGED.entries[Offset(2)], hash="0" * 64)),
        replace(MERGED, deletions=(), head=MERGED.entries[MERGED.last_start].hash[::-1]),
        with_entry(
            MERGED, MERGED.last_start, replace(MERGED.entries[MERGED.last_start], deletions=(), is_substitute=True)
        ),
    ],
    ids=["another segment", "another hash", "another head", "a link is left out"],
)
def test_what_is_not_what_was_committed(catalog: PartitionCatalog) -> None:
    assert Chains().problem(KEY, MERGED) is None
    assert Chains().problem(KEY, catalog) is not None


def test_a_substitute_that_was_replaced_in_turn_is_no_more() -> None:
    twice = merged(MERGED, 0, 1)
    assert Chains().problem(KEY, twice) is None
    before = twice.entries[Offset(0)]
    stale = with_entry(twice, 0, replace(before, descriptor=segment(0, 5, "another")))
    assert "vouches" in (Chains().problem(KEY, stale) or "")


def test_a_place_in_the_chain_never_changes() -> None:
    chains = Chains()
    assert chains.problem(KEY, deleted(MERGED, 2)) is None
    other = deleted(published(EMPTY.published(segment(0, 1, "another")), 3), 2)
    assert "another hash" in (chains.problem(KEY, other) or "")
