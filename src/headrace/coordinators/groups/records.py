"""Group records as `__consumer_offsets` holds them: Kafka's own keys and values, readable by its tools.

Commits are written as OffsetCommitValue v4, the only version with the id of the named topic (KIP-848; Kafka 4.0 and
newer read it). Memberships are written as GroupMetadataValue v3. Older versions are read. Records of unknown kinds
(consumer and share groups) are skipped, as Kafka skips those of a newer release.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import LeaderEpoch, Offset, TopicId
from headrace.coordinators.groups.consumer import records as consumer_records
from headrace.coordinators.groups.events import (
    GroupForgotten,
    GroupFormed,
    GroupRecord,
    MemberRecord,
    OffsetCommitted,
    OffsetForgotten,
)
from headrace.coordinators.groups.model import Commit, NamedPartition
from headrace.wire.data import (
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    key_type,
)
from headrace.wire.messages.group_metadata_key import GroupMetadataKey
from headrace.wire.messages.group_metadata_value import GroupMetadataValue, MemberMetadata
from headrace.wire.messages.offset_commit_key import OffsetCommitKey
from headrace.wire.messages.offset_commit_value import OffsetCommitValue

COMMIT_VERSION: Final = 4
FORMED_VERSION: Final = 3


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Encode to key and value; a missing value is a tombstone. Raises EncodeError where a string is too long for the
    record."""
    match record:
        case OffsetCommitted(group=group, partition=partition, commit=commit):
            return _offset_key(group, partition), OFFSET_COMMIT_VALUE.encode(COMMIT_VERSION, _commit_value(commit))
        case OffsetForgotten(group=group, partition=partition):
            return _offset_key(group, partition), None
        case GroupFormed():
            key = GROUP_METADATA_KEY.encode(GroupMetadataKey(group=record.group))
            return key, GROUP_METADATA_VALUE.encode(FORMED_VERSION, _formed_value(record))
        case GroupForgotten(group=group):
            return GROUP_METADATA_KEY.encode(GroupMetadataKey(group=group)), None
        case _:
            return consumer_records.encode(record)


def decode(key: bytes, value: bytes | None) -> GroupRecord | None:
    """The record under a canonical key; None where it is of another kind. Raises DecodeError where it is damaged."""
    kind = key_type(key)
    if kind == OFFSET_COMMIT_KEY.record_type:
        return _decode_offset(OFFSET_COMMIT_KEY.decode(key), value)
    if kind == GROUP_METADATA_KEY.record_type:
        group = GROUP_METADATA_KEY.decode(key).group
        return GroupForgotten(group=group) if value is None else _decode_formed(group, value)
    return None if value is None else consumer_records.decode(kind, key, value)


def canonical(key: bytes) -> bytes:
    """The key in its present form: the oldest brokers wrote commits with type 0 instead of 1."""
    return b"\0\1" + key[2:] if key[:2] == b"\0\0" else key


def _offset_key(group: str, partition: NamedPartition) -> bytes:
    return OFFSET_COMMIT_KEY.encode(OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition))


def _commit_value(commit: Commit) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        commit_timestamp=commit.timestamp_ms,
        topic_id=commit.topic_id,
    )


def _decode_offset(key: OffsetCommitKey, value: bytes | None) -> GroupRecord:
    partition = NamedPartition(key.topic, key.partition)
    if value is None:
        return OffsetForgotten(group=key.group, partition=partition)
    _, read = OFFSET_COMMIT_VALUE.decode(value)
    commit = Commit(
        offset=Offset(read.offset),
        leader_epoch=LeaderEpoch(read.leader_epoch),
        metadata=read.metadata,
        timestamp_ms=read.commit_timestamp,
        topic_id=TopicId(read.topic_id),
    )
    return OffsetCommitted(group=key.group, partition=partition, commit=commit)


def _formed_value(record: GroupFormed) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol,
        leader=record.leader,
        current_state_timestamp=record.since_ms,
        members=tuple([_member_value(*member) for member in record.members]),
    )


def _member_value(
    member_id: str,
    client_id: str,
    client_host: str,
    rebalance_ms: int,
    session_ms: int,
    subscription: bytes,
    assignment: bytes,
    instance_id: str | None,
) -> MemberMetadata:
    return MemberMetadata(
        member_id, instance_id, client_id, client_host, rebalance_ms, session_ms, subscription, assignment
    )


def _decode_formed(group: str, value: bytes) -> GroupFormed:
    _, read = GROUP_METADATA_VALUE.decode(value)
    return GroupFormed(
        group=group,
        protocol_type=read.protocol_type,
        generation=read.generation,
        protocol=read.protocol,
        leader=read.leader,
        since_ms=read.current_state_timestamp,
        members=tuple(
            MemberRecord(
                id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout,
                rebalance_timeout_ms=member.rebalance_timeout
                if member.rebalance_timeout >= 0
                else member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in read.members
        ),
    )
