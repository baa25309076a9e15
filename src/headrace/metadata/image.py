"""All cluster state at one moment. `MetadataImage.replay` is the only place where state changes.

Promises: an image never changes, and shares structure with the one before it. `replay` is:
- total: an event that cannot apply is skipped, and never raises;
- deterministic;
- idempotent: epochs and names decide whether an event is news.

It never decides. An event that should not have been emitted is the controller's fault and is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

import immutables

from headrace.base.ids import (
    NO_LINEAGE,
    NO_PRODUCER_ID,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    Lineage,
    ProducerId,
    TopicId,
    TopicPartition,
)
from headrace.base.limits import CATALOG_CHUNK_ENTRIES, SNAPSHOT_PARTITIONS_PER_EVENT_MAX
from headrace.base.values import Value
from headrace.metadata.access.acls import NO_ACLS, AclFilter, Acls, found
from headrace.metadata.access.quotas import QuotaEntity
from headrace.metadata.access.scram import NO_SCRAM, ScramCredentials
from headrace.metadata.events import (
    AclCreated,
    BrokerRegistered,
    BrokerUnfenced,
    CatalogAnchored,
    CatalogListed,
    ChangesDoubted,
    ClusterBorn,
    ConfigChanged,
    GroupConfigChanged,
    LevelFinalized,
    MetadataEvent,
    PartitionsAdded,
    ProducerIdsAllocated,
    QuorumRecovered,
    QuotaChanged,
    ScramCredentialChanged,
    SecretMade,
    TopicCreated,
    VoteWithheld,
)
from headrace.metadata.moves import Move
from headrace.metadata.pieces import piece_of
from headrace.metadata.replay import ImageBuilder
from headrace.metadata.segments import PartitionCatalog
from headrace.metadata.values import BrokerImage, Endpoint, Engine, PartitionImage, QuorumRecovery, TopicImage

__all__ = ["EMPTY_IMAGE", "BrokerImage", "MetadataImage", "PartitionImage", "TopicImage"]

_NO_COUNTS: Final[immutables.Map[BrokerId, int]] = immutables.Map()
_NO_MOVES: Final[immutables.Map[TopicPartition, Move]] = immutables.Map()
_NO_GROUP_CONFIGS: Final[immutables.Map[str, immutables.Map[str, str]]] = immutables.Map()
_NO_QUOTAS: Final[immutables.Map[QuotaEntity, immutables.Map[str, float]]] = immutables.Map()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MetadataImage(Value):
    """All cluster state after the commit log's entry `index`.

    Invariants:
    - `topic_ids` is exactly the inverse of `topics` by name.
    - `catalog` has an entry only for a partition that exists.
    - Every broker in a replica list has been registered (it may be fenced).
    """

    cluster_id: ClusterId
    index: int
    """Index of the last commit-log entry replayed; 0 before the first."""
    brokers: immutables.Map[BrokerId, BrokerImage]
    topics: immutables.Map[TopicId, TopicImage]
    topic_ids: immutables.Map[str, TopicId]
    broker_configs: immutables.Map[BrokerId | None, immutables.Map[str, str]]
    """Dynamic broker configs; the key None has those of all brokers."""
    catalog: immutables.Map[TopicPartition, PartitionCatalog]
    """Durable segments; absent until a partition's first one."""
    next_producer_id: ProducerId
    engine: Engine = Engine.LOCAL
    """The keeper of the partition logs, chosen at the cluster's birth."""
    finalized_level: int = 0
    """The highest feature level that was finalized; 0: none was. `level` is what counts."""
    withheld: frozenset[BrokerId] = frozenset()
    """Brokers whose vote in the quorum an operator has removed: they are not promoted automatically."""
    group_configs: immutables.Map[str, immutables.Map[str, str]] = _NO_GROUP_CONFIGS
    """Configs of consumer groups, by the group's name; absent: none."""
    recovery: QuorumRecovery | None = None
    """The last recovery of a lost quorum; None: there was none."""
    doubts: int = 0
    """How often the store of the commit log may have lost its last entries."""
    quotas: immutables.Map[QuotaEntity, immutables.Map[str, float]] = _NO_QUOTAS
    """Client quotas, by entity and then by key; absent: none. It stays one object until a quota changes."""
    acls: Acls = NO_ACLS
    """The rights of clients. It stays one object until an ACL is created or deleted."""
    scram: ScramCredentials = NO_SCRAM
    """Credentials of users."""
    secret: bytes = field(default=b"", repr=False)
    """Known to brokers alone; empty: there is none yet. The answers to unknown names follow from it."""
    leaderships: immutables.Map[BrokerId, int] = _NO_COUNTS
    """Number of partitions that each broker leads; absent: none. This and the next two follow from `topics`."""
    copies: immutables.Map[BrokerId, int] = _NO_COUNTS
    """Number of partitions that each broker is a replica of."""
    preferences: immutables.Map[BrokerId, int] = _NO_COUNTS
    """Number of partitions for which each broker is the first replica, and so the preferred leader."""
    moves: immutables.Map[TopicPartition, Move] = _NO_MOVES
    """Moves under way. Follows from `topics`."""

    @property
    def level(self) -> int:
        """The feature level at which the cluster runs (`levels`): whatever earlier releases do not know is written only
        where its own level is no higher. Clusters of before finalized levels have ACLs and passwords at level 1."""
        return max(self.finalized_level, AclCreated.LEVEL if self.acls or self.scram or self.secret else 0)

    @property
    def lineage(self) -> Lineage:
        return NO_LINEAGE if self.recovery is None else self.recovery.lineage

    @property
    def shares_logs(self) -> bool:
        """Whether every broker reaches the log of every partition. Then a partition's only replica is its leader, and
        `controller.shared_logs` decides on it."""
        return self.engine.shares_logs

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        return self.topics.get(topic_id)

    def partition(self, key: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    def durable(self, key: TopicPartition) -> PartitionCatalog:
        """The partition's catalog, empty where nothing was published."""
        return self.catalog.get(key) or PartitionCatalog.empty(*key)

    def live_brokers(self) -> list[BrokerImage]:
        """The unfenced brokers, by id."""
        return sorted((broker for broker in self.brokers.values() if not broker.fenced), key=lambda broker: broker.id)

    # queries

    def contains(self, topic: str, partition: int | None = None) -> bool:
        """Whether the topic exists; with `partition`, whether it has that partition."""
        found = self.topic(topic)
        return found is not None and (partition is None or 0 <= partition < len(found.partitions))

    def topic_names(self) -> list[str]:
        """Names of all topics, sorted."""
        return sorted(self.topic_ids)

    def all_partitions(
        self, among: Iterable[TopicPartition] | None = None
    ) -> Iterator[tuple[TopicImage, PartitionImage]]:
        """Every partition with its topic, by the topic's name and the partition's index. `among`: only these, as far
        as they exist, in the given order."""
        if among is None:
            for topic in sorted(self.topics.values(), key=lambda topic: topic.name):
                for partition in topic.partitions:
                    yield topic, partition
            return
        for topic_id, keys in groupby(among, key=attrgetter("topic_id")):
            found = self.topics.get(topic_id)
            if found is not None:
                for key in keys:
                    if 0 <= key.partition < len(found.partitions):
                        yield found, found.partitions[key.partition]

    def partition_info(self, topic: str, partition: int) -> PartitionImage | None:
        """Leader, epochs, replicas and ISR of one partition, by its topic's name."""
        found = self.topic(topic)
        return found.partitions[partition] if found is not None and self.contains(topic, partition) else None

    def nodes(self, listener: str) -> dict[BrokerId, Endpoint]:
        """Addresses of the live brokers for this listener; a broker without the listener is left out."""
        found = ((broker.id, broker.endpoint(listener)) for broker in self.live_brokers())
        return {broker: endpoint for broker, endpoint in found if endpoint is not None}

    def replica_endpoints(self, topic: str, partition: int, listener: str) -> dict[BrokerId, Endpoint]:
        """Addresses of the live replicas of one partition for this listener."""
        info, nodes = self.partition_info(topic, partition), self.nodes(listener)
        return {replica: nodes[replica] for replica in info.replicas if replica in nodes} if info is not None else {}

    def missing_listeners(self) -> dict[BrokerId, tuple[str, ...]]:
        """Listeners that some live broker has, by the live brokers that lack them."""
        live = self.live_brokers()
        names = {endpoint.listener for broker in live for endpoint in broker.endpoints}
        lacking = {broker.id: names - {endpoint.listener for endpoint in broker.endpoints} for broker in live}
        return {broker: tuple(sorted(missing)) for broker, missing in lacking.items() if missing}

    # changes and snapshots

    def replay(
        self, events: Iterable[MetadataEvent], *, index: int | None = None, is_snapshot: bool = False
    ) -> MetadataImage:
        """The image after one committed entry, at `index` if that is given. An entry at or below `self.index` is old
        news, and this image is returned. In a snapshot (`is_snapshot`), durable history that does not hold raises
        CorruptData. If it were left out, its objects would count as orphans."""
        if index is not None and index <= self.index:
            return self
        at = self.index if index is None else index
        builder = ImageBuilder(self, index=at, is_snapshot=is_snapshot)
        for event in events:
            builder.apply(event)
        return MetadataImage(
            cluster_id=builder.cluster_id,
            engine=builder.engine,
            finalized_level=builder.finalized_level,
            index=at,
            brokers=builder.brokers.finish(),
            topics=builder.finish_topics(),
            topic_ids=builder.topic_ids.finish(),
            broker_configs=builder.broker_configs.finish(),
            group_configs=builder.group_configs.finish(),
            catalog=builder.catalog.finish(),
            next_producer_id=builder.next_producer_id,
            withheld=builder.withheld,
            recovery=builder.recovery,
            doubts=builder.doubts,
            quotas=builder.quotas,
            acls=builder.acls,
            scram=builder.scram,
            secret=builder.secret,
            leaderships=builder.leaderships.finish(),
            copies=builder.copies.finish(),
            preferences=builder.preferences.finish(),
            moves=builder.moves.finish(),
        )

    def snapshot(self) -> Iterator[MetadataEvent]:
        """Events that replay on `EMPTY_IMAGE` (at this index) to an equal image. Lazy: safe to run in a thread."""
        if self.cluster_id:
            yield ClusterBorn(cluster_id=self.cluster_id, engine=self.engine)
        if self.finalized_level:  # before anything that a broker below it would not know
            yield LevelFinalized(level=self.finalized_level)
        if self.doubts:  # before anything that would rise by it
            yield ChangesDoubted(number=self.doubts)
        for broker in sorted(self.brokers.values(), key=lambda broker: broker.id):
            yield registration_of(broker)
            if not broker.fenced:
                yield BrokerUnfenced(broker_id=broker.id, broker_epoch=broker.epoch)
        for broker_id, configs in self.broker_configs.items():
            yield ConfigChanged(broker_id=broker_id, changes=dict(configs))
        yield from self._snapshot_of_topics()
        if self.next_producer_id:
            yield ProducerIdsAllocated(
                broker_id=BrokerId(-1),
                broker_epoch=BrokerEpoch(-1),
                start=NO_PRODUCER_ID,
                end=self.next_producer_id,
            )
        for group, configs in self.group_configs.items():
            yield GroupConfigChanged(group=group, changes=dict(configs))
        for entity, quotas in self.quotas.items():
            yield QuotaChanged(entity=entity, changes=dict(quotas))
        for acl in found(self.acls, AclFilter()):
            yield AclCreated(acl=acl)
        if self.secret:
            yield SecretMade(secret=self.secret)
        for user, credentials in self.scram.items():
            for mechanism, credential in credentials.items():
                yield ScramCredentialChanged(user=user, mechanism=mechanism, credential=credential)
        if (last := self.recovery) is not None:
            number, recovery = last.lineage
            yield QuorumRecovered(number=number, recovery=recovery, broker_id=last.broker_id, at_ms=last.at_ms)
        for broker_id in sorted(self.withheld):
            yield VoteWithheld(broker_id=broker_id, withheld=True)

    def _snapshot_of_topics(self) -> Iterator[MetadataEvent]:
        for _, topic_id in sorted(self.topic_ids.items()):
            topic = self.topics[topic_id]
            first, *rest = _pieces(topic.partitions)
            yield TopicCreated(
                topic_id=topic.id,
                name=topic.name,
                partitions=first,
                configs=dict(topic.configs),
                desired_replicas=topic.desired_replicas,
                created_index=topic.created_index,
            )
            for piece in rest:
                yield PartitionsAdded(topic_id=topic.id, partitions=piece)
            for partition in topic.partitions:
                key = TopicPartition(topic_id, partition.index)
                if (catalog := self.catalog.get(key)) is not None:
                    yield from _snapshot_of_history(key, catalog)


def registration_of(broker: BrokerImage) -> BrokerRegistered:
    """The event that registered the broker as it is."""
    return BrokerRegistered(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        directory_id=broker.directory_id,
        endpoints=broker.endpoints,
        rack=broker.rack,
        incarnation=broker.incarnation,
        level=broker.level,
        level_min=broker.level_min,
    )


def _snapshot_of_history(key: TopicPartition, catalog: PartitionCatalog) -> Iterator[MetadataEvent]:
    topic_id, partition = key
    anchor = catalog.anchor
    if anchor != PartitionCatalog.empty(*key):
        yield CatalogAnchored(
            topic_id=topic_id,
            partition=partition,
            head=anchor.head,
            end_offset=anchor.end_offset,
            log_start_offset=anchor.log_start_offset,
        )

    entries = iter(catalog)
    while piece := list(islice(entries, CATALOG_CHUNK_ENTRIES)):
        is_last = piece[-1].descriptor.start_offset == catalog.last_start
        links = catalog.deletions if is_last else ()
        yield CatalogListed(topic_id=topic_id, partition=partition, piece=piece_of(piece), links=links)


def _pieces(partitions: tuple[PartitionImage, ...]) -> list[tuple[PartitionImage, ...]]:
    """Parts of the partitions, at least one part, none of which takes long to encode."""
    size = SNAPSHOT_PARTITIONS_PER_EVENT_MAX
    return [partitions[at : at + size] for at in range(0, max(1, len(partitions)), size)]


EMPTY_IMAGE: Final = MetadataImage(
    cluster_id=ClusterId(""),
    index=0,
    brokers=immutables.Map(),
    topics=immutables.Map(),
    topic_ids=immutables.Map(),
    broker_configs=immutables.Map(),
    catalog=immutables.Map(),
    next_producer_id=ProducerId(0),
)
"""The state before the first entry of the commit log."""
