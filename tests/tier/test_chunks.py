"""The mirror in chunks: whatever happens to a catalog, its writers and the store, readers see what was committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.base.ports import Buffer, ObjectMeta
from headrace.metadata.segments import PartitionCatalog
from headrace.storage.tier import chunks, following, mirror
from headrace.storage.tier.chunks import chunks_prefix
from headrace.storage.tier.following import followed
from headrace.storage.tier.mirror import MirroredTopic, MirrorWriter, remove_chunk, state_key, unnamed_chunks
from headrace.storage.tier.reader import DamagedHistory, Store
from tests.metadata.test_runs import TOPIC, ZERO, segment
from tests.tier.conftest import CLUSTER

TOPIC_THERE = MirroredTopic(cluster_id=CLUSTER, topic_id=TOPIC, name="orders", partitions=1)


@pytest.fixture(autouse=True)
def few_in_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CATALOG_CHUNK_ENTRIES", 3)
    monkeypatch.setattr(following, "CATALOG_CHUNK_ENTRIES", 3)


class Dict:
    """A store in memory that may fail at the next operations, before them or after, and counts its reads."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lasts: int | None = None
        """Changes after which it fails; None: never."""
        self.forgets = False
        """It has done what it says has failed."""
        self.reads: list[str] = []
        self.on_put: Callable[[str], object] = lambda key: None
        """Once it is done."""
        self.on_get: Callable[[str], object] = lambda key: None

    def _may_change(self) -> None:
        """Raises StorageFailure."""
        if self.lasts is not None:
            self.lasts -= 1
            if self.lasts < -1 or (self.lasts < 0 and not self.forgets):
                raise StorageFailure("The store is gone.")

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        self._may_change()
        if if_absent and key in self.objects:
            return False
        self.objects[key] = bytes(data)
        self.on_put(key)
        self._answer()
        return True

    def _answer(self) -> None:
        if self.lasts is not None and self.lasts < 0:
            raise StorageFailure("The answer is lost.")

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        if key not in self.objects:
            raise FileNotFoundError(key)
        found = self.objects[key]
        self.on_get(key)
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str) -> Iterable[ObjectMeta]:
        self.reads.append(f"{prefix}*")
        return [ObjectMeta(key, len(data), 0) for key, data in sorted(self.objects.items()) if key.startswith(prefix)]

    def directories(self, prefix: str) -> Sequence[str]:
        return sorted({key[len(prefix) :].split("/")[0] for key in self.objects if key.startswith(prefix)})

    def delete(self, key: str) -> None:
        self._may_change()
        self.objects.pop(key, None)
        self._answer()

    def discard_unfinished(self, before_ms: int) -> int:
        return 0

    def chunks(self) -> Sequence[str]:
        return [key for key in self.objects if key.startswith(chunks_prefix(TOPIC, ZERO))]


def publish(catalog: PartitionCatalog, count: int, number: int) -> PartitionCatalog:
    for at in range(count):
        start = catalog.next_offset
        catalog = catalog.published(segment(start, start + 1 + (number + at) % 3, number * 100 + at))
    return catalog


def merged(catalog: PartitionCatalog, first: int, count: int, number: int) -> PartitionCatalog:
    there = [entry.descriptor for entry in catalog][:-1][first : first + count]
    if not there:
        return catalog
    one = segment(there[0].start_offset, there[-1].end_offset, number * 100)
    return catalog.replaced(replace(one, last_epoch=there[-1].last_epoch))


def trimmed(catalog: PartitionCatalog, count: int, into: int) -> PartitionCatalog:
    there = [entry.descriptor for entry in catalog]
    gone = there[:count]
    end: int = gone[-1].next_offset if gone else max(catalog.log_start_offset, catalog.start_offset)
    if len(gone) < len(there):
        end = min(end + into, there[len(gone)].end_offset)
    return catalog.deleted(Offset(end), tuple(each.sha256 for each in gone))


