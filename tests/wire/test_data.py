"""Messages within others: the consumer protocol, and the records of `__consumer_offsets`."""

from __future__ import annotations

import struct

import pytest

from headrace.wire import data
from headrace.wire.apis import DecodeError, EncodeError
from headrace.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from headrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from headrace.wire.messages.group_metadata_key import GroupMetadataKey
from headrace.wire.messages.offset_commit_key import OffsetCommitKey
from headrace.wire.messages.offset_commit_value import OffsetCommitValue


def test_values_are_led_by_their_version() -> None:
    value = OffsetCommitValue(offset=7, leader_epoch=3, metadata="m", commit_timestamp=9)
    raw = data.OFFSET_COMMIT_VALUE.encode(3, value)
    assert raw == struct.pack(">hqih", 3, 7, 3, 1) + b"m" + struct.pack(">q", 9)
    assert data.OFFSET_COMMIT_VALUE.decode(raw) == (3, value)
    for size in range(len(raw)):
        with pytest.raises(DecodeError):
            data.OFFSET_COMMIT_VALUE.decode(raw[:size])
    with pytest.raises(DecodeError):
        data.OFFSET_COMMIT_VALUE.decode(raw + b"\0")


def test_keys_are_led_by_their_type() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=5)
    raw = data.OFFSET_COMMIT_KEY.encode(key)
    assert raw == b"\0\1\0\1g\0\1t\0\0\0\5"
    assert data.key_type(raw) == data.OFFSET_COMMIT_KEY.record_type
    assert data.OFFSET_COMMIT_KEY.decode(raw) == key
    group = data.GROUP_METADATA_KEY.encode(GroupMetadataKey(group="g"))
    assert data.key_type(group) == 2
    with pytest.raises(DecodeError, match="of type 2"):
        data.OFFSET_COMMIT_KEY.decode(group)
    with pytest.raises(DecodeError):
        data.key_type(b"\0")


def test_a_newer_consumer_protocol_is_read_as_the_newest_known() -> None:
    item = ConsumerProtocolSubscription(topics=("a", "b"), generation_id=4, rack_id="r")
    raw = data.CONSUMER_SUBSCRIPTION.encode(3, item)
    assert data.CONSUMER_SUBSCRIPTION.decode(raw) == (3, item)
    newer = struct.pack(">h", 9) + raw[2:] + b"fields of version 9"
    assert data.CONSUMER_SUBSCRIPTION.decode(newer) == (9, item)
    with pytest.raises(DecodeError):
        data.CONSUMER_SUBSCRIPTION.decode(raw[:-1])
    with pytest.raises(DecodeError):
        data.OFFSET_COMMIT_VALUE.decode(struct.pack(">h", 9) + bytes(40))


def test_an_assignment_reads_back() -> None:
    item = ConsumerProtocolAssignment(assigned_partitions=(TopicPartition(topic="t", partitions=(0, 2)),))
    assert data.CONSUMER_ASSIGNMENT.decode(data.CONSUMER_ASSIGNMENT.encode(0, item)) == (0, item)


def test_a_version_that_there_is_not_cannot_be_written() -> None:
    with pytest.raises(EncodeError):
        data.OFFSET_COMMIT_VALUE.encode(9, OffsetCommitValue())
