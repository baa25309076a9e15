"""Writes markers, which end transactions, to the partitions that this broker leads (WriteTxnMarkers).

Promises: a marker counts once it is committed by the acks=all rule. In a partition of the offsets topic it also ends
the transaction for the groups that the partition keeps, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.groups.service import OFFSETS_TOPIC, GroupService
from headrace.broker.partitions.replica import WriteRefusal
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.shard import GroupShard
    from headrace.broker.partitions.partitions import Partitions
    from headrace.coordinators.values import NamedPartition
    from headrace.metadata.image import MetadataImage


class Marker(NamedTuple):
    """The end of one producer's transaction, as its coordinator decided it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_committed: bool
    bumps_epochs: bool = False
    """The transaction is of the new protocol (KIP-890), so this epoch is above that of its batches."""


class MarkerWriter:
    """See the module. Loop-only."""

    def __init__(self, *, image: Callable[[], MetadataImage], partitions: Partitions, groups: GroupService) -> None:
        self._image: Final = image
        self._partitions: Final = partitions
        self._groups: Final = groups

    def write(self, named: NamedPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Append a marker. `done` is called with the outcome, now or later."""
        image = self._image()
        topic = image.topic(named.topic)
        if topic is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        partition = self._partitions.find(TopicPartition(topic.id, PartitionIndex(named.partition)), image)
        if isinstance(partition, ErrorCode):
            done(partition)
            return
        shard = None
        if named.topic == OFFSETS_TOPIC:
            index = PartitionIndex(named.partition)
            shard = self._groups.loaded(index)
            if shard is None and not self._groups.is_unreadable(index):  # it may have read past the marker's place
                done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return
        appended = partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            is_committed=marker.is_committed,
            bumps_epochs=marker.bumps_epochs,
        )
        if isinstance(appended, WriteRefusal):
            done(appended.error)
        else:
            partition.park_commit(appended.end, _Written(marker, shard, done))


class _Written:
    """A `Commit`: the outcome of one marker."""

    __slots__ = ("_done", "_marker", "_shard")

    def __init__(self, marker: Marker, shard: GroupShard | None, done: Callable[[ErrorCode], None]) -> None:
        self._marker = marker
        self._shard = shard
        self._done = done

    def on_outcome(self, error: ErrorCode) -> None:
        is_durable = error in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if is_durable and self._shard is not None:
            self._shard.end_transaction(self._marker.producer_id, is_committed=self._marker.is_committed)
        self._done(error)
