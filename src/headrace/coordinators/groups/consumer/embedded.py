"""What consumers of the classic protocol tell each other in bytes (ConsumerProtocolSubscription and -Assignment), as
consumer groups need it: by topic id.

Promises: what is undecodable, or names too many topics, is None, never an exception; a name that no topic has is left
out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.limits import GROUP_CLASSIC_TOPICS_MAX
from headrace.coordinators.groups.consumer.model import NO_PARTITIONS, Partitions, Topics, by_topic
from headrace.wire.codec import DecodeError
from headrace.wire.data import CONSUMER_ASSIGNMENT, CONSUMER_SUBSCRIPTION
from headrace.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from headrace.wire.messages.consumer_protocol_assignment import TopicPartition as AssignedTopic

_START: Final = struct.Struct(">hi")
"""Of a subscription in any version: that, and how many topics it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a classic consumer wants, and has."""

    version: int
    """Of the format; of one that is not known here yet, the newest that is. From 1 on a member tells what it owns,
    unless it gives all up before it joins (eager)."""
    topics: tuple[str, ...]
    """Sorted, each once."""
    owned: Partitions
    owns: bool
    """Whether it says to own anything, be it of topics that are no more."""
    rack_id: str | None


def subscription(data: bytes, topics: Topics) -> Subscription | None:
    if len(data) >= _START.size and _START.unpack_from(data)[1] > GROUP_CLASSIC_TOPICS_MAX:
        return None
    try:
        version, read = CONSUMER_SUBSCRIPTION.decode(data)
    except DecodeError:
        return None
    return Subscription(
        version=min(version, CONSUMER_ASSIGNMENT.max_version),
        topics=tuple(sorted(set(read.topics))),
        owned=_partitions(((each.topic, each.partitions) for each in read.owned_partitions), topics),
        owns=bool(read.owned_partitions),
        rack_id=read.rack_id or None,
    )


def assigned(data: bytes, topics: Topics) -> Partitions | None:
    """What an assignment gives; nothing where there is none yet."""
    if not data:
        return NO_PARTITIONS
    try:
        _, read = CONSUMER_ASSIGNMENT.decode(data)
    except DecodeError:
        return None
    return _partitions(((each.topic, each.partitions) for each in read.assigned_partitions), topics)


def assignment(partitions: Partitions, topics: Topics, version: int) -> bytes:
    """As a member is told it, in the version of the format that its subscription came in."""
    named = ((topics.name(topic_id), indexes) for topic_id, indexes in by_topic(partitions).items())
    told = tuple(AssignedTopic(topic=name, partitions=indexes) for name, indexes in named if name is not None)
    data: bytes = CONSUMER_ASSIGNMENT.encode(version, ConsumerProtocolAssignment(assigned_partitions=told))
    return data


def _partitions(named: Iterable[tuple[str, Iterable[int]]], topics: Topics) -> Partitions:
    found = ((topics.shape(name), indexes) for name, indexes in named)
    return frozenset(
        TopicPartition(shape.id, PartitionIndex(index))
        for shape, indexes in found
        if shape is not None
        for index in indexes
        if index >= 0
    )
