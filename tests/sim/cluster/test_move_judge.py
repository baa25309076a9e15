"""The judge of hand-overs: silent on a sound catalog, and each way to break one by its name."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import pytest

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.metadata.segments import CatalogEntry, Entries, PartitionCatalog, Run, published_hash
from headrace.sim.cluster.moves.chain import Chains
from headrace.sim.cluster.moves.judge import MovesJudge
from headrace.sim.cluster.moves.store import SimStore, Stored
from headrace.sim.history import PartitionKey
from headrace.sim.loop import VirtualLoop
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record

TOPIC = TopicId(uuid.UUID(int=7))
KEY = PartitionKey(TOPIC, 0)
"""Three segments of two records each, in two leader epochs."""


class Scene:
    """A store with a history, its catalog, and what the judge says of them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.store = SimStore(loop, random.Random(1))
        self.catalog = PartitionCatalog.empty(TOPIC, PartitionIndex(0))
        for number in range(3):
            self._publish(2 * number, LeaderEpoch(number // 2))

    def publish_instead(self, start: int, value: bytes) -> None:
        """Another history from there on."""
        kept = [each.descriptor for each in self.catalog if each.descriptor.start_offset < start]
        self.catalog = PartitionCatalog.empty(TOPIC, PartitionIndex(0))
        for descriptor in kept:
            self.catalog = self.catalog.published(descriptor)
        for at in range(start, 6, 2):
            self._publish(at, LeaderEpoch(at // 4), value)

    def _publish(self, start: int, epoch: LeaderEpoch, value: bytes = b"value") -> None:
        records = [Record(start + place, 1_000 + start, None, value) for place in range(2)]
        batch = encode_batch(records, leader_epoch=epoch)
        source = ExportSource(
            cluster_id=ClusterId("cluster"),
            topic_id=TOPIC,
            topic="moved",
            partition=PartitionIndex(0),
            leader_epoch=epoch,
            start_offset=Offset(start),
            limit_offset=Offset(start + 2),
        )
        work = partial(export_segment, self.store.mount(), source, batch)
        loop = self.store.loop
        self.catalog = self.catalog.published(loop.run_until_complete(loop.run_in_executor(None, work)))

    def entry(self, start: int) -> CatalogEntry:
        return self.catalog.entries[Offset(start)]

    def put(self, start: int, entry: CatalogEntry) -> None:
        self.catalog = replace(self.catalog, entries=entries_of({**self.catalog.entries, Offset(start): entry}))

    def verdict(self) -> str:
        """Empty: nothing is wrong."""
        told: list[str] = []
        judge = MovesJudge(lambda kind, what: told.append(f"{kind}: {what}"), lambda what: None, [], self.store)
        judge._look_at(KEY, self.catalog)
        return "; ".join(told)


def entries_of(entries: Mapping[Offset, CatalogEntry]) -> Entries:
    """Each as it is, whatever the others are."""
    return Entries(Run.of([entries[start]]) for start in sorted(entries))


@pytest.fixture
def scene() -> Iterator[Scene]:
    loop = VirtualLoop(random.Random(7))
    yield Scene(loop)
    loop.workers.close()
    loop.close()


def test_a_sound_catalog_is_left_alone(scene: Scene) -> None:
    assert scene.verdict() == ""


def test_an_object_that_is_not_there(scene: Scene) -> None:
    del scene.store.objects[scene.entry(2).descriptor.key]
    assert "not there" in scene.verdict()


def test_an_object_that_holds_something_else(scene: Scene) -> None:
    key = scene.entry(2).descriptor.key
    data = bytearray(scene.store.objects[key].data)
    data[40] ^= 1
    scene.store.objects[key] = Stored(bytes(data), 0.0)
    assert "something else" in scene.verdict()


def test_a_gap(scene: Scene) -> None:
    scene.catalog = replace(
        scene.catalog, entries=entries_of({at: each for at, each in scene.catalog.entries.items() if at != 2})
    )
    assert "where 2 is due" in scene.verdict()


def test_a_link_to_something_else(scene: Scene) -> None:
    entry = scene.entry(2)
    scene.put(2, replace(entry, previous_hash="0" * 64, hash=published_hash("0" * 64, entry.descriptor)))
    assert "is linked to 00000000" in scene.verdict()


def test_a_hash_of_something_else(scene: Scene) -> None:
    entry = scene.entry(4)
    scene.put(4, replace(entry, descriptor=replace(entry.descriptor, leader_epoch=LeaderEpoch(9))))
    assert "not its own" in scene.verdict()


def test_a_head_of_something_else(scene: Scene) -> None:
    scene.catalog = replace(scene.catalog, head="0" * 64)
    assert "its head" in scene.verdict()


def test_segments_that_are_gone(scene: Scene) -> None:
    told: list[str] = []
    judge = MovesJudge(lambda kind, what: told.append(what), lambda what: None, [], scene.store)
    judge._look_at(KEY, scene.catalog)
    judge._look_at(KEY, PartitionCatalog(head=scene.entry(0).previous_hash))
    assert told == ["partition 0: it was 0 to 5, and is 0 to -1"]


def test_an_object_that_goes_while_it_is_named(scene: Scene) -> None:
    told: list[str] = []
    judge = MovesJudge(lambda kind, what: told.append(kind), lambda what: None, [], scene.store)
    judge._look_at(KEY, scene.catalog)
    scene.store.delete("something else")
    assert told == []
    scene.store.delete(scene.entry(2).descriptor.key)
    assert told == ["referred-object-deleted"]


def test_history_that_changes(scene: Scene) -> None:
    told: list[str] = []
    judge = MovesJudge(lambda kind, what: told.append(what), lambda what: None, [], scene.store)
    judge._look_at(KEY, scene.catalog)
    scene.publish_instead(2, b"other")
    judge._chains = Chains()  # else that alone would give it away
    judge._look_at(KEY, scene.catalog)
    assert told == ["partition 0: history has another batch at offset 2 than before"]
