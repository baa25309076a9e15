"""Laws of the metadata image: whatever happens to a cluster, its state is a function of the events alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from functools import reduce
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex, TopicPartition
from headrace.metadata.codec import decode_events, encode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import IsrChanged, LeaderChanged, MetadataEvent, TopicCreated
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.segments import Link
from headrace.metadata.values import PartitionImage
from tests.metadata.histories import BROKERS, Entry, histories, wild_creations, wild_events, wild_partition_changes


def replay_all(entries: list[Entry], image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    for index, entry in enumerate(entries, image.index + 1):
        image = image.replay(entry, index=index)
    return image


@given(histories())
def test_a_snapshot_replays_to_the_same_image(entries: list[Entry]) -> None:
    image = replay_all(entries)
    assert EMPTY_IMAGE.replay(image.snapshot(), index=image.index) == image


@given(st.lists(wild_events))
def test_a_snapshot_of_a_senseless_image_does_too(events: list[MetadataEvent]) -> None:
    image = EMPTY_IMAGE.replay(events)
    assert EMPTY_IMAGE.replay(image.snapshot()) == image


@given(histories())
def test_replaying_a_whole_history_again_changes_nothing(entries: list[Entry]) -> None:
    image = replay_all(entries)
    assert image.replay(chain.from_iterable(entries)) == image


@given(st.lists(wild_events), wild_events)
def test_replay_takes_any_event_and_takes_it_once(events: list[MetadataEvent], event: MetadataEvent) -> None:
    once = EMPTY_IMAGE.replay(events).replay([event])
    assert once.replay([event]) == once


@given(wild_creations, st.lists(wild_partition_changes, max_size=6))
def test_no_event_ever_lowers_an_epoch(created: TopicCreated, events: list[LeaderChanged | IsrChanged]) -> None:
    image = EMPTY_IMAGE.replay([created])
    for event in events:
        before = image.topics[created.topic_id].partitions
        at = PartitionIndex(event.partition % (len(before) + 1))  # sometimes one that is not there
        image = image.replay([replace(event, topic_id=created.topic_id, partition=at)])
        for old, new in zip(before, image.topics[created.topic_id].partitions, strict=True):
            assert new == old or new.partition_epoch > old.partition_epoch
            assert new.leader_epoch >= old.leader_epoch
            assert new.leader == old.leader or new.leader_epoch > old.leader_epoch


@given(histories(), st.integers(0, 20), st.integers(0, 20))
def test_an_entry_at_or_below_the_image_s_index_is_old_news(entries: list[Entry], at: int, index: int) -> None:
    image = replay_all(entries)
    if entries:
        again = image.replay(entries[at % len(entries)], index=index)
        assert (again is image) == (index <= image.index)


@given(histories(), st.data())
def test_every_road_to_an_image_leads_to_the_same_one(entries: list[Entry], data: st.DataObject) -> None:
    """One entry at a time; all as one entry; over a snapshot taken anywhere; over the bytes of the commit log."""
    image = replay_all(entries)
    assert EMPTY_IMAGE.replay(chain.from_iterable(entries), index=image.index) == image
    cut = data.draw(st.integers(0, len(entries)))
    middle = replay_all(entries[:cut])
    restored = EMPTY_IMAGE.replay(decode_events(encode_events(middle.snapshot())), index=middle.index)
    assert replay_all(entries[cut:], restored) == image
    assert replay_all([decode_events(encode_events(entry)) for entry in entries]) == image


@given(histories())
def test_the_image_s_invariants_hold_after_every_entry(entries: list[Entry]) -> None:
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        before, image = image, image.replay(entry, index=index)
        check_invariants(image)
        check_epochs_rise(before, image)


def check_invariants(image: MetadataImage) -> None:
    assert {topic.name: topic.id for topic in image.topics.values()} == dict(image.topic_ids)
    for topic_id, topic in image.topics.items():
        assert topic.id == topic_id
        assert [partition.index for partition in topic.partitions] == list(range(len(topic.partitions)))
        for partition in topic.partitions:
            assert partition.isr, "the ISR is never empty"
            assert [member for member in partition.replicas if member in partition.isr] == list(partition.isr)
            assert partition.leader in (*partition.isr, NO_LEADER)
            assert partition.leader == NO_LEADER or not image.brokers[partition.leader].fenced
            assert all(replica in image.brokers for replica in partition.replicas)
            assert len(partition.isr) == 1 or not any(image.brokers[member].fenced for member in partition.isr)
            coming, going = set(partition.adding), set(partition.removing)
            assert coming | going <= set(partition.replicas)
            assert not coming & going
            assert going < set(partition.replicas), "somebody stays"
            assert going == set(partition.replicas[partition.replication_factor :]), "those that go stand last"
            check_move(partition)
            assert partition.kept_in is None or (partition.leader, len(partition.isr)) == (NO_LEADER, 1)
    partitions = [partition for _, partition in image.all_partitions()]
    assert dict(image.leaderships) == Counter(one.leader for one in partitions if one.leader != NO_LEADER)
    assert dict(image.copies) == Counter(replica for one in partitions for replica in one.replicas)
    assert dict(image.preferences) == Counter(one.replicas[0] for one in partitions)
    under_way = {TopicPartition(topic.id, one.index): one.move for topic, one in image.all_partitions()}
    assert dict(image.moves) == {key: move for key, move in under_way.items() if move is not None}
    for key, catalog in image.catalog.items():
        assert image.partition(key) is not None
        entries = list(catalog)
        assert len(entries) == len(catalog.entries)
        assert catalog.log_start_offset <= catalog.next_offset
        assert all(entry.descriptor.next_offset > catalog.log_start_offset for entry in entries)
        assert catalog.batch_bytes == sum(entry.descriptor.batch_bytes for entry in entries)
        if entries:
            assert reduce(link_hash, catalog.deletions, entries[-1].hash) == catalog.head
            assert entries[-1].descriptor.end_offset == catalog.end_offset
        for one, following in pairwise(entries):
            assert following.descriptor.start_offset == one.descriptor.end_offset + 1
            assert following.previous_hash == reduce(link_hash, following.deletions, one.hash)


def link_hash(previous: str, link: Link) -> str:
    """Over canonical JSON, as the documentation has it."""
    kind = "replaced" if link and all(len(each) == 20 + 1 + 20 + 1 + 64 for each in link) else "deleted"
    text = json.dumps([previous, kind, list(link)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_move(partition: PartitionImage) -> None:
    assert partition.recovered_epoch <= partition.assignment_epoch <= partition.leader_epoch
    move = partition.move
    if move is not None:
        owner = move.source if move.state is None else move.target
        assert (partition.replicas, partition.isr) == ((owner,), (owner,))
        assert not partition.is_reassigned
        assert move.source != move.target or move.state is not None


def check_epochs_rise(before: MetadataImage, after: MetadataImage) -> None:
    assert after.next_producer_id >= before.next_producer_id
    for broker_id, broker in before.brokers.items():
        assert broker_id not in after.brokers or after.brokers[broker_id].epoch >= broker.epoch
    for topic in before.topics.values():
        for old in topic.partitions:
            new = after.partition(TopicPartition(topic.id, old.index))
            if new is None:
                assert topic.id not in after.topics, "a topic's partitions go only with the topic"
            elif new != old:
                assert new.partition_epoch > old.partition_epoch
                assert (new.leader_epoch > old.leader_epoch) or (
                    new.leader_epoch == old.leader_epoch and new.leader == old.leader
                ), "one leader per epoch"


Held = dict[TopicPartition, tuple[int, int, tuple[int, ...]]]


def held_by(image: MetadataImage, node: int) -> tuple[Held, Held]:
    """The slow twin: what a broker leads and follows, read off the whole image."""
    leads: Held = {}
    follows: Held = {}
    for topic in image.topics.values():
        for partition in topic.partitions:
            if node in partition.replicas:
                facts = (partition.leader_epoch, partition.partition_epoch, partition.isr)
                (leads if partition.leader == node else follows)[TopicPartition(topic.id, partition.index)] = facts
    return leads, follows


@given(histories(), st.sampled_from(BROKERS), st.integers(1, 4))
def test_local_changes_add_up_to_what_the_image_says(entries: list[Entry], node: BrokerId, stride: int) -> None:
    """Also where several entries come as one delta, as after a snapshot."""
    image = EMPTY_IMAGE
    leads: Held = {}
    follows: Held = {}
    for at in range(0, len(entries), stride):
        delta = ImageDelta.of(image, chain.from_iterable(entries[at : at + stride]), index=image.index + 1)
        assert delta.local_changes(node) == ImageDelta(delta.before, delta.after).local_changes(node)
        changes = delta.local_changes(node)
        for key in changes.deleted:
            assert (leads.pop(key, None) or follows.pop(key, None)) is not None, "only what was held is deleted"
        for changed, mine, other in ((changes.leaders, leads, follows), (changes.followers, follows, leads)):
            for local in changed:
                facts = (local.partition.leader_epoch, local.partition.partition_epoch, local.partition.isr)
                other.pop(local.key, None)
                assert mine.get(local.key) != facts, "only what changed is told"
                mine[local.key] = facts
        image = delta.after
        assert (leads, follows) == held_by(image, node)


@given(histories(), st.sampled_from(BROKERS))
def test_a_topic_is_reconfigured_exactly_when_its_configs_or_the_broker_s_or_the_replicas_that_stay_change(
    entries: list[Entry], node: BrokerId
) -> None:
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        delta = ImageDelta.of(image, entry, index=index)
        before, image = image, delta.after
        expected = set()
        for topic in image.topics.values():
            known = before.topics.get(topic.id)
            held = any(node in partition.replicas for partition in topic.partitions)
            if known is None or not held:
                continue
            configs = [
                (
                    state.broker_configs.get(node),
                    state.broker_configs.get(None),
                    state.topics[topic.id].configs,
                    min(
                        len(set(one.replicas) - set(others))
                        for one in state.topics[topic.id].partitions
                        for others in (one.adding, one.removing)
                    ),
                )
                for state in (before, image)
            ]
            if configs[0] != configs[1]:
                expected.add(topic.name)
        assert {topic.name for topic in delta.local_changes(node).reconfigured} == expected
