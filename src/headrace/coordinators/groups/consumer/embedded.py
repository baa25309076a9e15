"""The bytes that consumers of the classic protocol exchange (ConsumerProtocolSubscription and -Assignment), converted
for consumer groups: topics go by id.

Promises: undecodable bytes, or too many topics, give None, never an exception. Names of absent topics are left out.
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
"""Head of a subscription in any version: the version, and the number of topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription and the owned partitions of a classic consumer."""

    version: int
    """Version of the format, or the newest known one if it is too new. From 1 on a member lists the partitions that it
    owns. An eager one gives up all of them before it joins."""
    topics: tuple[str, ...]
    """Sorted, without duplicates."""
    owned: Partitions
    owns: bool
    """Whether it claims to own anything, even of deleted topics."""
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
    """The partitions of an assignment; none where the data is empty. None where it cannot be decoded."""
    if not data:
        return NO_PARTITIONS
    try:
        _, read = CONSUMER_ASSIGNMENT.decode(data)
    except DecodeError:
        return None
    return _partitions(((each.topic, each.partitions) for each in read.assigned_partitions), topics)


def assignment(partitions: Partitions, topics: Topics, version: int) -> bytes:
    """The assignment as sent to a member, in the format version of its subscription."""
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
