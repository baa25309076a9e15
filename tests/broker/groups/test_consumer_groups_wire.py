"""The APIs of consumer groups (KIP-848) over the wire, in every version, and what a restart remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, RequestTopicPartitions
from headrace.wire.messages.delete_groups import DeleteGroupsRequest
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.broker.group_broker import RawClient, running
from tests.broker.groups.test_wire import find

DEADLINE_S = 150


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        yield client


def joining(group: str = "g", member_id: str = "m", **fields: Any) -> ConsumerGroupHeartbeatRequest:
    whole: dict[str, Any] = {
        "rebalance_timeout_ms": 1_000_000,
        "subscribed_topic_names": ("t",),
        "topic_partitions": (),
    }
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=0, **(whole | fields))


def beating(epoch: int, member_id: str = "m", group: str = "g", **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **fields)


def partitions(answer: Any) -> list[int]:
    return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]


async def commit(client: RawClient, epoch: int, version: int = 9, member_id: str = "m") -> int:
    one = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=(OffsetCommitRequestTopic(name="t", partitions=(one,)),),
    )
    response = await client.ask(version, request)
    code: int = response.topics[0].partitions[0].error_code
    return code


async def fetched(client: RawClient, member_id: str | None, epoch: int) -> Any:
    asked = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
    return (await client.ask(9, OffsetFetchRequest(groups=(asked,)))).groups[0]


async def test_two_members_share_and_one_leaves(client: RawClient) -> None:
    first = await client.ask(1, joining())
    assert (first.error_code, first.member_id, first.member_epoch) == (0, "m", 1)
    assert first.heartbeat_interval_ms == 5_000
    assert partitions(first) == [0, 1, 2]
    second = await client.ask(1, joining(member_id="n"))
    assert partitions(second) == []
    told = await client.ask(1, beating(1))
    assert told.member_epoch == 1
    (topic,) = told.assignment.topic_partitions
    kept = RequestTopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
    assert (await client.ask(1, beating(1, topic_partitions=(kept,)))).member_epoch == 2
    shared = await client.ask(1, beating(2, "n"))
    assert sorted([*topic.partitions, *partitions(shared)]) == [0, 1, 2]
    assert (await client.ask(1, beating(-1, "n"))).member_epoch == -1
    assert partitions(await client.ask(1, beating(2))) == [0, 1, 2]


async def test_the_oldest_version_is_given_a_member_id(client: RawClient) -> None:
    joined = await client.ask(0, joining(member_id=""))
    assert joined.error_code == 0
    assert joined.member_id.startswith("raw-")
    assert (await client.ask(0, beating(joined.member_epoch, joined.member_id))).error_code == 0


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (joining(group=""), ErrorCode.INVALID_REQUEST),
        (joining(member_id=""), ErrorCode.INVALID_REQUEST),
        (joining(instance_id=""), ErrorCode.INVALID_REQUEST),
        (joining(rack_id=""), ErrorCode.INVALID_REQUEST),
        (joining(rebalance_timeout_ms=-1), ErrorCode.INVALID_REQUEST),
        (joining(topic_partitions=None), ErrorCode.INVALID_REQUEST),
        (joining(topic_partitions=(RequestTopicPartitions(partitions=(1,)),)), ErrorCode.INVALID_REQUEST),
        (joining(subscribed_topic_names=None), ErrorCode.INVALID_REQUEST),
        (joining(member_id="m" * 8_001), ErrorCode.INVALID_REQUEST),
        (joining(server_assignor="mine"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (joining(subscribed_topic_regex="(t"), ErrorCode.INVALID_REGULAR_EXPRESSION),
        (beating(-2), ErrorCode.INVALID_REQUEST),
        (beating(-3), ErrorCode.INVALID_REQUEST),
        (beating(5), ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_what_cannot_be_is_refused_with_words(client: RawClient, request_: Any, error: ErrorCode) -> None:
    answer = await client.ask(1, request_)
    assert answer.error_code == error
    assert answer.error_message


async def test_a_group_is_told_of_as_what_it_is(client: RawClient) -> None:
    await client.ask(1, joining(subscribed_topic_regex="t|u", instance_id="i", rack_id="r"))
    for version in (0, 1):
        described = await client.ask(version, ConsumerGroupDescribeRequest(group_ids=("g", "none", "")))
        group, missing, bad = described.groups
        assert (missing.error_code, bad.error_code) == (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID)
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
        assert group.assignor_name == "uniform"
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 1)
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("t",), "t|u")
        assert member.member_type == (1 if version else -1)
        assert member.assignment == member.target_assignment
        (topic,) = member.assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("t", (0, 1, 2))
    for types, count in (((), 1), (("Consumer",), 1), (("classic",), 0)):
        listed = await client.ask(5, ListGroupsRequest(types_filter=types))
        assert len(listed.groups) == count
    (listing,) = (await client.ask(5, ListGroupsRequest())).groups
    assert (listing.group_type, listing.protocol_type, listing.group_state) == ("consumer", "consumer", "Stable")
    (classic,) = (await client.ask(6, DescribeGroupsRequest(groups=("g",)))).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert "not a classic group" in classic.error_message
    deleted = await client.ask(2, DeleteGroupsRequest(groups_names=("g",)))
    assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP


async def test_offsets_are_for_members_at_their_epoch(client: RawClient) -> None:
    await client.ask(1, joining())
    assert await commit(client, 1) == 0
    assert await commit(client, 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(client, 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert await commit(client, 1, member_id="n") == ErrorCode.UNKNOWN_MEMBER_ID
    for member_id, epoch, error in (
        ("m", 1, 0),
        (None, -1, 0),
        ("m", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("n", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert (await fetched(client, member_id, epoch)).error_code == error


async def test_a_restart_remembers_members_shares_and_offsets(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        await client.ask(1, joining())
        await client.ask(1, joining(member_id="n", subscribed_topic_regex="t.*"))
        assert await commit(client, 1) == 0
        before = (await client.ask(1, ConsumerGroupDescribeRequest(group_ids=("g",)))).groups
        assert len(before[0].members) == 2
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await find(client)
        after = (await client.ask(1, ConsumerGroupDescribeRequest(group_ids=("g",)))).groups
        while after[0].error_code:
            assert after[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            after = (await client.ask(1, ConsumerGroupDescribeRequest(group_ids=("g",)))).groups
        assert after == before
        assert (await fetched(client, "m", 1)).topics[0].partitions[0].committed_offset == 7
        assert partitions(await client.ask(1, beating(1))) != [0, 1, 2], "it is still to give up"


async def test_a_silent_member_is_out(tmp_path: Path) -> None:
    """The session runs out by the broker's own timer; the other is told with a heartbeat."""
    configs = {"group.consumer.session.timeout.ms": "300"}
    async with running(tmp_path / "data", configs) as bootstrap, RawClient(bootstrap) as client:
        async with asyncio.timeout(DEADLINE_S):
            await client.create_topic("t", 3)
            await find(client)
            await client.ask(1, joining())
            while (await client.ask(1, ConsumerGroupDescribeRequest(group_ids=("g",)))).groups[0].members:
                pass
            assert (await client.ask(1, beating(1))).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_metadata_by_id_is_by_id_whatever_the_name(client: RawClient) -> None:
    """As the Java client asks for topics that it was assigned: with an empty name."""
    by_name = MetadataRequestTopic(name="t")
    (topic,) = (await client.ask(12, MetadataRequest(topics=(by_name,)))).topics
    by_id = MetadataRequestTopic(topic_id=topic.topic_id, name="")
    assert (await client.ask(12, MetadataRequest(topics=(by_id,)))).topics == (topic,)
