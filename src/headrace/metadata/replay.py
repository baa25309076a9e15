"""The effect of each event on the image: a mutable working copy of one image, for one committed entry.

Promises:
- `apply` is total: an event that names something absent, or is outdated, changes nothing.
- In a snapshot, refused durable history raises CorruptData instead.
- A committed event of a catalog is applied even where an earlier link of the chain is lost: its offsets place it.
- A thousand changes to one topic in one entry copy its partitions once.

Used by `MetadataImage.replay` alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar, assert_never

import immutables

from headrace.base.errors import CorruptData
from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Lineage,
    PartitionEpoch,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import DOUBTED_EPOCHS, DOUBTED_PRODUCER_IDS
from headrace.metadata.access.acls import with_acl, without_acl
from headrace.metadata.access.scram import with_credential
from headrace.metadata.events import (
    AclCreated,
    AclDeleted,
    BrokerFenced,
    BrokerRegistered,
    BrokerRemoved,
    BrokerUnfenced,
    CatalogAnchored,
    CatalogListed,
    ChangesDoubted,
    ClusterBorn,
    ConfigChanged,
    DesiredReplicasChanged,
    GroupConfigChanged,
    IsrChanged,
    LeaderChanged,
    LevelFinalized,
    MetadataEvent,
    MoveCancelled,
    MoveFinished,
    MoveProven,
    MoveRetargeted,
    MoveSealed,
    MoveStarted,
    PartitionsAdded,
    ProducerIdsAllocated,
    QuorumGrown,
    QuorumRecovered,
    QuotaChanged,
    ReplicasChanged,
    ScramCredentialChanged,
    SecretMade,
    SegmentPublished,
    SegmentsDeleted,
    SegmentsReplaced,
    TopicCreated,
    TopicDeleted,
    VoteWithheld,
)
from headrace.metadata.moves import Move
from headrace.metadata.pieces import run_of
from headrace.metadata.segments import PartitionCatalog
from headrace.metadata.values import BrokerImage, PartitionImage, QuorumRecovery, TopicImage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.metadata.image import MetadataImage

NO_CONFIGS: immutables.Map[str, str] = immutables.Map()
NO_QUOTAS: immutables.Map[str, float] = immutables.Map()


V = TypeVar("V", str, float)
MoveEvent: TypeAlias = MoveStarted | MoveProven | MoveSealed | MoveFinished | MoveCancelled | MoveRetargeted


class ImageBuilder:
    """One image being changed. `partitions` holds the lists of the topics whose partitions changed."""

    def __init__(self, image: MetadataImage, *, index: int, is_snapshot: bool = False) -> None:
        self.index = index
        self.is_snapshot = is_snapshot
        self.cluster_id = image.cluster_id
        self.engine = image.engine
        self.finalized_level = image.finalized_level
        self.next_producer_id = image.next_producer_id
        self.withheld = image.withheld
        self.recovery = image.recovery
        self.doubts = image.doubts
        self.quotas = image.quotas
        self.acls = image.acls
        self.scram = image.scram
        self.secret = image.secret
        self.brokers = image.brokers.mutate()
        self.topics = image.topics.mutate()
        self.topic_ids = image.topic_ids.mutate()
        self.broker_configs = image.broker_configs.mutate()
        self.group_configs = image.group_configs.mutate()
        self.catalog = image.catalog.mutate()
        self.partitions: dict[TopicId, list[PartitionImage]] = {}
        self.leaderships = image.leaderships.mutate()
        self.copies = image.copies.mutate()
        self.preferences = image.preferences.mutate()
        self.moves = image.moves.mutate()

    def finish_topics(self) -> immutables.Map[TopicId, TopicImage]:
        for topic_id, partitions in self.partitions.items():
            self.topics[topic_id] = replace(self.topics[topic_id], partitions=tuple(partitions))
        return self.topics.finish()

    def _count(self, partition: PartitionImage, change: int) -> None:
        """Update the brokers' counts: `change` is 1 for a new partition, -1 for its previous form."""
        if partition.leader != NO_LEADER:
            _add(self.leaderships, partition.leader, change)
        _add(self.preferences, partition.replicas[0], change)
        for replica in partition.replicas:
            _add(self.copies, replica, change)

    def _put(self, partitions: list[PartitionImage], partition: PartitionImage) -> None:
        """Replace the partition's previous form."""
        self._count(partitions[partition.index], -1)
        partitions[partition.index] = partition
        self._count(partition, 1)

    def apply(self, event: MetadataEvent) -> None:
        match event:
            case ClusterBorn():
                if event.cluster_id and not self.cluster_id:
                    self.cluster_id, self.engine = event.cluster_id, event.engine
            case LevelFinalized():
                self.finalized_level = max(self.finalized_level, event.level)
            case BrokerRegistered():
                self._register(event)
            case BrokerFenced():
                self._set_fenced(event.broker_id, event.broker_epoch, True)
            case BrokerUnfenced():
                self._set_fenced(event.broker_id, event.broker_epoch, False)
            case BrokerRemoved():
                self._remove_broker(event)
            case TopicCreated():
                self._create_topic(event)
            case DesiredReplicasChanged():
                if (topic := self.topics.get(event.topic_id)) is not None:
                    self.topics[topic.id] = replace(topic, desired_replicas=event.desired_replicas)
            case TopicDeleted():
                self._delete_topic(event)
            case PartitionsAdded():
                self._add_partitions(event)
            case ConfigChanged():
                self._change_config(event)
            case GroupConfigChanged():
                self._change_group_config(event)
            case LeaderChanged():
                self._change_leader(event)
            case IsrChanged():
                self._change_isr(event)
            case ReplicasChanged():
                self._change_replicas(event)
            case MoveStarted() | MoveProven() | MoveSealed() | MoveFinished() | MoveCancelled() | MoveRetargeted():
                self._change_move(event)
            case SegmentPublished():
                self._publish_segment(event)
            case CatalogAnchored():
                self._anchor_catalog(event)
            case SegmentsDeleted():
                self._delete_segments(event)
            case SegmentsReplaced():
                self._replace_segments(event)
            case CatalogListed():
                self._list_catalog(event)
            case ProducerIdsAllocated():
                self.next_producer_id = max(self.next_producer_id, event.end)
            case QuotaChanged():
                self._change_quota(event)
            case AclCreated():
                self.acls = with_acl(self.acls, event.acl)
            case AclDeleted():
                self.acls = without_acl(self.acls, event.acl)
            case ScramCredentialChanged():
                self.scram = with_credential(self.scram, event.user, event.mechanism, event.credential)
            case SecretMade():
                self.secret = event.secret
            case QuorumGrown():
                pass
            case VoteWithheld():
                self.withheld = self.withheld.difference((event.broker_id,))
                if event.withheld:
                    self.withheld = self.withheld.union((event.broker_id,))
            case QuorumRecovered():
                self._recover_quorum(event)
            case ChangesDoubted():
                self._rise(event)
            case _:
                assert_never(event)

    def _recover_quorum(self, event: QuorumRecovered) -> None:
        if self.recovery is None or event.number > self.recovery.lineage.number:
            lineage = Lineage(event.number, event.recovery)
            self.recovery = QuorumRecovery(lineage=lineage, broker_id=event.broker_id, at_ms=event.at_ms)

    def _rise(self, event: ChangesDoubted) -> None:
        times = max(0, event.number - self.doubts)
        self.doubts += times
        self.next_producer_id = ProducerId(self.next_producer_id + times * DOUBTED_PRODUCER_IDS)
        there = self.topics.finish()
        self.topics = there.mutate()
        for topic_id in there if times else ():
            partitions = self._list(topic_id)
            assert partitions is not None, "it exists"
            for known in partitions:
                partitions[known.index] = replace(
                    known,
                    leader_epoch=LeaderEpoch(known.leader_epoch + times * DOUBTED_EPOCHS),
                    partition_epoch=PartitionEpoch(known.partition_epoch + times * DOUBTED_EPOCHS),
                )

    def _register(self, event: BrokerRegistered) -> None:
        known = self.brokers.get(event.broker_id)
        if known is not None and known.epoch >= event.broker_epoch:
            if known.epoch == event.broker_epoch and known.level < event.level:
                self.brokers[known.id] = replace(known, level=event.level)
            return
        self.brokers[event.broker_id] = BrokerImage(
            id=event.broker_id,
            epoch=event.broker_epoch,
            directory_id=event.directory_id,
            endpoints=event.endpoints,
            rack=event.rack,
            fenced=True,
            incarnation=event.incarnation,
            level=event.level,
            level_min=event.level_min,
        )

    def _remove_broker(self, event: BrokerRemoved) -> None:
        known = self.brokers.get(event.broker_id)
        if known is not None and known.epoch == event.broker_epoch:
            del self.brokers[event.broker_id]

    def _set_fenced(self, broker_id: BrokerId, broker_epoch: BrokerEpoch, fenced: bool) -> None:
        known = self.brokers.get(broker_id)
        if known is not None and known.epoch == broker_epoch:
            self.brokers[broker_id] = replace(known, fenced=fenced)

    def _create_topic(self, event: TopicCreated) -> None:
        if event.topic_id in self.topics or event.name in self.topic_ids:
            return
        self.topic_ids[event.name] = event.topic_id
        self.topics[event.topic_id] = TopicImage(
            name=event.name,
            id=event.topic_id,
            partitions=event.partitions,
            configs=immutables.Map(event.configs),
            desired_replicas=event.desired_replicas,
            created_index=self._created_index(event),
        )
        for partition in event.partitions:
            self._count(partition, 1)
            self._note_move(TopicPartition(event.topic_id, partition.index), partition.move)

    def _created_index(self, event: TopicCreated) -> int:
        if event.created_index or self.is_snapshot or not self.engine.shares_logs:
            return event.created_index
        return self.index

    def _delete_topic(self, event: TopicDeleted) -> None:
        topic = self.topics.get(event.topic_id)
        if topic is None:
            return
        partitions = self.partitions.pop(topic.id, topic.partitions)
        for partition in partitions:
            self._count(partition, -1)
        del self.topics[topic.id]
        del self.topic_ids[topic.name]
        for index in range(len(partitions)):
            key = TopicPartition(topic.id, PartitionIndex(index))
            self.catalog.pop(key, None)
            self.moves.pop(key, None)

    def _list(self, topic_id: TopicId) -> list[PartitionImage] | None:
        """The topic's partitions, to be changed in place; None where the topic does not exist."""
        found = self.partitions.get(topic_id)
        if found is None and (topic := self.topics.get(topic_id)) is not None:
            found = self.partitions[topic_id] = list(topic.partitions)
        return found

    def _add_partitions(self, event: PartitionsAdded) -> None:
        partitions = self._list(event.topic_id)
        if partitions is None:
            return
        for partition in event.partitions:
            if partition.index == len(partitions):
                partitions.append(partition)
                self._count(partition, 1)
                self._note_move(TopicPartition(event.topic_id, partition.index), partition.move)

    def _change_config(self, event: ConfigChanged) -> None:
        if event.topic_id is None:
            configs = changed(self.broker_configs.get(event.broker_id, NO_CONFIGS), event.changes)
            if configs:
                self.broker_configs[event.broker_id] = configs
            else:
                self.broker_configs.pop(event.broker_id, None)
        elif (topic := self.topics.get(event.topic_id)) is not None:
            self.topics[topic.id] = replace(topic, configs=changed(topic.configs, event.changes))

    def _change_group_config(self, event: GroupConfigChanged) -> None:
        configs = changed(self.group_configs.get(event.group, NO_CONFIGS), event.changes)
        if configs:
            self.group_configs[event.group] = configs
        else:
            self.group_configs.pop(event.group, None)

    def _change_quota(self, event: QuotaChanged) -> None:
        known = self.quotas.get(event.entity, NO_QUOTAS)
        quotas = changed(known, event.changes)
        if quotas:
            self.quotas = self.quotas.set(event.entity, quotas)
        elif event.entity in self.quotas:
            self.quotas = self.quotas.delete(event.entity)

    def _change_leader(self, event: LeaderChanged) -> None:
        partitions = self._list(event.topic_id)
        if partitions is None or not 0 <= event.partition < len(partitions):
            return
        known = partitions[event.partition]
        if event.leader_epoch > known.leader_epoch and event.partition_epoch > known.partition_epoch:
            after = replace(
                known,
                leader=event.leader,
                leader_epoch=event.leader_epoch,
                partition_epoch=event.partition_epoch,
                isr=event.isr,
                kept_in=event.kept_in,
                is_unclean=event.unclean,
            )
            self._put(partitions, after)

    def _change_isr(self, event: IsrChanged) -> None:
        partitions = self._list(event.topic_id)
        if partitions is None or not 0 <= event.partition < len(partitions):
            return
        known = partitions[event.partition]
        if event.leader_epoch == known.leader_epoch and event.partition_epoch > known.partition_epoch:
            partitions[event.partition] = replace(known, partition_epoch=event.partition_epoch, isr=event.isr)

    def _change_replicas(self, event: ReplicasChanged) -> None:
        partitions = self._list(event.topic_id)
        if partitions is None or not 0 <= event.partition < len(partitions):
            return
        known = partitions[event.partition]
        if event.partition_epoch > known.partition_epoch:
            after = replace(
                known,
                partition_epoch=event.partition_epoch,
                replicas=event.replicas,
                isr=known.isr if event.isr is None else event.isr,
                adding=event.adding,
                removing=event.removing,
            )
            if event.recovered_epoch > 0:
                began = event.recovered_epoch
                after = replace(after, assignment_epoch=began, recovered_epoch=began)
            self._put(partitions, after)

    def _change_move(self, event: MoveEvent) -> None:
        partitions = self._list(event.topic_id)
        if partitions is None or not 0 <= event.partition < len(partitions):
            return
        known = partitions[event.partition]
        if event.partition_epoch > known.partition_epoch:
            after = _moved(known, event)
            if after is not None:
                partitions[event.partition] = replace(after, partition_epoch=event.partition_epoch)
                self._note_move(TopicPartition(event.topic_id, event.partition), after.move)

    def _note_move(self, key: TopicPartition, move: Move | None) -> None:
        if move is None:
            self.moves.pop(key, None)
        else:
            self.moves[key] = move

    def _publish_segment(self, event: SegmentPublished) -> None:
        key = TopicPartition(event.topic_id, event.partition)
        if not self._exists(key):
            return
        catalog = (self.catalog.get(key) or PartitionCatalog.empty(*key)).at(event.previous_hash)
        if (problem := catalog.refusal(event.descriptor, event.previous_hash)) is None:
            self.catalog[key] = catalog.published(event.descriptor)
        else:
            self._refuse(key, problem)

    def _anchor_catalog(self, event: CatalogAnchored) -> None:
        key = TopicPartition(event.topic_id, event.partition)
        if self._exists(key) and key not in self.catalog:
            self.catalog[key] = PartitionCatalog(
                head=event.head,
                end_offset=event.end_offset,
                log_start_offset=event.log_start_offset,
            )

    def _delete_segments(self, event: SegmentsDeleted) -> None:
        catalog = self.catalog.get(key := TopicPartition(event.topic_id, event.partition))
        if catalog is None:
            return
        deletes = min(event.log_start_offset, catalog.next_offset) > catalog.log_start_offset
        there = catalog.at(event.previous_hash)
        if catalog.head == event.previous_hash or (deletes and there.head == event.previous_hash):
            self.catalog[key] = there.deleted(event.log_start_offset, event.removed)

    def _replace_segments(self, event: SegmentsReplaced) -> None:
        catalog = self.catalog.get(key := TopicPartition(event.topic_id, event.partition))
        if catalog is None or catalog.replacement_refusal(event.descriptor, event.removed) is not None:
            return
        there = catalog.at(event.previous_hash)
        is_new = event.descriptor.sha256 not in event.removed
        if catalog.head == event.previous_hash or (is_new and there.head == event.previous_hash):
            self.catalog[key] = there.replaced(event.descriptor)

    def _list_catalog(self, event: CatalogListed) -> None:
        key = TopicPartition(event.topic_id, event.partition)
        if not self._exists(key):
            return
        try:
            joined = (self.catalog.get(key) or PartitionCatalog.empty(*key)).joined(run_of(event.piece))
        except CorruptData as error:
            self._refuse(key, str(error))
            return
        if joined is None:
            self._refuse(key, f"Its segments do not go on from {event.piece.previous_hash[:16]}.")
            return
        self.catalog[key] = joined.with_links(event.links)

    def _refuse(self, key: TopicPartition, problem: str) -> None:
        """Skip the event, or raise CorruptData in a snapshot."""
        if self.is_snapshot:
            raise CorruptData(
                f"What the metadata snapshot says of durable history of partition {key.partition} of topic "
                f"{key.topic_id} does not hold: {problem} Put back a copy "
                "of the metadata directory, or begin with an empty one where other brokers have it."
            )

    def _exists(self, key: TopicPartition) -> bool:
        topic = self.topics.get(key.topic_id)
        return topic is not None and 0 <= key.partition < len(self.partitions.get(topic.id, topic.partitions))


