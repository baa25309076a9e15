"""Gives open logs the roles that the metadata image says, and ends these roles.

Promises: a log has one role at a time. A new leader's high watermark is at least what is known to be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.base.ids import NO_LEADER, LeaderEpoch, Offset, TopicId, TopicPartition
from headrace.broker.partitions.context import LogContext
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.intake.repacking import Repacker
from headrace.broker.partitions.logs.durable_wins import agrees
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Common, Replica
from headrace.broker.partitions.settings import PartitionSettings, log_config, partition_settings
from headrace.logs import get_logger
from headrace.metadata.delta import LocalPartition
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.replica.leader import Leader
from headrace.replica.producers import ProducerStates
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

UNFLUSHED: Final = (
    "a partition is led by who came back from a crash: with flush.policy=os, records that were acknowledged and that "
    "the machine had not written yet are lost if it lost its power"
)


class Roles:
    """See the module. One per broker. Loop-only."""

    def __init__(self, context: LogContext, open_again: Callable[[TopicPartition], None]) -> None:
        """`open_again` closes a log that was being changed when the disk was full, to open it once there is room."""
        self._assigned = context.assigned
        self._partitions = context.partitions
        self._events = context.events
        self._flusher = context.flusher
        self._room = context.room
        self._clock = context.clock
        self._has_store = context.has_store
        self._open_again = open_again
        self._repacker = Repacker(context.on_bug)
        self._crashed: set[TopicPartition] = set()
        """Partitions that were opened after a crash, and whose counted records were not flushed (flush.policy=os)."""
        self._said_in: dict[TopicPartition, LeaderEpoch] = {}
        """`FollowerPartition.said_in` of copies that were closed in the middle of a change and are not open again."""

    def note_crash(self, key: TopicPartition) -> None:
        """Note that the log was opened after a crash, and that counted records may not have been flushed."""
        self._crashed.add(key)

    def note_said(self, copy: FollowerPartition) -> None:
        """Note what a copy has said that is closed in the middle of a change."""
        self._said_in[copy.topic_partition] = copy.said_in

    def forget_notes(self, key: TopicPartition) -> None:
        """Forget what was noted of a log that this broker does not hold any more."""
        self._said_in.pop(key, None)
        self._crashed.discard(key)

    # giving a role

    def assume(
        self,
        local: LocalPartition,
        partition_log: PartitionLog,
        producers: ProducerStates,
        settings: PartitionSettings,
        high_watermark: Offset,
        *,
        failed: bool = False,
    ) -> None:
        """Give the log the role that the image says. `high_watermark`: known to be committed; `failed`: the log's disk
        has failed, and it serves nothing."""
        common = self._common(local, partition_log, producers, settings)
        role: Replica
        if local.partition.leader == self._assigned.node:
            role = self._lead(local.partition, common, high_watermark)
        else:
            role = self._follow(local, common, high_watermark)
        if failed:
            role.fail_again()
        if self._has_store:
            role.on_history(self._assigned.history(local.key))
        if isinstance(role, FollowerPartition):
            self._tell_let_in(role)
            role.begin()
            self._feed(role)
        if partition_log.needs_flush:  # requests of the earlier role are not carried out for it any more
            self._flusher.request(role)

    def _common(
        self,
        local: LocalPartition,
        partition_log: PartitionLog,
        producers: ProducerStates,
        settings: PartitionSettings,
    ) -> Common:
        return Common(
            topic=local.topic.name,
            topic_partition=local.key,
            partition_log=partition_log,
            producers=producers,
            settings=settings,
            flusher=self._flusher,
            clock=self._clock,
            room=self._room,
            is_internal=local.topic.internal,
            events=self._events,
            has_store=self._has_store,
        )

    def _follow(self, local: LocalPartition, common: Common, high_watermark: Offset) -> FollowerPartition:
        image, node = local.partition, self._assigned.node
        copy = FollowerPartition(
            **common,
            node=node,
            leader=image.leader,
            leader_epoch=image.leader_epoch,
            is_in_sync=node in image.isr,
            high_watermark=high_watermark,
            open_again=self._open_again,
        )
        self._partitions.add_follower(copy)
        copy.said_in = self._said_in.pop(local.key, copy.said_in)
        return copy

    def _lead(self, image: PartitionImage, common: Common, high_watermark: Offset) -> Partition:
        partition_log, key = common["partition_log"], common["topic_partition"]
        catalog = self._assigned.history(key)
        if self._has_store and catalog is not None and agrees(catalog, partition_log):
            high_watermark = max(high_watermark, min(catalog.next_offset, partition_log.flushed_end))
        if key in self._crashed:
            self._crashed.discard(key)
            log.error(
                UNFLUSHED,
                topic=common["topic"],
                partition=key.partition,
                log_end=partition_log.log_end_offset,
                in_sync=list(image.isr),
            )
        partition_log.assign_epoch(image.leader_epoch)
        leader = self._elected(image, partition_log, high_watermark)
        partition = Partition(
            **common,
            leader=leader,
            repacker=self._repacker,
            takes_over=image.is_sealed,
            is_unclean=image.is_unclean,
        )
        self._partitions.add_leader(partition)
        self._events.on_led(partition)
        return partition

    def _elected(self, image: PartitionImage, partition_log: PartitionLog, high_watermark: Offset) -> Leader:
        return Leader.elected(
            node=self._assigned.node,
            epoch=image.leader_epoch,
            isr=image.isr,
            flushed_end=partition_log.flushed_end,
            high_watermark=high_watermark,
            log_end=partition_log.log_end_offset,
            partition_epoch=image.partition_epoch,
            replicas=image.replicas,
            now=self._clock.monotonic(),
        )

    # going on

    def goes_on(self, local: LocalPartition) -> bool:
        """Whether the present role goes on under the new epoch. Otherwise that role is over, and the partition is to
        get the other."""
        key, image = local.key, local.partition
        leads = image.leader == self._assigned.node
        if self.is_of_another(local):
            self.end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return False
        if leads and (serving := self._partitions.leader(key)) is not None and not serving.has_stepped_down:
            others_led = image.leader_epoch != serving.leader_epoch
            if not (others_led and self._assigned.gives_way(local, serving.log)):
                serving.lead(image)
                return True
        if (copy := self._partitions.follower(key)) is not None and not copy.has_stepped_down:
            if not leads:
                self._follow_on(copy, image)
                return True
            if copy.has_replaced and _is_elected_cleanly(copy, image):
                self._events.on_let_in(key)  # it came to be in sync in the same entry
        self.end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return False

    def is_of_another(self, local: LocalPartition) -> bool:
        """Whether the open log was left behind when the partition was handed over, or its engine refuses the epoch in
        which it was opened."""
        role = self._partitions.role(local.key)
        if role is None:
            return False
        return role.is_fenced or role.log.identity.assignment_epoch != local.partition.assignment_epoch

    def _follow_on(self, copy: FollowerPartition, image: PartitionImage) -> None:
        was_throttled = copy.is_throttled
        copy.is_in_sync = self._assigned.node in image.isr
        self._tell_let_in(copy)
        if (copy.leader, copy.leader_epoch) == (image.leader, image.leader_epoch):
            if was_throttled and not copy.is_throttled:
                self._feed(copy)  # at once: producers wait for it from now on
            return
        copy.follow(image.leader, image.leader_epoch)
        self._feed(copy)

    def _tell_let_in(self, copy: FollowerPartition) -> None:
        if copy.is_in_sync and copy.has_replaced:
            self._events.on_let_in(copy.topic_partition)

    def _feed(self, copy: FollowerPartition) -> None:
        if copy.leader != NO_LEADER and not copy.has_ended:  # even while it is cut: it goes on after that
            self._events.copy(copy)
        else:
            self._events.drop(copy.topic_partition)

    # configuration

    def reconfigure_all(self, topics: Iterable[TopicId]) -> None:
        """Reconfigure topics, by the image as it is now."""
        for topic_id in topics:
            if (topic := self._assigned.image.topics.get(topic_id)) is not None:
                self.reconfigure(topic)

    def reconfigure(self, topic: TopicImage) -> None:
        """Give the topic's open logs its configs, by the image as it is now."""
        config = self._assigned.config(topic, self._assigned.image)
        for partition in topic.partitions:
            role = self._partitions.role(TopicPartition(topic.id, partition.index))
            if role is not None:
                role.settings = partition_settings(config, internal=topic.internal)
                role.log.reconfigure(log_config(config))

    # ending

    def end(self, key: TopicPartition, error: ErrorCode) -> None:
        """End the partition's role, whichever it is."""
        self._events.drop(key)
        for role in (self._partitions.leader(key), self._partitions.follower(key)):
            if role is not None:
                role.step_down(error)

    def remove(self, key: TopicPartition) -> Replica | None:
        """Remove the partition's role, and return it; None where it had none."""
        role = self._partitions.remove(key)
        if isinstance(role, FollowerPartition):
            self._events.drop(key)
        elif isinstance(role, Partition):
            self._events.on_forgotten(role)
        return role


def _is_elected_cleanly(copy: FollowerPartition, image: PartitionImage) -> bool:
    """Whether the copy leads by the one election since the epoch that it knows, and as a member of the ISR. Any
    elections in between may have been unclean."""
    return image.leader_epoch == copy.leader_epoch + 1 and not image.is_unclean
