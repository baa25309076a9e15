"""A consumer group's records as `__consumer_offsets` holds them: Kafka's own keys and values (types 3, 5 to 8 and 16).

As in Kafka 4.1, a hash in ConsumerGroupMetadata stands for the subscribed topics. The hash is our own, so a reader of
Kafka's records begins one needless epoch. ConsumerGroupPartitionMetadata of older releases (type 4) is skipped.
Assignment epochs are kept as in Kafka 4.3 (KIP-1251), in a tagged field that older readers skip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import immutables

from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.coordinators.groups.consumer.changes import (
    ConsumerEpoch,
    ConsumerJoined,
    ConsumerRecord,
    Current,
    Forgotten,
    PatternResolved,
    Target,
    TargetEpoch,
)
from headrace.coordinators.groups.consumer.model import (
    ClassicMembership,
    ConsumerMember,
    MemberState,
    Partitions,
    Since,
    by_topic,
)
from headrace.wire import data
from headrace.wire.codec import DecodeError
from headrace.wire.messages import consumer_group_current_member_assignment_value as current_value
from headrace.wire.messages import consumer_group_target_assignment_member_value as target_value
from headrace.wire.messages.consumer_group_current_member_assignment_key import ConsumerGroupCurrentMemberAssignmentKey
from headrace.wire.messages.consumer_group_member_metadata_key import ConsumerGroupMemberMetadataKey
from headrace.wire.messages.consumer_group_member_metadata_value import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)
from headrace.wire.messages.consumer_group_metadata_key import ConsumerGroupMetadataKey
from headrace.wire.messages.consumer_group_metadata_value import ConsumerGroupMetadataValue
from headrace.wire.messages.consumer_group_regular_expression_key import ConsumerGroupRegularExpressionKey
from headrace.wire.messages.consumer_group_regular_expression_value import ConsumerGroupRegularExpressionValue
from headrace.wire.messages.consumer_group_target_assignment_member_key import ConsumerGroupTargetAssignmentMemberKey
from headrace.wire.messages.consumer_group_target_assignment_metadata_key import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from headrace.wire.messages.consumer_group_target_assignment_metadata_value import (
    ConsumerGroupTargetAssignmentMetadataValue,
)

Kind: TypeAlias = type[ConsumerEpoch | ConsumerJoined | PatternResolved | TargetEpoch | Target | Current]

_KEYS: Final[Mapping[Kind, tuple[data.TypedKey, Callable[[str, str], Any]]]] = {
    ConsumerEpoch: (data.CONSUMER_GROUP_METADATA_KEY, lambda group, _: ConsumerGroupMetadataKey(group_id=group)),
    ConsumerJoined: (
        data.CONSUMER_GROUP_MEMBER_METADATA_KEY,
        lambda group, name: ConsumerGroupMemberMetadataKey(group_id=group, member_id=name),
    ),
    TargetEpoch: (
        data.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY,
        lambda group, _: ConsumerGroupTargetAssignmentMetadataKey(group_id=group),
    ),
    Target: (
        data.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY,
        lambda group, name: ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id=name),
    ),
    Current: (
        data.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY,
        lambda group, name: ConsumerGroupCurrentMemberAssignmentKey(group_id=group, member_id=name),
    ),
    PatternResolved: (
        data.CONSUMER_GROUP_REGULAR_EXPRESSION_KEY,
        lambda group, name: ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=name),
    ),
}


def _key(kind: Kind, group: str, name: str = "") -> bytes:
    typed, make = _KEYS[kind]
    return typed.encode(make(group, name))


def encode(record: ConsumerRecord, now_ms: int = 0) -> tuple[bytes, bytes | None]:
    """Encode to key and value; a missing value is a tombstone. `now_ms` is kept with regular expressions only."""
    group = record.group
    match record:
        case Forgotten(kind=kind, name=name):
            return _key(kind, group, name), None
        case ConsumerEpoch(epoch=epoch, metadata_hash=metadata_hash):
            value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
            return _key(ConsumerEpoch, group), data.CONSUMER_GROUP_METADATA_VALUE.encode(0, value)
        case ConsumerJoined(member=member):
            raw = data.CONSUMER_GROUP_MEMBER_METADATA_VALUE.encode(0, _member_value(member))
            return _key(ConsumerJoined, group, member.id), raw
        case PatternResolved(pattern=pattern, topics=topics, version=version):
            resolved = ConsumerGroupRegularExpressionValue(
                topics=tuple(sorted(topics)), version=version, timestamp=now_ms
            )
            raw = data.CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE.encode(0, resolved)
            return _key(PatternResolved, group, pattern), raw
        case TargetEpoch(epoch=epoch):
            made_for = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
            raw = data.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE.encode(0, made_for)
            return _key(TargetEpoch, group), raw
        case Target(member_id=member_id, partitions=partitions):
            share = target_value.ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=tuple(
                    target_value.TopicPartition(topic_id=topic_id, partitions=indexes)
                    for topic_id, indexes in by_topic(partitions).items()
                )
            )
            raw = data.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE.encode(0, share)
            return _key(Target, group, member_id), raw
        case Current(member=member):
            raw = data.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE.encode(0, _current_value(member))
            return _key(Current, group, member.id), raw


def _member_value(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _classic_value(member.classic),
    )


def _classic_value(classic: ClassicMembership) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=tuple(ClassicProtocol(name, metadata) for name, metadata in classic.protocols),
    )


def _current_value(member: ConsumerMember) -> current_value.ConsumerGroupCurrentMemberAssignmentValue:
    return current_value.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_topic_partitions(member.assigned, member.since),
        partitions_pending_revocation=_topic_partitions(member.revoking, member.since),
    )


def _topic_partitions(partitions: Partitions, since: Since) -> tuple[current_value.TopicPartitions, ...]:
    return tuple(
        current_value.TopicPartitions(
            topic_id=topic_id,
            partitions=indexes,
            assignment_epochs=tuple(since[TopicPartition(topic_id, PartitionIndex(index))] for index in indexes),
        )
        for topic_id, indexes in by_topic(partitions).items()
    )


def decode(kind: int, key: bytes, value: bytes) -> ConsumerRecord | None:
    """The record under a key of this type; None where it is not a consumer group's. Raises DecodeError."""
    reader = _READERS.get(kind)
    return None if reader is None else reader(key, value)


