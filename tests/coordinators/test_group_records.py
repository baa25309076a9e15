"""The records of groups in the log, against bytes that Kafka wrote and by law; and Kafka's choice of partition."""

from __future__ import annotations

import contextlib
import struct
import uuid
from dataclasses import replace

import immutables
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups import records
from headrace.coordinators.groups.commits import CommitReader, CommitWriter
from headrace.coordinators.groups.consumer.changes import Current
from headrace.coordinators.groups.consumer.model import ConsumerMember, MemberState, Since
from headrace.coordinators.groups.model import Commit, Moment, NamedPartition
from headrace.coordinators.groups.replay import Replay
from headrace.coordinators.partitioning import partition_for
from headrace.wire.codec import DecodeError, EncodeError

texts = st.text(max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(NamedPartition, texts, int32s)
commits = st.builds(
    Commit,
    offset=int64s.map(Offset),
    leader_epoch=int32s.map(LeaderEpoch),
    metadata=texts,
    timestamp_ms=int64s,
    topic_id=st.uuids().map(TopicId),
)
members = st.builds(
    ev.MemberRecord,
    id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    session_timeout_ms=int32s,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    subscription=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)
group_records = st.one_of(
    st.builds(ev.OffsetCommitted, group=texts, partition=partitions, commit=commits),
    st.builds(ev.OffsetForgotten, group=texts, partition=partitions),
    st.builds(ev.GroupForgotten, group=texts),
    st.builds(
        ev.GroupFormed,
        group=texts,
        protocol_type=texts,
        generation=int32s,
        protocol=st.none() | texts,
        leader=st.none() | texts,
        since_ms=int64s,
        members=st.lists(members, max_size=3).map(tuple),
    ),
)


@given(group_records)
def test_what_is_written_is_read(record: ev.GroupRecord) -> None:
    assert records.decode(*records.encode(record)) == record


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(DecodeError):
        records.decode(records.canonical(key), value)


few = st.sampled_from(["", "a", "group", "grüße"])
few_commits = st.builds(
    ev.OffsetCommitted,
    group=few,
    partition=st.builds(NamedPartition, few, st.integers(0, 1)),
    commit=st.builds(
        Commit,
        offset=int64s.map(Offset),
        leader_epoch=int32s.map(LeaderEpoch),
        metadata=few | st.text(min_size=60, max_size=200),
        timestamp_ms=int64s,
        topic_id=st.sampled_from([TopicId(uuid.UUID(int=0)), TopicId(uuid.UUID(int=5)), TopicId(uuid.UUID(int=6))]),
    ),
)
cuts = st.tuples(st.integers(0, 60), st.sampled_from([b"", b"\0", b"\1", b"\xff"]), st.booleans())


@given(st.lists(st.tuples(few_commits | group_records, st.none() | cuts), min_size=1, max_size=8))
def test_commits_that_are_read_fast_are_what_they_are_read_slowly(
    lines: list[tuple[ev.GroupRecord, tuple[int, bytes, bool] | None]],
) -> None:
    """Also where bytes are wrong or missing, in the key or in the value."""
    reader = CommitReader()
    for record, cut in lines:
        key, value = records.encode(record)
        if value is None:
            continue
        if cut is not None:
            at, instead, in_key = cut
            wrong = (key if in_key else value)[:at] + instead + (key if in_key else value)[at + 1 :]
            key, value = (wrong, value) if in_key else (key, wrong)
        try:
            slow = records.decode(key, value)
        except DecodeError:
            slow = None
        try:
            fast = reader.read(key, value)
        except DecodeError:
            fast = None
        if fast is not None:
            assert slow == ev.OffsetCommitted(group=fast.group, partition=fast.partition, commit=fast.commit)
        if cut is None and isinstance(record, ev.OffsetCommitted) and len(record.commit.metadata) < 30:
            assert fast is not None


@given(st.lists(few_commits | st.builds(ev.OffsetCommitted, group=texts, partition=partitions, commit=commits)))
def test_commits_that_are_written_fast_are_what_they_are_written_slowly(lines: list[ev.OffsetCommitted]) -> None:
    writer = CommitWriter()
    for record in lines:
        assert writer.write(record) == records.encode(record)


def test_a_name_that_no_record_holds_is_refused_by_the_fast_writer_too() -> None:
    commit = Commit(offset=Offset(1), timestamp_ms=0)
    record = ev.OffsetCommitted(group="g" * 40_000, partition=NamedPartition("t", 0), commit=commit)
    writer = CommitWriter()
    for _ in range(2):
        with pytest.raises(EncodeError):
            writer.write(record)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_a_commit_has_kafkas_bytes() -> None:
    """Written out by hand from the message definitions: key type 1; value version 4, compact, topic id under tag 0."""
    topic_id = TopicId(uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"))
    commit = Commit(
        offset=Offset(42),
        leader_epoch=LeaderEpoch(3),
        metadata="note",
        timestamp_ms=1_700_000_000_000,
        topic_id=topic_id,
    )
    key, value = records.encode(ev.OffsetCommitted(group="g", partition=NamedPartition("flights", 2), commit=commit))
    assert key == b"\0\1" + text("g") + text("flights") + struct.pack(">i", 2)
    tagged = b"\1\0\x10" + topic_id.bytes
    assert value == b"\0\4" + struct.pack(">qi", 42, 3) + b"\5note" + struct.pack(">q", 1_700_000_000_000) + tagged


@pytest.mark.parametrize("version", range(4))
def test_commits_of_older_brokers_are_read(version: int) -> None:
    value = struct.pack(">hq", version, 42)
    value += struct.pack(">i", 3) if version == 3 else b""
    value += text("note") + struct.pack(">q", 1_700_000_000_000)
    value += struct.pack(">q", 1_800_000_000_000) if version == 1 else b""
    for key_type in (0, 1):
        key = struct.pack(">h", key_type) + text("g") + text("t") + struct.pack(">i", 0)
        record = records.decode(records.canonical(key), value)
        assert isinstance(record, ev.OffsetCommitted)
        assert (record.commit.offset, record.commit.metadata) == (42, "note")
        assert record.commit.leader_epoch == (3 if version == 3 else -1)


def test_a_membership_has_kafkas_bytes() -> None:
    """Key type 2; value version 3."""
    member = ev.MemberRecord(
        id="m",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10,
        rebalance_timeout_ms=20,
        subscription=b"s",
        assignment=b"a",
    )
    formed = ev.GroupFormed(
        group="g", protocol_type="consumer", generation=7, protocol="range", leader="m", since_ms=99, members=(member,)
    )
    key, value = records.encode(formed)
    assert key == b"\0\2" + text("g")
    expected = b"\0\3" + text("consumer") + struct.pack(">i", 7) + text("range") + text("m") + struct.pack(">qi", 99, 1)
    expected += text("m") + struct.pack(">h", -1) + text("c") + text("/h") + struct.pack(">ii", 20, 10)
    expected += struct.pack(">i", 1) + b"s" + struct.pack(">i", 1) + b"a"
    assert value == expected


def test_what_a_member_has_and_since_when_has_kafkas_bytes() -> None:
    """Key type 8; value version 0, compact, the epochs under tag 0 of each topic, as Kafka 4.3 has them (KIP-1251)."""
    topic_id, other = TopicId(uuid.UUID(int=5)), TopicId(uuid.UUID(int=6))
    first, second = (TopicPartition(topic_id, PartitionIndex(index)) for index in (0, 3))
    given_up = TopicPartition(other, PartitionIndex(1))
    member = ConsumerMember(
        id="m",
        state=MemberState.UNREVOKED_PARTITIONS,
        epoch=9,
        previous_epoch=8,
        assigned=frozenset({first, second}),
        revoking=frozenset({given_up}),
        since=immutables.Map([(first, 4), (second, 9), (given_up, 7)]),
    )
    key, value = records.encode(Current(group="g", member=member))
    assert key == b"\0\x08" + text("g") + text("m")
    head = struct.pack(">hiib", 0, 9, 8, 1)

    def topics(epochs: bool) -> bytes:
        since, lasts = (b"\1\0\x09\x03" + struct.pack(">ii", 4, 9), b"\1\0\x05\x02" + struct.pack(">i", 7))
        assigned = b"\2" + topic_id.bytes + b"\3" + struct.pack(">ii", 0, 3) + (since if epochs else b"\0")
        return assigned + b"\2" + other.bytes + b"\2" + struct.pack(">i", 1) + (lasts if epochs else b"\0") + b"\0"

    assert value == head + topics(epochs=True)
    assert records.decode(key, value) == Current(group="g", member=member)
    unknown: Since = immutables.Map([(first, 9), (second, 9), (given_up, 9)])
    older = records.decode(key, head + topics(epochs=False))
    assert older == Current(group="g", member=replace(member, since=unknown)), "of an older broker: from its epoch on"


def test_a_damaged_record_is_passed_over_and_counted() -> None:
    replay = Replay()
    for record in (
        ev.OffsetCommitted(
            group="g", partition=NamedPartition("t", 0), commit=Commit(offset=Offset(1), timestamp_ms=0)
        ),
        ev.OffsetCommitted(
            group="g", partition=NamedPartition("t", 1), commit=Commit(offset=Offset(2), timestamp_ms=0)
        ),
    ):
        key, value = records.encode(record)
        replay.apply(key, value)
    assert value is not None
    replay.apply(key, value[:-1])
    replay.apply(b"", b"")
    assert set(replay.groups(Moment(0, 0))["g"].offsets) == {NamedPartition("t", 0)}
    assert replay.passed_over == 2


def test_records_of_kinds_that_are_not_known_are_passed_over() -> None:
    assert records.decode(struct.pack(">h", 9) + text("g"), b"\0\0") is None


@pytest.mark.parametrize(
    ("group", "hash_code"),
    [
        ("", 0),
        ("g", 103),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("console-consumer-12345", 158455506),
        ("Grüße", 69215351),
        ("😀", 1772899),
        ("tiny-e2e-group", -972132483),
    ],
)
def test_a_group_is_where_kafka_looks_for_it(group: str, hash_code: int) -> None:
    """`Utils.abs(groupId.hashCode) % partitions`, with hash codes that are known from Java."""
    expected = 0 if hash_code == -(2**31) else abs(hash_code)
    assert partition_for(group, 50) == expected % 50
    assert partition_for(group, 2**31 - 1) == expected % (2**31 - 1)