def _moved(known: PartitionImage, event: MoveEvent) -> PartitionImage | None:
    """The partition after the event; None where the event does not fit its state."""
    move = known.move
    if isinstance(event, MoveStarted):
        if known.is_sealed:
            return None
        begun = Move(source=event.source, target=event.target, bytes_per_second=event.bytes_per_second)
        return replace(known, move=begun)
    if move is None:
        return None
    match event:
        case MoveProven():
            return replace(known, move=replace(move, proven_by=event.broker_epoch))
        case MoveSealed():
            sealed = replace(move, state=event.state)
            return None if known.is_sealed else replace(known, move=sealed, assignment_epoch=event.assignment_epoch)
        case MoveFinished():
            return replace(known, move=None) if known.is_sealed else None
        case MoveCancelled():
            is_late = known.is_sealed or event.leader_epoch <= known.leader_epoch
            return None if is_late else replace(known, move=None, leader_epoch=event.leader_epoch)
        case MoveRetargeted():
            aimed = replace(move, target=event.target, proven_by=None)
            return replace(known, move=aimed, assignment_epoch=event.assignment_epoch) if known.is_sealed else None
        case _:
            assert_never(event)


def _add(counts: immutables.MapMutation[BrokerId, int], broker: BrokerId, change: int) -> None:
    count = counts.get(broker, 0) + change
    if count:
        counts[broker] = count
    else:
        counts.pop(broker, None)


def changed(configs: immutables.Map[str, V], changes: Mapping[str, V | None]) -> immutables.Map[str, V]:
    """The configs (or quotas) with the changes applied; None removes a key."""
    working = configs.mutate()
    for key, value in changes.items():
        if value is None:
            working.pop(key, None)
        else:
            working[key] = value
    return working.finish()
