"""The mirror while somebody else writes, sweeps or damages it: a reader sees a whole catalog, and a writer goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.limits import MIRROR_READ_TRIES_MAX
from headrace.base.ports import ObjectMeta
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier.chunks import ChunkRef
from headrace.storage.tier.following import followed
from headrace.storage.tier.mirror import MirrorWriter, remove_chunk, state_key, unnamed_chunks
from headrace.storage.tier.reader import DamagedHistory, Store
from tests.metadata.test_runs import TOPIC, ZERO
from tests.tier.conftest import CLUSTER
from tests.tier.test_chunks import TOPIC_THERE, Dict, few_in_a_chunk, merged, publish, trimmed

__all__ = ["few_in_a_chunk"]

STATE = state_key(TOPIC, ZERO)


def write(objects: Dict, catalog: PartitionCatalog, index: int, known: PartitionCatalog | None = None) -> int:
    writer = MirrorWriter(objects, cluster_id=CLUSTER)
    return writer.write_partition(TOPIC, ZERO, catalog, index, known=known)


def read(objects: Dict) -> PartitionCatalog:
    return Store(objects).catalog(TOPIC_THERE, ZERO)


def once(key: str, work: Callable[[], object]) -> Callable[[str], None]:
    """Do it at the first touch of what has this in its key."""
    left = [work]

    def on_touch(touched: str) -> None:
        if key in touched and left:
            left.pop()()

    return on_touch


def started(count: int = 10) -> PartitionCatalog:
    return publish(PartitionCatalog.empty(TOPIC, ZERO), count, 1)


@pytest.mark.parametrize(
    "ref",
    [[5_000, 10, "x"], [9, 2, "0" * 16], [-5, -5, "0" * 16], [0, 2, "x"], [0, 1 << 70, "0" * 16], [1, 1, "0" * 16]],
)
def test_a_damaged_state_is_written_anew(ref: list[Any]) -> None:
    objects, catalog = Dict(), started()
    write(objects, catalog, 1)
    state = json.loads(objects.objects[STATE])
    objects.objects[STATE] = json.dumps({**state, "chunks": [ref, *state["chunks"]]}).encode()
    write(objects, catalog, 2)
    assert read(objects) == catalog


@pytest.mark.parametrize("ref", [[9, 2, "0" * 16], [-5, 5, "0" * 16], [0, 2, "x"], [0, 2], {}, None])
def test_what_cannot_be_a_chunk_is_none(ref: object) -> None:
    with pytest.raises(CorruptData, match="chunk"):
        ChunkRef.from_json(ref)


def test_what_is_all_deleted_is_written_by_who_leads_next() -> None:
    objects, catalog = Dict(), started()
    write(objects, catalog, 1)
    write(objects, empty := trimmed(catalog, 10, 0), 2)
    assert not empty.entries
    assert read(objects) == empty


@pytest.mark.parametrize("known", [True, False])
def test_who_is_late_leaves_the_state_of_the_next_leader_alone(known: bool) -> None:
    objects, before = Dict(), started()
    write(objects, before, 1)
    late, now = publish(before, 1, 2), merged(before, 1, 4, 3)
    objects.on_put = once("/cur", lambda: write(objects, now, 9))
    write(objects, late, 5, before if known else None)
    assert read(objects) == now


@pytest.mark.parametrize("merges", [True, False])
def test_a_chunk_that_a_sweep_takes_while_it_is_written_is_there_in_the_end(merges: bool) -> None:
    objects, before = Dict(), started()
    write(objects, before, 1)
    catalog = merged(before, 1, 4, 3) if merges else trimmed(before, 1, 0)

    def sweep() -> None:
        for key in objects.chunks():
            del objects.objects[key]

    objects.on_put = once("/state", sweep)
    write(objects, catalog, 2, before)
    assert read(objects) == catalog
    for key in list(objects.objects):  # and no reader has to look for single documents
        if "/segments/" in key and int(key[-20:] if key[-3:] != "cur" else 0) < 6:
            del objects.objects[key]
    assert read(objects) == catalog


def test_who_writes_chunks_that_always_go_says_so() -> None:
    objects = Dict()

    def sweep(key: str) -> None:
        for each in objects.chunks() if key == STATE or "/chunks/" in key else ():
            del objects.objects[each]

    objects.on_put = sweep
    with pytest.raises(StorageFailure, match="tried again"):
        write(objects, started(), 1)


def test_a_chunk_that_was_written_again_since_it_was_listed_stays() -> None:
    objects = Dict()
    write(objects, started(), 1)
    del objects.objects[STATE]
    (meta, *_) = unnamed_chunks(objects, TOPIC, ZERO)
    remove_chunk(objects, TOPIC, ZERO, ObjectMeta(meta.key, meta.size, meta.modified_ms - 1))
    assert meta.key in objects.objects
    remove_chunk(objects, TOPIC, ZERO, meta)
    assert meta.key not in objects.objects


def test_a_reader_in_the_midst_of_a_merge_sees_what_is_there_then() -> None:
    objects, before = Dict(), started()
    write(objects, before, 1)
    now = merged(publish(before, 1, 2), 2, 8, 3)
    objects.on_get = once("/state", lambda: write(objects, now, 2, before))
    assert read(objects) == now


def test_a_reader_of_what_is_damaged_does_not_ask_for_ever() -> None:
    objects, catalog = Dict(), merged(started(), 1, 4, 3)
    write(objects, catalog, 1)
    for key in objects.chunks():
        del objects.objects[key]
    objects.reads.clear()
    with pytest.raises(DamagedHistory):
        read(objects)
    assert objects.reads.count(STATE) == 2
    state = json.loads(objects.objects[STATE])

    def change(key: str) -> None:
        if key == STATE:
            state["raft_index"] += 1
            objects.objects[STATE] = json.dumps(state).encode()

    objects.on_get = change
    with pytest.raises(DamagedHistory):
        read(objects)
    assert objects.reads.count(STATE) <= 2 + 1 + MIRROR_READ_TRIES_MAX


def test_a_reader_who_finds_damage_leaves_no_thread_to_the_garbage_collector() -> None:
    """The collector would wait for it at any point, such as in the midst of another thread's start."""
    objects, before = Dict(), set(threading.enumerate())
    write(objects, started(), 1)
    *_, other, last = sorted(key for key in objects.objects if "/segments/" in key and key[-1].isdecimal())
    objects.objects[last] = objects.objects[other]
    with pytest.raises(DamagedHistory, match="does not go on from") as damage:
        read(objects)
    assert set(threading.enumerate()) <= before
    del damage


def test_who_follows_reads_no_document_for_each_segment_that_was_merged() -> None:
    objects, known = Dict(), started(30)
    write(objects, known, 1)
    now = merged(publish(known, 20, 3), 0, 28, 2)
    write(objects, now, 2, known)
    objects.reads.clear()
    assert followed(Store(objects), TOPIC_THERE, ZERO, known) == now
    assert sum("/segments/" in key for key in objects.reads) <= 3