changes = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("merge"), st.integers(0, 6), st.integers(1, 5)),
    st.tuples(st.just("trim"), st.integers(0, 4), st.integers(0, 2)),
)
writes = st.one_of(
    st.just(("well", 0, False)),
    st.just(("well", 0, False)),
    st.tuples(st.just("dies"), st.integers(0, 8), st.booleans()),
    st.tuples(st.just("another writes"), st.integers(0, 3), st.just(False)),
    st.just(("not at all", 0, False)),
)


def changed(catalog: PartitionCatalog, change: tuple[str, int, int], number: int) -> PartitionCatalog:
    what, one, other = change
    if what == "publish":
        return publish(catalog, one, number)
    return merged(catalog, one, other, number) if what == "merge" else trimmed(catalog, one, other)


@settings(deadline=None)
@given(st.lists(st.tuples(changes, writes, st.booleans()), max_size=14))
def test_a_reader_sees_what_was_committed_whoever_writes_and_dies(steps: Any) -> None:
    objects = Dict()
    store, catalog = Store(objects), PartitionCatalog.empty(TOPIC, ZERO)
    before = [catalog]
    known: PartitionCatalog | None = None
    read, shown = catalog, 0
    for number, (change, (how, after, forgets), sweeps) in enumerate(steps, 1):
        catalog = changed(catalog, change, number)
        before.append(catalog)
        if how != "not at all" and catalog.end_offset >= 0:
            objects.lasts, objects.forgets = (after, forgets) if how == "dies" else (None, False)
            writer = MirrorWriter(objects, cluster_id=CLUSTER)
            if how == "another writes":  # a deposed writer that is behind; then nobody knows of the other
                writer.write_partition(TOPIC, ZERO, before[-1 - min(after, number)], number - after)
            else:
                try:
                    writer.write_partition(TOPIC, ZERO, catalog, number, known=known)
                    known, shown = catalog, number
                except StorageFailure:
                    known = None
            objects.lasts = None
        if sweeps:
            for meta in unnamed_chunks(objects, TOPIC, ZERO):
                remove_chunk(objects, TOPIC, ZERO, meta)
        found = store.catalog(TOPIC_THERE, ZERO)
        assert found in before[shown:]
        assert followed(store, TOPIC_THERE, ZERO, read) == found
        read = found
    if catalog.end_offset >= 0:
        MirrorWriter(objects, cluster_id=CLUSTER).write_partition(TOPIC, ZERO, catalog, len(steps) + 1, known=known)
        assert store.catalog(TOPIC_THERE, ZERO) == catalog
        check_documents(objects, catalog)


def check_documents(objects: Dict, catalog: PartitionCatalog) -> None:
    """Few are read, none is looked for; what is published and not replaced has its own document."""
    objects.reads.clear()
    Store(objects).catalog(TOPIC_THERE, ZERO)
    state = json.loads(objects.objects[state_key(TOPIC, ZERO)])
    assert len(state["singles"]) < 3
    assert len(objects.reads) == 1 + len(state["chunks"]) + len(state["singles"])
    assert not [key for key in objects.reads if key.endswith("*")]
    prefix = mirror.segments_prefix(TOPIC, ZERO)
    singles = {int(key.removeprefix(prefix)) for key in objects.objects if key.startswith(prefix) and key[-1] != "r"}
    assert singles == {entry.descriptor.start_offset for entry in catalog if not entry.is_substitute}


