"""Laws of events as JSON: nothing is lost, and nothing else is taken."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import ClusterId, PartitionIndex, TopicId
from headrace.metadata.codec import (
    EVENT_TYPES,
    decode_event,
    decode_events,
    decode_line,
    encode_event,
    encode_events,
    image_as_json,
)
from headrace.metadata.events import CatalogListed, ClusterBorn, MetadataEvent, SegmentPublished, SegmentsReplaced
from headrace.metadata.image import EMPTY_IMAGE
from headrace.metadata.pieces import piece_of
from headrace.metadata.segments import CatalogEntry, published_hash
from headrace.metadata.values import Engine
from tests.metadata.histories import Entry, descriptor, histories, wild_events

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(wild_events))
def test_events_decode_to_what_was_encoded(events: list[MetadataEvent]) -> None:
    data = encode_events(events)
    assert decode_events(data) == tuple(events)
    assert data.count(b"\n") == len(events), "one line each"


@given(wild_events, json_values, st.data())
def test_a_field_of_the_wrong_kind_is_corrupt_data_and_nothing_else(
    event: MetadataEvent, junk: Any, data: st.DataObject
) -> None:
    value = encode_event(event)
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = junk
    with suppress(CorruptData):
        assert type(decode_event(value)) in EVENT_TYPES.values()


@given(wild_events, st.data())
def test_a_line_that_was_cut_is_corrupt_data(event: MetadataEvent, data: st.DataObject) -> None:
    line = encode_events([event]).rstrip()
    with pytest.raises(CorruptData):
        decode_line(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(("packed", "versions"), [(False, (1, 0, 0)), (True, (2, 1, 1))])
def test_only_what_has_a_packed_segment_is_refused_by_brokers_of_before(
    packed: bool, versions: tuple[int, int, int]
) -> None:
    """They would leave such a segment out of their catalogs, and look at its object as one that nothing refers to."""
    one = replace(descriptor(0, 10, 1), object_bytes=100 if packed else 101)
    entry = CatalogEntry(descriptor=one, previous_hash="0" * 64, hash=published_hash("0" * 64, one))
    about: Any = {"topic_id": TopicId(UUID(int=1)), "partition": PartitionIndex(0)}
    events: list[MetadataEvent] = [
        SegmentPublished(**about, descriptor=one, previous_hash="0" * 64),
        CatalogListed(**about, piece=piece_of([entry])),
        SegmentsReplaced(**about, descriptor=one, removed=("a", "b"), previous_hash="0" * 64),
    ]
    assert tuple(encode_event(event)["version"] for event in events) == versions
    assert [decode_event(encode_event(event)) for event in events] == events


def test_every_event_has_a_number_of_its_own() -> None:
    assert len({cls.TYPE for cls in EVENT_TYPES.values()}) == len(EVENT_TYPES) == 36


@pytest.mark.parametrize("change", [{"type": 99}, {"version": 2}, {"type": None}])
def test_an_event_of_a_newer_version_is_refused_and_says_what_to_do(change: dict[str, Any]) -> None:
    value = encode_event(ClusterBorn(cluster_id="c")) | change  # type: ignore[arg-type]  # a NewType
    with pytest.raises(CorruptData, match="start the Headrace version that wrote it, or a newer one"):
        decode_event(value)


def test_the_birth_of_an_older_version_is_that_of_a_cluster_with_local_logs() -> None:
    born = decode_line(b'{"type":0,"version":0,"event":"ClusterBorn","cluster_id":"c"}')
    image = EMPTY_IMAGE.replay([born], index=1)
    assert (image.engine, image.shares_logs) == (Engine.LOCAL, False)
    assert image_as_json(image)["engine"] == "local"


def test_an_engine_that_is_unknown_here_is_refused() -> None:
    value = encode_event(ClusterBorn(cluster_id=ClusterId("c"), engine=Engine.REDIS))
    assert value["engine"] == "redis"
    with pytest.raises(CorruptData, match="engine"):
        decode_event(value | {"engine": "tape"})


@given(histories())
def test_the_image_is_shown_as_json_whole(entries: list[Entry]) -> None:
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        image = image.replay(entry, index=index)
    shown = json.loads(json.dumps(image_as_json(image)))
    assert [topic["name"] for topic in shown["topics"]] == sorted(image.topic_ids)
    assert {broker["id"] for broker in shown["brokers"]} == set(image.brokers)
    published = [key for key in shown["catalog"] if not key.endswith("/cur")]
    assert len(published) == sum(len(catalog.entries) for catalog in image.catalog.values())
