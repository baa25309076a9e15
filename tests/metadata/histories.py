"""Histories of a cluster, for laws: what controllers decide on random requests, and events that nobody would decide."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hypothesis import strategies as st

from headrace.base.ids import (
    NO_LEADER,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.controller.access.quotas import QuotaAlteration, QuotaOp, alter_quotas
from headrace.controller.brokers import allocate_producer_ids, fence_broker, register_broker, unfence_broker
from headrace.controller.configs import Alteration, AlterOp, ResourceAlteration, ResourceType, alter_configs
from headrace.controller.decision import Decision
from headrace.controller.durable import delete_history, publish_segment, replace_segments
from headrace.controller.growth import grow_replicas
from headrace.controller.isr import IsrMember, IsrProposal, alter_isr
from headrace.controller.leaders import Election, elect_leaders
from headrace.controller.moves import (
    Seal,
    SealedTail,
    fail_target,
    finish_move,
    give_up_move,
    prove_move,
    seal_move,
    tend_moves,
)
from headrace.controller.reassignments import Reassignment, finish_reassignments, reassign_partitions
from headrace.controller.recovery import RecoveryWish, recover_partitions
from headrace.controller.removal import remove_broker
from headrace.controller.topic_changes import NewPartitions, TopicRef, create_partitions, delete_topics
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata import events as ev
from headrace.metadata.access import acls as acl
from headrace.metadata.access.quotas import CLIENT_ID, CLIENT_KEYS, USER, quota_entity
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.levels import METADATA_LEVEL
from headrace.metadata.moves import Move, StorageStateSealed
from headrace.metadata.pieces import piece_of
from headrace.metadata.segment_keys import SegmentKey
from headrace.metadata.segments import CatalogEntry, SegmentDescriptor, published_hash
from headrace.metadata.values import Endpoint, Engine, PartitionImage

Command = Callable[[MetadataImage], Decision[Any]]
Entry = tuple[MetadataEvent, ...]

NAMES = ("orders", "flights", "x")
BROKERS = tuple(map(BrokerId, range(1, 4)))
TOPIC_IDS = tuple(TopicId(uuid.UUID(int=n, version=4)) for n in range(1, 3))
CLUSTER = ClusterId("cluster-1")

names = st.sampled_from(NAMES)
brokers = st.sampled_from(BROKERS)
fresh_topic_ids = st.uuids(version=4).map(TopicId)


def _register(broker: BrokerId, directory: int, rack: str | None, unfenced: bool) -> Command:
    return lambda image: register_broker(
        image,
        cluster_id=CLUSTER,
        broker_id=broker,
        directory_id=DirectoryId(uuid.UUID(int=directory)),
        endpoints=(Endpoint(listener="PLAINTEXT", host=f"host{broker}", port=9092),),
        rack=rack,
        engine=image.engine,
        unfenced=unfenced,
    )


def _fence(broker: BrokerId) -> Command:
    def decide(image: MetadataImage) -> Decision[Any]:
        known = image.brokers.get(broker)
        return Decision((), None) if known is None else fence_broker(image, broker_id=broker, broker_epoch=known.epoch)

    return decide


def _unfence(broker: BrokerId) -> Command:
    def decide(image: MetadataImage) -> Decision[Any]:
        known = image.brokers.get(broker)
        if known is None:
            return Decision((), None)
        return unfence_broker(image, broker_id=broker, broker_epoch=known.epoch)

    return decide


def _remove(broker: BrokerId) -> Command:
    return lambda image: remove_broker(image, broker_id=broker)


def _create(topic_id: TopicId, name: str, partitions: int, factor: int, configs: dict[str, str | None]) -> Command:
    new = NewTopic(topic_id=topic_id, name=name, partitions=partitions, replication_factor=factor, configs=configs)
    return lambda image: create_topics(image, [new], broker_configs={})


def _delete(name: str) -> Command:
    return lambda image: delete_topics(image, [TopicRef(name=name)], broker_configs={})


def _grow(name: str, count: int) -> Command:
    return lambda image: create_partitions(image, [NewPartitions(name=name, count=count)])


def _alter(kind: ResourceType, name: str, key: str, value: str, remove: bool) -> Command:
    alteration = Alteration(key, AlterOp.DELETE if remove else AlterOp.SET, value)
    return lambda image: alter_configs(image, [ResourceAlteration(kind, name, (alteration,))])


def _limit(entity: dict[str, str | None], key: str, value: float | None) -> Command:
    alteration = QuotaAlteration(tuple(entity.items()), (QuotaOp(key, value),))
    return lambda image: alter_quotas(image, [alteration])


def _allocate(broker: BrokerId) -> Command:
    def decide(image: MetadataImage) -> Decision[Any]:
        epoch = image.brokers[broker].epoch if broker in image.brokers else -1
        return allocate_producer_ids(image, broker_id=broker, broker_epoch=epoch)  # type: ignore[arg-type]  # -1: none

    return decide


def _publish(name: str, partition: int, records: int) -> Command:
    def decide(image: MetadataImage) -> Decision[Any]:
        topic = image.topic(name)
        if topic is None or partition >= len(topic.partitions):
            return Decision((), None)
        known = topic.partitions[partition]
        catalog = image.durable((topic.id, known.index))  # type: ignore[arg-type]  # a tuple does as well
        return publish_segment(
            image,
            topic_id=topic.id,
            partition=known.index,
            leader_epoch=known.leader_epoch,
            descriptor=descriptor(catalog.next_offset, records, known.leader_epoch),
            previous_hash=catalog.head,
        )

    return decide


def _replace(name: str, partition: int, first: int, count: int, usual: bool) -> Command:
    """Of the segments there, so many."""

    def decide(image: MetadataImage) -> Decision[Any]:
        topic = image.topic(name)
        if topic is None or partition >= len(topic.partitions):
            return Decision((), None)
        known = topic.partitions[partition]
        key = TopicPartition(topic.id, known.index)
        there = [entry.descriptor for entry in image.durable(key)][first : first + count]
        if not there:
            return Decision((), None)
        made = descriptor(there[0].start_offset, sum(each.records for each in there), there[0].leader_epoch)
        made = dataclasses.replace(made, last_epoch=there[-1].last_epoch)
        made_in = known.leader_epoch if usual else LeaderEpoch(0)
        return replace_segments(
            image,
            topic_id=topic.id,
            partition=known.index,
            leader_epoch=made_in,
            descriptor=dataclasses.replace(made, key=str(SegmentKey.of(image.cluster_id, key, made, made_in=made_in))),
            removed=[each.sha256 for each in there],
        )

    return decide


def _alter_isr(name: str, partition: int, isr: list[BrokerId], behind: int) -> Command:
    """The leader proposes; `behind`: from a partition epoch that was."""

    def decide(image: MetadataImage) -> Decision[Any]:
        topic = image.topic(name)
        if topic is None or partition >= len(topic.partitions):
            return Decision((), None)
        known = topic.partitions[partition]
        if known.leader == NO_LEADER:
            return Decision((), None)
        members = tuple(
            IsrMember(broker_id=broker, broker_epoch=image.brokers[broker].epoch)
            for broker in dict.fromkeys((known.leader, *isr))
            if broker in image.brokers
        )
        proposal = IsrProposal(
            topic_id=topic.id,
            partition=known.index,
            leader_epoch=known.leader_epoch,
            partition_epoch=PartitionEpoch(known.partition_epoch - behind),
            isr=members,
        )
        epoch = image.brokers[known.leader].epoch
        return alter_isr(image, broker_id=known.leader, broker_epoch=epoch, proposals=[proposal])

    return decide


def _reassign(name: str, partition: int, replicas: list[BrokerId] | None) -> Command:
    target = None if replicas is None else tuple(replicas)
    wish = Reassignment(topic=name, partition=PartitionIndex(partition), replicas=target)
    return lambda image: reassign_partitions(image, [wish], hands_over=lambda topic: topic.name != NAMES[0])


def _grow_replicas(image: MetadataImage) -> Decision[Any]:
    return grow_replicas(image, [TopicPartition(topic.id, one.index) for topic, one in image.all_partitions()])


GIVES_UP: Final = ("give up", "give up an epoch")
SEALS: Final = ("seal", "seal with a tail")


def _step(at: int, then: str) -> Command:
    """Of one of the moves that are under way."""

    def decide(image: MetadataImage) -> Decision[Any]:
        if not image.moves:
            return Decision((), None)
        key = sorted(image.moves)[at % len(image.moves)]
        known, move = image.partition(key), image.moves[key]
        assert known is not None
        asker = move.source if then in SEALS or then in GIVES_UP else move.target
        about: dict[str, Any] = {
            "topic_id": key.topic_id,
            "partition": key.partition,
            "broker_id": asker,
            "broker_epoch": image.brokers[asker].epoch if asker in image.brokers else -1,
        }
        if then == "prove":
            return prove_move(image, **about)
        if then == "finish":
            return finish_move(image, leader_epoch=known.leader_epoch, **about)
        if then == "fail":
            return fail_target(image, leader_epoch=known.leader_epoch, **about)
        if then in GIVES_UP:
            return give_up_move(image, leader_epoch=known.leader_epoch, for_good=then == GIVES_UP[0], **about)
        catalog = image.durable(key)
        tail = None
        if then == SEALS[1]:
            tail = SealedTail(
                descriptor=descriptor(catalog.next_offset, 2, known.leader_epoch), previous_hash=catalog.head
            )
        last = catalog.end_offset if tail is None else tail.descriptor.end_offset
        state = sealed(asker, known.leader_epoch, catalog.readable_start, last)
        del about["broker_id"]
        return seal_move(image, Seal(target=move.target, state=state, tail=tail, **about))

    return decide


def sealed(broker: int, leader_epoch: int, start: int, last: int) -> StorageStateSealed:
    """By that broker, with these offsets."""
    return StorageStateSealed(
        last_committed_offset=Offset(last),
        log_start_offset=Offset(start),
        leader_epoch=LeaderEpoch(leader_epoch),
        broker_id=BrokerId(broker),
        timestamp_ms=1,
        epochs=((LeaderEpoch(0), Offset(0)),),
        producers="",
    )


def _elect(election: Election) -> Command:
    return lambda image: elect_leaders(image, election, None)


def _recover(name: str, to: BrokerId | None) -> Command:
    return lambda image: recover_partitions(image, RecoveryWish(topic=name, to=to))


def _trim(name: str, partition: int, part: int) -> Command:
    """Delete this many quarters of what its catalog holds."""

    def command(image: MetadataImage) -> Decision[Any]:
        topic = image.topic(name)
        key = TopicPartition(topic.id if topic else TOPIC_IDS[0], PartitionIndex(partition))
        known, catalog = image.partition(key), image.durable(key)
        return delete_history(
            image,
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=known.leader_epoch if known else LeaderEpoch(0),
            log_start_offset=Offset(catalog.next_offset * part // 4),
        )

    return command


def descriptor(start: int, records: int, leader_epoch: int) -> SegmentDescriptor:
    """A possible segment of so many records."""
    return SegmentDescriptor(
        key=f"segment-{start}",
        start_offset=Offset(start),
        end_offset=Offset(start + records - 1),
        leader_epoch=LeaderEpoch(leader_epoch),
        first_timestamp_ms=0,
        last_timestamp_ms=records,
        records=records,
        batch_bytes=100,
        object_bytes=200,
        crc32c=1,
        sha256="0" * 64,
    )


topic_alterations = st.builds(
    _alter,
    st.just(ResourceType.TOPIC),
    names,
    st.just("retention.ms"),
    st.sampled_from(["1", "2"]),
    st.booleans(),
)
broker_alterations = st.builds(
    _alter,
    st.just(ResourceType.BROKER),
    st.sampled_from(["", "1", "2"]),
    st.just("log.retention.ms"),
    st.sampled_from(["1", "2"]),
    st.booleans(),
)
group_alterations = st.builds(
    _alter,
    st.just(ResourceType.GROUP),
    st.sampled_from(["g", "h"]),
    st.sampled_from(["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]),
    st.sampled_from(["5000", "6000", "45000", "46000"]),
    st.booleans(),
)
registrations = st.builds(
    _register, brokers, st.integers(1, 2), st.sampled_from([None, "a", "b"]), st.sampled_from([True, True, False])
)
creations = st.builds(
    _create,
    fresh_topic_ids,
    names,
    st.sampled_from([-1, 0, 1, 2, 3]),
    st.sampled_from([-1, 1, 2, 3]),
    st.dictionaries(st.sampled_from(["segment.bytes", "retention.ms"]), st.sampled_from(["2048", "4096"])),
)
publications = st.builds(_publish, names, st.integers(0, 1), st.integers(1, 3))
replacements = st.builds(
    _replace, names, st.integers(0, 1), st.integers(0, 2), st.integers(1, 3), st.sampled_from([True, True, False])
)
isr_changes = st.builds(
    _alter_isr,
    names,
    st.integers(0, 1),
    st.lists(brokers, max_size=3, unique=True),
    st.sampled_from([0, 0, 0, 1]),
)
reassignments = st.builds(
    _reassign, names, st.integers(0, 1), st.none() | st.lists(brokers, min_size=1, max_size=3, unique=True)
)
steps = st.builds(_step, st.integers(0, 3), st.sampled_from(["prove", *SEALS, "finish", "finish", "fail", *GIVES_UP]))
commands = st.one_of(
    registrations,
    steps,
    steps,
    steps,
    st.just(partial(tend_moves, moves_max=10)),
    creations,
    st.builds(_fence, brokers),
    st.builds(_unfence, brokers),
    st.builds(_remove, brokers),
    st.builds(_delete, names),
    st.builds(_grow, names, st.integers(1, 6)),
    topic_alterations,
    broker_alterations,
    group_alterations,
    st.builds(
        _limit,
        st.dictionaries(st.sampled_from([USER, CLIENT_ID]), st.sampled_from([None, "a"]), max_size=2),
        st.sampled_from(CLIENT_KEYS),
        st.sampled_from([None, 1000.0, 1024.0]),
    ),
    st.builds(_allocate, brokers),
    publications,
    replacements,
    publications,
    st.builds(_trim, names, st.integers(0, 1), st.integers(0, 4)),
    isr_changes,
    isr_changes,
    reassignments,
    reassignments,
    st.builds(_elect, st.sampled_from(Election)),
    st.builds(_recover, names, st.none() | brokers),
    st.just(partial(finish_reassignments, partitions_max=10)),
    st.just(_grow_replicas),
)


@st.composite
def histories(
    draw: st.DrawFn, engine: Engine = Engine.LOCAL, more: st.SearchStrategy[Command] | None = None
) -> list[Entry]:
    """The entries that a controller commits, one decision after another, from a cluster's birth on. `more`: commands
    that come as often as all others."""
    image = EMPTY_IMAGE
    entries: list[Entry] = []
    if engine is not Engine.LOCAL:
        entries.append((ev.ClusterBorn(cluster_id=CLUSTER, engine=engine),))
        image = image.replay(entries[0], index=1)
    wanted = commands if more is None else st.booleans().flatmap(lambda usual: commands if usual else more)
    born = draw(st.lists(registrations, min_size=1, max_size=4))
    made = draw(st.lists(creations, min_size=1, max_size=4))
    for command in [*born, *made, *draw(st.lists(wanted, min_size=draw(st.sampled_from([0, 10])), max_size=20))]:
        decision = command(image)
        if decision.events:
            entries.append(decision.events)
            image = image.replay(decision.events, index=image.index + 1)
    return entries


# Events that nobody decided.

small = st.integers(-1, 3)
topic_ids = st.sampled_from(TOPIC_IDS)
states = st.builds(sealed, brokers, small, small, small)
wild_moves = st.builds(Move, source=brokers, target=brokers, proven_by=st.none() | small, state=st.none() | states)
broker_lists = st.lists(brokers, min_size=1, max_size=3, unique=True).map(tuple)
partition_images = st.builds(
    PartitionImage,
    index=small.map(PartitionIndex),
    leader=brokers,
    leader_epoch=small,
    partition_epoch=small,
    replicas=broker_lists,
    isr=broker_lists,
    adding=broker_lists | st.just(()),
    removing=broker_lists | st.just(()),
    assignment_epoch=small,
    recovered_epoch=small,
    move=st.none() | wild_moves,
)
partition_runs = st.lists(partition_images, max_size=3).map(
    lambda run: tuple(
        PartitionImage(
            index=PartitionIndex(at),
            leader=one.leader,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            replicas=one.replicas,
            isr=one.isr,
            adding=one.adding,
            removing=one.removing,
            assignment_epoch=one.assignment_epoch,
            recovered_epoch=one.recovered_epoch,
            move=one.move,
        )
        for at, one in enumerate(run)
    )
)
texts = st.text(max_size=8)
acls = st.builds(
    acl.Acl,
    pattern=st.builds(
        acl.ResourcePattern,
        st.sampled_from(acl.ResourceType),
        st.sampled_from(acl.PatternType),
        st.sampled_from(("t", "u")),
    ),
    rule=st.builds(
        acl.AclRule, texts, st.just("*"), st.sampled_from(acl.AclOperation), st.sampled_from(acl.AclPermission)
    ),
)
wild_creations = st.builds(
    ev.TopicCreated,
    topic_id=topic_ids,
    name=names,
    partitions=partition_runs,
    configs=st.dictionaries(texts, texts, max_size=2),
    desired_replicas=small,
)
wild_partition_changes = st.one_of(
    st.builds(
        ev.LeaderChanged,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        leader=brokers,
        leader_epoch=small,
        partition_epoch=small,
        isr=broker_lists,
        kept_in=st.none() | st.uuids(),
        unclean=st.booleans(),
    ),
    st.builds(
        ev.ReplicasChanged,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        partition_epoch=small,
        replicas=broker_lists,
        isr=st.none() | broker_lists,
        adding=broker_lists | st.just(()),
        removing=broker_lists | st.just(()),
        recovered_epoch=small,
    ),
    st.builds(
        ev.IsrChanged,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        leader_epoch=small,
        partition_epoch=small,
        isr=broker_lists,
    ),
)
about_a_partition: dict[str, st.SearchStrategy[Any]] = {
    "topic_id": topic_ids,
    "partition": small.map(PartitionIndex),
    "partition_epoch": small,
}
wild_move_events: st.SearchStrategy[MetadataEvent] = st.one_of(
    st.builds(ev.MoveStarted, source=brokers, target=brokers, bytes_per_second=small, **about_a_partition),
    st.builds(ev.MoveProven, broker_epoch=small, **about_a_partition),
    st.builds(ev.MoveSealed, assignment_epoch=small, state=states, **about_a_partition),
    st.builds(ev.MoveFinished, **about_a_partition),
    st.builds(ev.MoveCancelled, leader_epoch=small, **about_a_partition),
    st.builds(ev.MoveRetargeted, assignment_epoch=small, target=brokers, **about_a_partition),
)
pieces = st.builds(
    lambda start, records, epoch, head: piece_of(
        [
            CatalogEntry(
                descriptor=descriptor(start, records, epoch),
                previous_hash=head,
                hash=published_hash(head, descriptor(start, records, epoch)),
            )
        ]
    ),
    small,
    st.integers(1, 3),
    small,
    texts,
)
wild_events: st.SearchStrategy[MetadataEvent] = st.one_of(
    st.builds(ev.ClusterBorn, cluster_id=texts.map(ClusterId), engine=st.sampled_from(Engine)),
    st.builds(
        ev.BrokerRegistered,
        broker_id=brokers,
        broker_epoch=small,
        directory_id=st.uuids(),
        endpoints=st.lists(st.builds(Endpoint, listener=texts, host=texts, port=small), max_size=2).map(tuple),
        rack=st.none() | texts,
        incarnation=st.none() | st.uuids(),
        level=small,
        level_min=small,
    ),
    st.builds(ev.LevelFinalized, level=st.integers(-1, METADATA_LEVEL)),
    st.builds(ev.BrokerRemoved, broker_id=brokers, broker_epoch=small),
    st.builds(ev.QuorumGrown, voters=small),
    st.builds(ev.VoteWithheld, broker_id=brokers, withheld=st.booleans()),
    st.builds(
        ev.QuorumRecovered, number=small.map(lambda number: number + 1), recovery=texts, broker_id=brokers, at_ms=small
    ),
    st.builds(ev.ChangesDoubted, number=small),
    st.builds(ev.BrokerFenced, broker_id=brokers, broker_epoch=small),
    st.builds(ev.BrokerUnfenced, broker_id=brokers, broker_epoch=small),
    wild_creations,
    st.builds(ev.DesiredReplicasChanged, topic_id=topic_ids, desired_replicas=small),
    st.builds(ev.TopicDeleted, topic_id=topic_ids),
    st.builds(ev.PartitionsAdded, topic_id=topic_ids, partitions=st.lists(partition_images, max_size=3).map(tuple)),
    st.builds(
        ev.ConfigChanged,
        topic_id=st.none() | topic_ids,
        broker_id=st.none() | brokers,
        changes=st.dictionaries(texts, st.none() | texts, max_size=2),
    ),
    wild_partition_changes,
    wild_move_events,
    st.builds(
        ev.SegmentPublished,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        descriptor=st.builds(descriptor, small, st.integers(1, 3), small),
        previous_hash=texts,
    ),
    st.builds(
        ev.SegmentsDeleted,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        log_start_offset=small.map(Offset),
        removed=st.lists(texts, max_size=2).map(tuple),
        previous_hash=texts,
    ),
    st.builds(
        ev.SegmentsReplaced,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        descriptor=st.builds(descriptor, small, st.integers(1, 3), small),
        removed=st.lists(st.just("0" * 64), max_size=2).map(tuple),
        previous_hash=texts,
    ),
    st.builds(
        ev.CatalogListed,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        piece=pieces,
        links=st.lists(st.lists(texts, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple),
    ),
    st.builds(
        ev.CatalogAnchored,
        topic_id=topic_ids,
        partition=small.map(PartitionIndex),
        head=texts,
        end_offset=small.map(Offset),
        log_start_offset=small.map(Offset),
    ),
    st.builds(ev.ProducerIdsAllocated, broker_id=brokers, broker_epoch=small, start=small, end=small),
    st.builds(
        ev.QuotaChanged,
        entity=st.dictionaries(texts, st.none() | texts, max_size=2).map(quota_entity),
        changes=st.dictionaries(texts, st.none() | st.floats(allow_nan=False), max_size=2),
    ),
    st.builds(ev.AclCreated, acl=acls),
    st.builds(ev.AclDeleted, acl=acls),
    st.builds(ev.SecretMade, secret=st.binary()),
    st.builds(
        ev.ScramCredentialChanged,
        user=st.sampled_from(("a", "ü")),
        mechanism=st.sampled_from(ScramMechanism),
        credential=st.none() | st.builds(ScramCredential, st.binary(), st.binary(), st.binary(), small),
    ),
)