@settings(deadline=None)
@given(st.lists(changes, max_size=10), st.integers(0, 20), st.sampled_from([None, b"{}", b"\xff"]), st.booleans())
def test_a_chunk_that_is_lost_or_damaged_is_done_without_and_written_anew(
    steps: Any, which: int, damage: bytes | None, forgets: bool
) -> None:
    objects, catalog = Dict(), PartitionCatalog.empty(TOPIC, ZERO)
    for number, change in enumerate(steps, 1):
        catalog = changed(catalog, change, number)
    catalog = publish(catalog, 7, 99)
    writer = MirrorWriter(objects, cluster_id=CLUSTER)
    writer.write_partition(TOPIC, ZERO, catalog, 50)
    key = sorted(objects.chunks())[which % len(objects.chunks())]
    there = objects.objects[key]
    if damage is None:
        del objects.objects[key]
    else:
        objects.objects[key] = damage
    start, end, _ = key.rsplit("/", 1)[1].split("-")
    inside = [entry for entry in catalog if int(start) <= entry.descriptor.start_offset <= int(end)]
    if any(entry.is_substitute for entry in inside):
        with pytest.raises(DamagedHistory):
            Store(objects).catalog(TOPIC_THERE, ZERO)
    else:
        assert Store(objects).catalog(TOPIC_THERE, ZERO) == catalog
    writer.write_partition(TOPIC, ZERO, catalog, 51)
    assert objects.objects[key] == there
    assert Store(objects).catalog(TOPIC_THERE, ZERO) == catalog


def test_a_mirror_of_an_earlier_version_is_read_and_gets_its_chunks() -> None:
    objects, catalog = Dict(), publish(PartitionCatalog.empty(TOPIC, ZERO), 10, 1)
    writer = MirrorWriter(objects, cluster_id=CLUSTER)
    writer.write_partition(TOPIC, ZERO, catalog, 1)
    state = json.loads(objects.objects[state_key(TOPIC, ZERO)])
    older = {name: value for name, value in state.items() if name not in ("chunks", "singles")}
    objects.objects[state_key(TOPIC, ZERO)] = json.dumps(older).encode()
    for key in objects.chunks():
        del objects.objects[key]
    assert Store(objects).catalog(TOPIC_THERE, ZERO) == catalog
    later = publish(catalog, 1, 2)
    writer.write_partition(TOPIC, ZERO, later, 2, known=catalog)
    assert len(objects.chunks()) == 3
    assert Store(objects).catalog(TOPIC_THERE, ZERO) == later


def test_a_publication_writes_its_own_document_and_now_and_then_a_chunk() -> None:
    objects, catalog = Dict(), PartitionCatalog.empty(TOPIC, ZERO)
    writer = MirrorWriter(objects, cluster_id=CLUSTER)
    written = []
    for number in range(1, 13):
        known, catalog = catalog, publish(catalog, 1, number)
        written.append(writer.write_partition(TOPIC, ZERO, catalog, number, known=known))
    assert written == [3, 3, 4] * 4  # its own, `cur` and `state`
    assert len(objects.chunks()) == 4


def test_a_chunk_that_is_counted_meanwhile_is_not_removed() -> None:
    objects, catalog = Dict(), publish(PartitionCatalog.empty(TOPIC, ZERO), 4, 1)
    MirrorWriter(objects, cluster_id=CLUSTER).write_partition(TOPIC, ZERO, catalog, 1)
    state, key = objects.objects.pop(state_key(TOPIC, ZERO)), objects.chunks()[0]
    (meta,) = unnamed_chunks(objects, TOPIC, ZERO)
    assert meta.key == key
    objects.objects[state_key(TOPIC, ZERO)] = state
    remove_chunk(objects, TOPIC, ZERO, meta)
    assert Store(objects).catalog(TOPIC_THERE, ZERO) == catalog
    assert objects.chunks() == [key]


def test_what_was_published_and_replaced_since_the_last_write_has_no_document_of_its_own() -> None:
    objects, known = Dict(), publish(PartitionCatalog.empty(TOPIC, ZERO), 2, 1)
    writer = MirrorWriter(objects, cluster_id=CLUSTER)
    writer.write_partition(TOPIC, ZERO, known, 1)
    catalog = merged(publish(known, 4, 2), 2, 2, 3)
    writer.write_partition(TOPIC, ZERO, catalog, 4, known=known)
    check_documents(objects, catalog)
    assert Store(objects).catalog(TOPIC_THERE, ZERO) == catalog
