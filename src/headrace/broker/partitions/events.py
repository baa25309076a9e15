"""Events of partitions: reports to the other rooms of the broker, and questions to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.base.ids import Offset, TopicPartition
from headrace.base.ports import Buffer
from headrace.replica.leader import ProposeIsr
from headrace.storage.engine.logs import PartitionLog

if TYPE_CHECKING:
    from headrace.broker.partitions.following import FollowerPartition
    from headrace.broker.partitions.intake.forwarding import Done
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.replica import Replica


class PartitionEvents(Protocol):
    """One per broker, given to all of its partitions when they are made. Loop-only."""

    def on_led(self, partition: Partition) -> None:
        """This broker begins to lead the partition. Nobody else finds it yet."""

    def on_forgotten(self, partition: Partition) -> None:
        """This broker does not lead the partition any more."""

    def copy(self, copy: FollowerPartition) -> None:
        """Copy the partition from its present leader, in its present epoch."""

    def drop(self, key: TopicPartition) -> None:
        """Stop copying it."""

    def is_to_begin_again(self, copy: FollowerPartition) -> bool:
        """Whether the copy is to be dropped and copied again, before its leader hears anything of it."""

    def on_let_in(self, key: TopicPartition) -> None:
        """A copy is in sync, and has a replaced log kept beside it."""

    def propose(self, partition: Partition, wanted: ProposeIsr) -> None:
        """Propose this ISR of the partition to the controller."""

    def forward(self, key: TopicPartition, records: Buffer, needs_isr: bool, done: Done) -> bool:
        """Accept a batch of a partition that is handed over, and that this broker does not lead any more, or yet.
        Returns False where it is not accepted."""

    def suspect(self, replica: Replica, offset: Offset | None) -> bool:
        """A log could not be read at this offset (None: somewhere). Returns whether it will be examined."""

    def on_damaged(self, key: TopicPartition) -> None:
        """A log is damaged, or has a replaced log kept beside it."""

    def on_failed(self, key: TopicPartition) -> None:
        """The disk of a log has failed, the log could not be opened, or its store has other records than it."""

    async def release(self, logs: Sequence[PartitionLog]) -> None:
        """End all other work on logs that are about to be cut, closed or deleted."""
