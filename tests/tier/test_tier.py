"""Durable segments: what was exported is read back and proven; whatever is changed is found and named."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, StorageFailure, UsageError
from headrace.base.ids import ClusterId, Offset, PartitionIndex
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.objects import open_objects
from headrace.storage.tier.export import export_segment
from headrace.storage.tier.format import MAGIC, TRAILER, EpochStart, decode_footer, encode_footer
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter, state_key
from headrace.storage.tier.reader import DamagedHistory, Store
from headrace.wire.batches import decode_records

ZERO = PartitionIndex(0)


def records_of(store: Store, start: int, end: int) -> list[Any]:
    found = []
    for batch, _ in store.batches(store.topic("orders"), ZERO, start, end):
        found += [record for record in decode_records(batch) if start <= record.offset < end]
    return found


def test_history_is_read_back_verbatim_without_a_broker(three_segments: Any) -> None:
    store = Store(three_segments.objects)
    assert [(topic.name, topic.partitions) for topic in store.topics()] == [("orders", 2)]
    batches = [bytes(batch) for batch, _ in store.batches(store.topic("orders"), ZERO, 0, 1_000)]
    assert batches == three_segments.batches
    assert store.catalog(store.topic("orders"), ZERO) == three_segments.catalog
    assert store.catalog(store.topic("orders"), PartitionIndex(1)).next_offset == 0
    proof = store.verify(store.topic("orders"), ZERO)
    assert (proof.segments, proof.records, proof.head) == (3, len(three_segments.records), three_segments.catalog.head)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(start=st.integers(0, 30), length=st.integers(1, 30), slice_bytes=st.integers(1, 2_000))
def test_any_range_in_any_slices_is_exactly_its_records(
    three_segments: Any, start: int, length: int, slice_bytes: int
) -> None:
    store, end = Store(three_segments.objects), start + length
    expected = [record for record in three_segments.records if start <= record.offset < end]
    assert records_of(store, start, end) == expected
    slices = store.slices("orders", 0, three_segments.catalog, start, end, slice_bytes=slice_bytes)
    found = []
    for part in slices:
        for buffer, batches in store.read(pickle.loads(pickle.dumps(part)), read_bytes=100):
            for at, header in batches:
                records = decode_records(buffer[at : at + header.size])
                found += [record for record in records if part.first_offset <= record.offset < part.next_offset]
    assert found == expected


def test_a_footer_tells_epochs_index_producers_and_survives_the_round(history: Any) -> None:
    batches = [history.batch([b"x" * 30_000], epoch=at // 3) for at in range(8)]
    source = history.source(producers=[{"producer_id": 7, "epoch": 0}])
    descriptor = export_segment(history.objects, source, iter(batches))
    body = history.objects.get(descriptor.key)
    footer = decode_footer(body)
    assert body[: descriptor.batch_bytes] == b"".join(batches)
    assert footer.leader_epochs == (EpochStart(0, 0), EpochStart(1, 3), EpochStart(2, 6))
    assert [entry.base_offset for entry in footer.index] == [0, 3, 6]
    assert [entry.position for entry in footer.index] == [0, sum(map(len, batches[:3])), sum(map(len, batches[:6]))]
    assert footer.producers == [{"producer_id": 7, "epoch": 0}]
    assert (footer.first_timestamp_ms, footer.last_timestamp_ms) == (1_000, 1_007)
    assert decode_footer(encode_footer(footer)) == footer
    assert [footer.floor(offset).base_offset for offset in (0, 2, 3, 5, 7)] == [0, 0, 3, 3, 6]
    assert export_segment(history.objects, source, iter(batches)) == descriptor


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_offset": Offset(1)}, "where 1 should follow"),
        ({"limit_offset": Offset(3)}, "below 3: not exported"),
    ],
)
def test_nothing_misplaced_or_above_the_bound_is_exported(history: Any, changes: Any, words: str) -> None:
    batches = [history.batch([b"v"] * 2), history.batch([b"v"] * 2)]
    with pytest.raises(CorruptData, match=words):
        export_segment(history.objects, history.source(**changes), batches)
    for wrong in ([], [batches[1]], [batches[0], batches[0]], [batches[0][:-1]], [batches[0][:-1] + b"?"]):
        with pytest.raises(CorruptData):
            export_segment(history.objects, history.source(), wrong)
    assert [meta.key for meta in history.objects.list("clusters/")] == []


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize("place", [0.0, 0.05, 0.4, 0.9, 1.0])
def test_any_changed_byte_of_an_object_is_found_and_the_object_named(three_segments: Any, place: float) -> None:
    store = Store(three_segments.objects)
    second = list(three_segments.catalog)[1].descriptor
    body = three_segments.objects.get(second.key)
    three_segments.objects.put(second.key, flip(body, int(place * (len(body) - 1))), if_absent=False)
    with pytest.raises(DamagedHistory, match=rf"topic 'orders', partition 0 .*{second.key}.*SHA-256"):
        store.verify(store.topic("orders"), ZERO)


def test_a_range_read_finds_every_changed_byte_of_the_batches_that_it_reads(three_segments: Any) -> None:
    store, segment = Store(three_segments.objects), list(three_segments.catalog)[2].descriptor
    body = three_segments.objects.get(segment.key)
    batches = [header.base_offset for _, header in store.batches(store.topic("orders"), ZERO, 0, 10**6)][-4:]
    for at in range(segment.batch_bytes):
        three_segments.objects.put(segment.key, flip(body, at), if_absent=False)
        with pytest.raises(DamagedHistory) as caught:
            records_of(store, 0, 10**6)
        assert caught.value.key == segment.key
        assert caught.value.offset in (*batches, segment.start_offset)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    for lost in (body[: segment.batch_bytes - 1], b""):
        three_segments.objects.put(segment.key, lost, if_absent=False)
        with pytest.raises(DamagedHistory):
            records_of(store, 0, 10**6)


def test_a_slice_that_ends_elsewhere_than_planned_is_damage(three_segments: Any) -> None:
    store = Store(three_segments.objects)
    for part in store.slices("orders", 0, three_segments.catalog, 0, 10**6, slice_bytes=100):
        assert list(store.read(part))
        with pytest.raises(DamagedHistory, match=f"end before offset {part.end_offset + 1}"):
            list(store.read(part._replace(end_offset=part.end_offset + 1)))


def test_a_footer_that_is_cut_foreign_or_changed_is_corrupt(three_segments: Any) -> None:
    body = three_segments.objects.get(next(iter(three_segments.catalog)).descriptor.key)
    for wrong in (
        b"",
        body[-10:],
        body[:-1],
        body[-TRAILER.size :],
        flip(body, len(body) - 40),
        body[:-8] + b"ELSEWISE",
        body[: -TRAILER.size] + TRAILER.pack(2**31, 0, 1, 0, MAGIC),
        body[: -TRAILER.size] + TRAILER.pack(10, 0, 2, 0, MAGIC),
    ):
        with pytest.raises(CorruptData):
            decode_footer(wrong)


def test_a_lost_or_swapped_catalog_document_is_found(three_segments: Any) -> None:
    store, objects = Store(three_segments.objects), three_segments.objects
    topic = store.topic("orders")
    keys = [meta.key for meta in objects.list("storage/topics/") if meta.key[-1].isdigit()]
    assert len(keys) == 3
    for key, content in ((keys[1], None), (keys[2], None), (keys[1], keys[0]), (keys[0], keys[1]), (keys[1], "{")):
        saved = {name: objects.get(name) for name in keys}
        if content is None:
            objects.delete(key)
        else:
            objects.put(key, saved.get(content, b"{"), if_absent=False)
        with pytest.raises(DamagedHistory):
            store.catalog(topic, ZERO)
        for name, data in saved.items():
            objects.put(name, data, if_absent=False)
    assert store.catalog(topic, ZERO) == three_segments.catalog


def test_a_reader_between_two_writes_of_the_mirror_sees_the_older_catalog(three_segments: Any) -> None:
    store, before = Store(three_segments.objects), three_segments.catalog
    state = three_segments.objects.get(state_key(three_segments.topic.topic_id, ZERO))
    three_segments.export([three_segments.batch([b"late"])])
    three_segments.objects.put(state_key(three_segments.topic.topic_id, ZERO), state, if_absent=False)
    assert store.catalog(store.topic("orders"), ZERO) == before


def documents(history: Any) -> dict[str, dict[str, Any]]:
    keys = [meta.key for meta in history.objects.list("storage/")]
    return {key: json.loads(history.objects.get(key)) for key in keys}


def test_the_mirror_is_repaired_from_the_image_whatever_was_lost(three_segments: Any) -> None:
    wanted, mirror = documents(three_segments), three_segments.mirror
    for key in wanted:
        for damage in (None, b"{}", b"\xff"):
            if damage is None:
                three_segments.objects.delete(key)
            else:
                three_segments.objects.put(key, damage, if_absent=False)
            mirror.write_topic(three_segments.topic)
            mirror.write_partition(three_segments.topic.topic_id, ZERO, three_segments.catalog, 4)
            repaired = documents(three_segments)
            assert {**repaired[key], "raft_index": 0} == {**wanted[key], "raft_index": 0}


def test_a_mirror_that_is_ahead_is_left_alone_and_one_that_is_right_is_not_rewritten(three_segments: Any) -> None:
    topic_id, mirror = three_segments.topic.topic_id, three_segments.mirror
    before = documents(three_segments)
    empty = PartitionCatalog.empty(topic_id, ZERO)
    assert mirror.write_partition(topic_id, ZERO, empty, raft_index=3) == 0
    assert mirror.write_partition(topic_id, ZERO, three_segments.catalog, raft_index=9) == 0
    assert not mirror.write_topic(three_segments.topic)
    assert documents(three_segments) == before


def test_topics_of_one_name_are_told_apart_by_id_and_deleted_ones_are_gone(history: Any) -> None:
    other = ClusterId("other")
    twin = MirroredTopic(
        cluster_id=other, topic_id=history.topic.topic_id.__class__(int=5), name="orders", partitions=1
    )
    with pytest.raises(StorageFailure, match="cluster test-cluster"):
        MirrorWriter(history.objects, cluster_id=other).write_topic(
            MirroredTopic(cluster_id=other, topic_id=history.topic.topic_id, name="orders", partitions=1)
        )
    assert MirrorWriter(history.objects, cluster_id=other).write_topic(twin)
    store = Store(history.objects, "memory:///")
    with pytest.raises(UsageError, match=str(twin.topic_id)):
        store.topic("orders")
    assert store.topic(str(twin.topic_id)) == twin
    with pytest.raises(UsageError, match="holds no topic 'nothing'; it holds: orders, orders"):
        store.topic("nothing")
    assert MirrorWriter(history.objects, cluster_id=other).write_topic(replace(twin, deleted=True, raft_index=9))
    assert store.topic("orders") == history.topic


def test_the_sizes_of_slices_are_even(history: Any) -> None:
    history.export([history.batch([b"x" * 10_000] * 7) for _ in range(100)])
    slices = Store(history.objects).slices("orders", 0, history.catalog, 0, 700, slice_bytes=2_000_000)
    sizes = [part.end_position - part.position for part in slices]
    assert len(sizes) in (3, 4)
    assert max(sizes) < 1.3 * min(sizes)


READ_WITH_NOTHING_BUT_THE_STORE = """
import sys
from headrace.storage.tier.reader import Store
store = Store.open(sys.argv[1])
print(store.verify(store.topic("orders"), 0).records)
assert not [name for name in sys.modules if name.startswith(("headrace.broker", "headrace.net", "obstore"))]
"""


def test_a_directory_is_read_by_a_process_that_has_only_the_store(tmp_path: Path, three_segments: Any) -> None:
    target = open_objects(str(tmp_path))
    for meta in three_segments.objects.list(""):
        target.put(meta.key, three_segments.objects.get(meta.key))
    command = [sys.executable, "-c", READ_WITH_NOTHING_BUT_THE_STORE, f"file://{tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(three_segments.records))]