def _read_epoch(key: bytes, value: bytes) -> ConsumerRecord:
    _, read = data.CONSUMER_GROUP_METADATA_VALUE.decode(value)
    group = data.CONSUMER_GROUP_METADATA_KEY.decode(key).group_id
    return ConsumerEpoch(group=group, epoch=read.epoch, metadata_hash=read.metadata_hash)


def _read_member(key: bytes, value: bytes) -> ConsumerRecord:
    _, read = data.CONSUMER_GROUP_MEMBER_METADATA_VALUE.decode(value)
    named = data.CONSUMER_GROUP_MEMBER_METADATA_KEY.decode(key)
    member = ConsumerMember(
        id=named.member_id,
        instance_id=read.instance_id,
        rack_id=read.rack_id,
        client_id=read.client_id,
        client_host=read.client_host,
        rebalance_timeout_ms=read.rebalance_timeout_ms,
        topics=tuple(read.subscribed_topic_names),
        pattern=read.subscribed_topic_regex,
        assignor=read.server_assignor,
        classic=_classic(read.classic_member_metadata),
    )
    return ConsumerJoined(group=named.group_id, member=member)


def _classic(read: ClassicMemberMetadata | None) -> ClassicMembership | None:
    """The classic membership; None also where it offers no protocol, as when a field of an early writer is missing."""
    if read is None or not read.supported_protocols:
        return None
    protocols = tuple((offer.name, offer.metadata) for offer in read.supported_protocols)
    return ClassicMembership(read.session_timeout_ms, protocols)


def _read_pattern(key: bytes, value: bytes) -> ConsumerRecord:
    _, read = data.CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE.decode(value)
    named = data.CONSUMER_GROUP_REGULAR_EXPRESSION_KEY.decode(key)
    return PatternResolved(
        group=named.group_id, pattern=named.regular_expression, topics=frozenset(read.topics), version=read.version
    )


def _read_target_epoch(key: bytes, value: bytes) -> ConsumerRecord:
    _, read = data.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE.decode(value)
    group = data.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY.decode(key).group_id
    return TargetEpoch(group=group, epoch=read.assignment_epoch)


def _read_target(key: bytes, value: bytes) -> ConsumerRecord:
    _, read = data.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE.decode(value)
    named = data.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY.decode(key)
    return Target(group=named.group_id, member_id=named.member_id, partitions=_partitions(read.topic_partitions))


def _read_current(key: bytes, value: bytes) -> ConsumerRecord:
    _, read = data.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE.decode(value)
    named = data.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY.decode(key)
    if read.state not in set(MemberState):
        raise DecodeError(f"a member has no state {read.state}")
    member = ConsumerMember(
        id=named.member_id,
        state=MemberState(read.state),
        epoch=read.member_epoch,
        previous_epoch=read.previous_member_epoch,
        assigned=_partitions(read.assigned_partitions),
        revoking=_partitions(read.partitions_pending_revocation),
        since=immutables.Map(_since(read)),
    )
    return Current(group=named.group_id, member=member)


def _since(read: current_value.ConsumerGroupCurrentMemberAssignmentValue) -> Iterator[tuple[TopicPartition, int]]:
    """The assignment epoch of each partition. Records of Kafka before 4.3 lack it. Then it is the member's epoch, so
    that the member may commit only at that."""
    unknown = max(read.member_epoch, 0)
    for topic in (*read.partitions_pending_revocation, *read.assigned_partitions):
        epochs = topic.assignment_epochs or ()
        for at, index in enumerate(topic.partitions):
            since = epochs[at] if at < len(epochs) else unknown
            yield TopicPartition(TopicId(topic.topic_id), PartitionIndex(index)), since


def _partitions(topics: Any) -> Partitions:
    return frozenset(
        TopicPartition(TopicId(topic.topic_id), PartitionIndex(index)) for topic in topics for index in topic.partitions
    )


_READERS: Final[Mapping[int, Callable[[bytes, bytes], ConsumerRecord]]] = {
    data.CONSUMER_GROUP_METADATA_KEY.record_type: _read_epoch,
    data.CONSUMER_GROUP_MEMBER_METADATA_KEY.record_type: _read_member,
    data.CONSUMER_GROUP_REGULAR_EXPRESSION_KEY.record_type: _read_pattern,
    data.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY.record_type: _read_target_epoch,
    data.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY.record_type: _read_target,
    data.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY.record_type: _read_current,
}
