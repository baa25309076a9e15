"""Hands the events of partitions to the rooms that see to them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.ids import Offset, TopicPartition
from headrace.base.ports import Buffer
from headrace.broker.metrics.led_before import LedBefore
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.intake.forwarding import Done, Forwarder
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Replica
from headrace.broker.replication.building import Replication
from headrace.broker.upkeep.building import Upkeep
from headrace.replica.leader import ProposeIsr
from headrace.storage.engine.logs import PartitionLog


class Reactions:
    """`PartitionEvents` of a broker."""

    def __init__(
        self, *, forwarder: Forwarder, replication: Replication, upkeep: Upkeep, led_before: LedBefore | None
    ) -> None:
        """`led_before`: None: no metrics are asked for."""
        self._forwarder = forwarder
        self._copying = replication.copying
        self._renewals = replication.renewals
        self._isr = replication.isr
        self._cleaner = upkeep.cleaner
        self._examiner = upkeep.examiner
        self._led_before = led_before

    def on_led(self, partition: Partition) -> None:
        self._forwarder.on_led(partition.topic_partition, partition)

    def on_forgotten(self, partition: Partition) -> None:
        if self._led_before is not None:
            self._led_before.on_forgotten(partition)

    def copy(self, copy: FollowerPartition) -> None:
        self._copying.copy(copy)

    def drop(self, key: TopicPartition) -> None:
        self._copying.drop(key)

    def is_to_begin_again(self, copy: FollowerPartition) -> bool:
        return self._renewals.is_to_begin_again(copy)

    def on_let_in(self, key: TopicPartition) -> None:
        self._renewals.note_let_in(key)

    def propose(self, partition: Partition, wanted: ProposeIsr) -> None:
        self._isr.propose(partition, wanted)

    def forward(self, key: TopicPartition, records: Buffer, needs_isr: bool, done: Done) -> bool:
        return self._forwarder.take(key, records, needs_isr, done)

    def suspect(self, replica: Replica, offset: Offset | None) -> bool:
        return self._examiner.suspect(replica, offset)

    def on_damaged(self, key: TopicPartition) -> None:
        self._renewals.note(key)

    def on_failed(self, key: TopicPartition) -> None:
        self._isr.leave(key)

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        await self._cleaner.release(logs)
        await self._examiner.release(logs)
