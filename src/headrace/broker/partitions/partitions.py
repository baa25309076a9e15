"""All partitions that this broker holds: those that it leads, and those that it copies. Others look them up here.

Promises: a partition is found as led or as copied, never as both. It never decides who leads: `assignments` follows the
image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from headrace.base.ids import BrokerId, PartitionIndex, TopicId, TopicPartition
from headrace.base.ports import Space
from headrace.broker.kit.serial_work import SerialWork
from headrace.broker.kit.tasks import OnBug, in_thread
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Replica
from headrace.metadata.image import MetadataImage
from headrace.storage.engine.engines import LogEngine
from headrace.wire.errors import ErrorCode

Place: TypeAlias = tuple[str | TopicId, PartitionIndex]
"""A partition as clients name it: by its topic's name or id."""


class Partitions:
    """See the module. One per broker. Loop-only; only `Assignments` and `Roles` change it."""

    def __init__(self, *, node: BrokerId, engine: LogEngine, on_bug: OnBug) -> None:
        self._node = node
        self._engine = engine
        self._serving: dict[TopicPartition, Partition] = {}
        """Partitions that this broker leads."""
        self._following: dict[TopicPartition, FollowerPartition] = {}
        self._places: dict[Place, Partition] = {}
        """Led partitions by every name that clients have for them."""
        self._remembered: list[dict[Any, Any]] = []
        """Earlier results of look-ups, as their callers keep them."""
        self._offline: dict[TopicPartition, str] = {}
        """Logs that could not be opened, with the reason."""
        self.waits: dict[TopicPartition, str] = {}
        """Why partitions that are to be led are not: history cannot be read. A clause that says what to do."""
        self.work = SerialWork(on_bug)
        """The openings, changes of roles and deletions."""

    # look-ups

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the partitions that this broker leads."""
        return iter(self._serving.values())

    def __len__(self) -> int:
        return len(self._serving)

    @property
    def replicas(self) -> list[Replica]:
        """All partitions that this broker holds, as leader or follower."""
        return [*self._serving.values(), *self._following.values()]

    def role(self, key: TopicPartition) -> Replica | None:
        """Return the role of a log that is open here."""
        return self._serving.get(key) or self._following.get(key)

    def leader(self, key: TopicPartition) -> Partition | None:
        """Return the partition where this broker leads it."""
        return self._serving.get(key)

    def follower(self, key: TopicPartition) -> FollowerPartition | None:
        """Return the partition where this broker copies it."""
        return self._following.get(key)

    def find(self, key: TopicPartition, image: MetadataImage) -> Partition | ErrorCode:
        """Return the partition where this broker serves it, else the error for the client."""
        partition = self._serving.get(key)
        if partition is not None and partition.availability is ErrorCode.NONE:
            return partition
        known = image.partition(key)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known.leader != self._node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition is not None:
            return partition.availability
        return ErrorCode.KAFKA_STORAGE_ERROR if key in self._offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def find_readable(self, key: TopicPartition, image: MetadataImage) -> Replica | ErrorCode:
        """As `find`, for a consumer that may read from a follower too (KIP-392)."""
        copy = self._following.get(key)
        if copy is None or copy.has_stepped_down or image.partition(key) is None:
            return self.find(key, image)
        return copy

    def called(self, place: Place) -> Partition | None:
        """Return the partition that a client names, where this broker serves it; None: ask `find` why not."""
        partition = self._places.get(place)
        return None if partition is None or partition.availability is not ErrorCode.NONE else partition

    def remember_in(self, known: dict[Any, Any]) -> None:
        """Clear `known` whenever a partition is served no more: it has earlier results of look-ups."""
        self._remembered.append(known)

    @property
    def kept_copies(self) -> int:
        """Copies of a log that one replica of a partition stands for. Its store may keep several."""
        return self._engine.copies

    @property
    def log_place(self) -> str:
        """Where the logs are, as clients are told."""
        return self._engine.place

    async def space(self) -> Space:
        """Return the space on the logs' volume. Raises OSError."""
        return await in_thread(self._engine.space)

    @property
    def offline(self) -> Mapping[TopicPartition, str]:
        """Partitions that this broker should lead but could not open, with the reason."""
        return self._offline

    async def settled(self) -> None:
        """Wait until every earlier change of the image is carried out."""
        await self.work.settled()

    def wake_readers(self) -> None:
        """Answer every parked fetch with what there is."""
        for role in self.replicas:
            role.fetches.wake()

    def on_contact(self, heard: bool) -> None:
        """Note whether the controller has heard this broker within the last session: see `Partition.doubt`."""
        for partition in self._serving.values():
            if not heard and partition.has_followers:
                partition.doubt()
            else:
                partition.trust()

    # changes

    def add_leader(self, partition: Partition) -> None:
        key = partition.topic_partition
        self._serving[key] = self._places[key] = partition
        self._places[partition.topic, key.partition] = partition

    def add_follower(self, copy: FollowerPartition) -> None:
        self._following[copy.topic_partition] = copy

    def remove(self, key: TopicPartition) -> Replica | None:
        """Remove the partition's role, and return it; None where it had none."""
        if (copy := self._following.pop(key, None)) is not None:
            return copy
        if (partition := self._serving.pop(key, None)) is not None:
            del self._places[key]
            if self._places.get(by_name := (partition.topic, key.partition)) is partition:
                del self._places[by_name]
        return partition

    def clear(self) -> None:
        """Remove all roles: every log is closed."""
        self._serving.clear()
        self._following.clear()
        self._places.clear()

    def on_departure(self) -> None:
        """Make earlier results of look-ups void: partitions are served no more."""
        for known in self._remembered:
            known.clear()

    def set_offline(self, key: TopicPartition, reason: str) -> None:
        self._offline[key] = reason

    def clear_offline(self, key: TopicPartition) -> None:
        self._offline.pop(key, None)
