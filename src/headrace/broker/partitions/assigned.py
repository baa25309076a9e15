"""The part of the metadata image that is this broker's: its partitions, their configs, and their durable history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headrace.base.ids import NO_LEADER, BrokerId, DirectoryId, PartitionIndex, TopicPartition
from headrace.broker.partitions.logs.durable_wins import wins
from headrace.broker.partitions.replica import Replica
from headrace.metadata.configs import TopicConfig, topic_config
from headrace.metadata.delta import LocalPartition
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.segments import PartitionCatalog
from headrace.metadata.values import TopicImage
from headrace.storage.engine.identity import LogIdentity
from headrace.storage.engine.logs import PartitionLog


class Assigned:
    """See the module. One per broker. Loop-only."""

    def __init__(self, *, node: BrokerId, directory_id: DirectoryId, configs: Mapping[str, str]) -> None:
        """`configs`: the static broker configs."""
        self.node = node
        self._directory_id = directory_id
        self._configs = configs
        self.image = EMPTY_IMAGE
        """The image as of the last change."""
        self._ending: Counter[TopicPartition] = Counter()
        """How often each log is still to be removed, or left to its next owner. Until that is done it gets no role,
        even where the image says by then that the broker is a replica again. The work under way would give the old log
        to the new assignment. The work behind it would remove that log again, with everything counted on meanwhile.

        So nothing is said of a log between the change that ends its assignment and its removal. Earlier reports belong
        to an earlier leader epoch (`controller.reassignments.changes`), in which nothing counts any more. A log that is
        opened after that belongs to the new assignment.
        """

    # logs that are to be removed

    def begin_to_end(self, keys: Iterable[TopicPartition]) -> None:
        """Count one removal more of each, as noted in `_ending`."""
        self._ending.update(keys)

    def has_ended(self, keys: Iterable[TopicPartition]) -> None:
        """Count one removal less of each."""
        for key in keys:
            self._ending[key] -= 1
            if not self._ending[key]:
                del self._ending[key]

    # partitions

    def local(self, key: TopicPartition) -> LocalPartition | None:
        """Return the partition as the image has it now. None where this broker does not hold it, or has to remove its
        old log first."""
        if key in self._ending:
            return None
        topic = self.image.topics.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        partition = topic.partitions[key.partition]
        is_held = self.node in partition.replicas
        if self.image.shares_logs:
            is_held = partition.leader == self.node
        return LocalPartition(topic, partition) if is_held else None

    def local_of(self, role: Replica) -> LocalPartition | None:
        """As `local`, where the role's log belongs to the present assignment."""
        local = self.local(role.topic_partition)
        if local is None or local.partition.assignment_epoch != role.log.identity.assignment_epoch:
            return None
        return local

    def is_copied_again(self, key: TopicPartition) -> bool:
        """Whether another broker leads, and nobody counts on this broker's copy."""
        local = self.local(key)
        if local is None or local.partition.leader in (NO_LEADER, self.node):
            return False
        return self.node not in local.partition.isr

    # history

    def history(self, key: TopicPartition) -> PartitionCatalog | None:
        """Return the partition's history. None: it has none, or it does not count. An internal topic is read from its
        leader's log alone, and may have been exported by earlier versions."""
        topic = self.image.topics.get(key.topic_id)
        return None if topic is None or topic.internal else self.image.catalog.get(key)

    def history_to_lead(self, key: TopicPartition) -> PartitionCatalog | None:
        """As `history`, where this broker is to lead the partition."""
        local = self.local(key)
        leads = local is not None and local.partition.leader == self.node
        return self.history(key) if leads else None

    def gives_way(self, local: LocalPartition, partition_log: PartitionLog) -> bool:
        """Whether this broker is to lead it, and durable history has more records than the log, or others."""
        leads = local.partition.leader == self.node
        return leads and wins(self.history(local.key), partition_log)

    # configs and identities

    def config(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return topic_config(image, topic, self._configs, node=self.node)

    def identity(self, topic: TopicImage, partition: PartitionIndex, assignment_epoch: int) -> LogIdentity:
        return LogIdentity(
            topic_name=topic.name,
            topic_id=topic.id,
            partition=partition,
            directory_id=self._directory_id,
            assignment_epoch=assignment_epoch,
            created_index=topic.created_index,
        )

    def identity_before(self, image: MetadataImage, key: TopicPartition) -> LogIdentity:
        """Return the identity of the log whose assignment ends. `image`: the last one that has the partition."""
        topic = image.topics.get(key.topic_id)
        assert topic is not None, "what is deleted was there before"
        return self.identity(topic, key.partition, topic.partitions[key.partition].assignment_epoch)
