"""The group APIs over the wire, in every version that is advertised, and what a restart remembers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.base.limits import GROUP_NAME_CHARS_MAX
from headrace.broker.groups.service import GroupService
from headrace.controller.decision import Refusal
from headrace.coordinators.partitioning import partition_for
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_groups import DeleteGroupsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.group_broker import RawClient, running

DEADLINE_S = 150


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        yield client


async def find(client: RawClient, group: str = "g") -> None:
    response = await client.ask(2, FindCoordinatorRequest(key=group))
    assert response.error_code == 0


def join_request(group: str = "g", member_id: str = "", **fields: Any) -> JoinGroupRequest:
    fields = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 1_000_000, "protocol_type": "consumer", **fields}
    protocols = (JoinGroupRequestProtocol(name="range", metadata=b"topics"),)
    return JoinGroupRequest(group_id=group, member_id=member_id, protocols=protocols, **fields)


async def join(client: RawClient, version: int = 9, group: str = "g", **fields: Any) -> Any:
    """Join as the only member; told one's id first where the version has that."""
    response = await client.ask(version, join_request(group, **fields))
    if version >= 4:
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        response = await client.ask(version, join_request(group, response.member_id, **fields))
    assert response.error_code == 0
    return response


async def sync(client: RawClient, joined: Any, version: int = 5, group: str = "g") -> Any:
    share = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    return await client.ask(
        version,
        SyncGroupRequest(
            group_id=group,
            member_id=joined.member_id,
            generation_id=joined.generation_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=(share,),
        ),
    )


async def topic_id(client: RawClient, name: str = "t") -> Any:
    response = await client.ask(
        12, MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
    )
    return response.topics[0].topic_id


async def commit(
    client: RawClient, offsets: dict[int, int], version: int = 9, *, group: str = "g", topic: str = "t", **fields: Any
) -> list[int]:
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="note")
        for index, offset in offsets.items()
    )
    named = OffsetCommitRequestTopic(name=topic, partitions=partitions)
    if version >= 10:
        named = OffsetCommitRequestTopic(topic_id=await topic_id(client, topic), partitions=partitions)
    response = await client.ask(version, OffsetCommitRequest(group_id=group, topics=(named,), **fields))
    return [partition.error_code for partition in response.topics[0].partitions]


async def committed(client: RawClient, indexes: tuple[int, ...] = (0, 1, 2), *, group: str = "g") -> dict[int, int]:
    wanted = OffsetFetchRequestGroup(
        group_id=group, topics=(OffsetFetchRequestTopics(name="t", partition_indexes=indexes),)
    )
    while True:
        response = await client.ask(8, OffsetFetchRequest(groups=(wanted,)))
        if response.groups[0].error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert response.groups[0].error_code == 0
            partitions = response.groups[0].topics[0].partitions
            return {partition.partition_index: partition.committed_offset for partition in partitions}


@pytest.mark.parametrize("version", range(10))
async def test_a_member_lives_its_life_in_every_version(client: RawClient, version: int) -> None:
    joined = await join(client, version)
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [(member.member_id, member.metadata) for member in joined.members] == [(joined.member_id, b"topics")]
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    synced = await sync(client, joined, min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b"all")
    beat = HeartbeatRequest(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
    assert (await client.ask(min(version, 4), beat)).error_code == 0
    leave_version = min(version, 5)
    if leave_version < 3:
        left = await client.ask(leave_version, LeaveGroupRequest(group_id="g", member_id=joined.member_id))
    else:
        members = (MemberIdentity(member_id=joined.member_id), MemberIdentity(member_id="nobody"))
        left = await client.ask(leave_version, LeaveGroupRequest(group_id="g", members=members))
        assert [member.error_code for member in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert left.error_code == 0
    assert (await client.ask(min(version, 4), beat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(10))
async def test_a_refused_join_is_said_in_every_version(client: RawClient, version: int) -> None:
    response = await client.ask(version, join_request(session_timeout_ms=1))
    assert response.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    response = await client.ask(version, join_request(member_id="nobody"))
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await client.ask(version, join_request(group=""))).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(2, 11))
async def test_offsets_are_committed_in_every_version(client: RawClient, version: int) -> None:
    assert await commit(client, {0: 10, 1: 20, 7: 1}, version) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await committed(client) == {0: 10, 1: 20, 2: -1}


async def test_a_commit_for_an_unknown_topic_says_so(client: RawClient) -> None:
    assert await commit(client, {0: 1}, topic="nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await commit(client, {0: 1}, 10, topic="nowhere") == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_members_commit_under_their_generation_alone(client: RawClient) -> None:
    joined = await join(client)
    await sync(client, joined)
    mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
    assert await commit(client, {0: 5}, **mine) == [0]
    assert await commit(client, {0: 6}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    mine["generation_id_or_member_epoch"] += 1
    assert await commit(client, {0: 7}, **mine) == [ErrorCode.ILLEGAL_GENERATION]
    assert await committed(client, (0,)) == {0: 5}


@pytest.mark.parametrize("version", range(1, 11))
async def test_offsets_are_fetched_in_every_version(client: RawClient, version: int) -> None:
    await commit(client, {0: 10})
    if version < 8:
        asked = (OffsetFetchRequestTopic(name="t", partition_indexes=(0, 1)),)
        response = await client.ask(version, OffsetFetchRequest(group_id="g", topics=asked))
        topics = response.topics
    else:
        named = OffsetFetchRequestTopics(name="t", partition_indexes=(0, 1))
        if version >= 10:
            named = OffsetFetchRequestTopics(topic_id=await topic_id(client), partition_indexes=(0, 1))
        group = OffsetFetchRequestGroup(group_id="g", topics=(named,))
        response = (await client.ask(version, OffsetFetchRequest(groups=(group,)))).groups[0]
        topics = response.topics
        assert topics[0].topic_id == named.topic_id
    assert response.error_code == 0
    found = [(one.partition_index, one.committed_offset, one.metadata) for one in topics[0].partitions]
    assert found == [(0, 10, "note"), (1, -1, "")]


@pytest.mark.parametrize("version", [2, 7, 8, 10])
async def test_all_offsets_of_a_group_are_fetched_without_naming_them(client: RawClient, version: int) -> None:
    await commit(client, {2: 30, 0: 10})
    if version < 8:
        topics = (await client.ask(version, OffsetFetchRequest(group_id="g", topics=None))).topics
    else:
        group = OffsetFetchRequestGroup(group_id="g", topics=None)
        topics = (await client.ask(version, OffsetFetchRequest(groups=(group,)))).groups[0].topics
    assert [[(one.partition_index, one.committed_offset) for one in topic.partitions] for topic in topics] == [
        [(0, 10), (2, 30)]
    ]


@pytest.mark.parametrize("version", range(6))
async def test_the_coordinator_is_found_in_every_version(client: RawClient, version: int) -> None:
    if version >= 4:
        response = await client.ask(version, FindCoordinatorRequest(coordinator_keys=("g", "h")))
        found = response.coordinators
        assert [one.key for one in found] == ["g", "h"]
    else:
        found = [await client.ask(version, FindCoordinatorRequest(key="g"))]
    assert {(one.error_code, one.node_id, one.host) for one in found} == {(0, 1, "127.0.0.1")}


@pytest.mark.parametrize("version", [1, 5])
async def test_there_is_no_coordinator_of_share_groups(client: RawClient, version: int) -> None:
    request = FindCoordinatorRequest(key="x", key_type=2)
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=("x",), key_type=2)
    response = await client.ask(version, request)
    found = response.coordinators[0] if version >= 4 else response
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert "groups and transactions, not key type 2" in found.error_message


@pytest.mark.parametrize("version", range(7))
async def test_a_group_is_described_in_every_version(client: RawClient, version: int) -> None:
    joined = await join(client)
    await sync(client, joined)
    request = DescribeGroupsRequest(groups=("g", "nobody"), include_authorized_operations=version >= 3)
    group, nobody = (await client.ask(version, request)).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    member = group.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "raw", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"topics", b"all")
    assert nobody.group_state == "Dead"
    assert nobody.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert group.authorized_operations == (0b1101_0100_1000 if version >= 3 else -(2**31))


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed_in_every_version(client: RawClient, version: int) -> None:
    await commit(client, {0: 1}, group="offsets only")
    await join(client)
    groups = (await client.ask(version, ListGroupsRequest())).groups
    assert {(group.group_id, group.protocol_type) for group in groups} == {("offsets only", ""), ("g", "consumer")}
    if version >= 4:
        empty = (await client.ask(version, ListGroupsRequest(states_filter=("empty",)))).groups
        assert [(group.group_id, group.group_state) for group in empty] == [("offsets only", "Empty")]
    if version >= 5:
        assert (await client.ask(version, ListGroupsRequest(types_filter=("consumer",)))).groups == ()
        assert {group.group_type for group in groups} == {"classic"}


@pytest.mark.parametrize("version", range(3))
async def test_groups_are_deleted_in_every_version(client: RawClient, version: int) -> None:
    await commit(client, {0: 1}, group="idle")
    await join(client)
    response = await client.ask(version, DeleteGroupsRequest(groups_names=("idle", "g", "nobody")))
    assert [(result.group_id, result.error_code) for result in response.results] == [
        ("idle", 0),
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert await committed(client, (0,), group="idle") == {0: -1}


async def test_without_the_offsets_topic_nobody_is_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await client.create_topic("t")
        assert (await client.ask(9, join_request())).error_code == ErrorCode.NOT_COORDINATOR
        assert await commit(client, {0: 1}) == [ErrorCode.NOT_COORDINATOR]
        response = await client.ask(5, ListGroupsRequest())
        assert (response.error_code, response.groups) == (0, ())


async def test_offsets_die_with_their_topic(client: RawClient) -> None:
    await commit(client, {0: 10})
    await client.ask(6, DeleteTopicsRequest(topics=(DeleteTopicState(name="t"),), timeout_ms=5_000))
    await client.create_topic("t")
    assert await committed(client, (0,)) == {0: -1}
    listed = (await client.ask(5, ListGroupsRequest())).groups
    while listed:
        listed = (await client.ask(5, ListGroupsRequest())).groups


async def test_a_restart_remembers_offsets_members_and_generation(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await client.create_topic("t", 3)
        await find(client)
        joined = await join(client)
        await sync(client, joined)
        mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
        assert await commit(client, {0: 10, 1: 20}, **mine) == [0, 0]
        assert await commit(client, {0: 99}, group="other") == [0]
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        assert await committed(client) == {0: 10, 1: 20, 2: -1}
        assert await committed(client, (0,), group="other") == {0: 99}
        beat = HeartbeatRequest(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
        assert (await client.ask(4, beat)).error_code == 0
        assert await commit(client, {0: 11}, **mine) == [0]
        described = (await client.ask(5, DescribeGroupsRequest(groups=("g",)))).groups[0]
        assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"all")


async def test_an_acknowledged_commit_is_in_the_files(tmp_path: Path) -> None:
    """As after kill -9: a copy of the directory, taken the moment the answer came, has it."""
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await client.create_topic("t")
        await find(client)
        for offset in range(1, 20):
            await commit(client, {0: offset})
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        await commit(client, {0: 1000})
    async with running(tmp_path / "copy") as bootstrap, RawClient(bootstrap) as client:
        assert await committed(client, (0,)) == {0: 19}


async def test_a_member_that_falls_silent_is_left_behind(tmp_path: Path) -> None:
    """Nobody hears of it again; once its session has ended the others go on without it."""
    configs = {"group.min.session.timeout.ms": "1"}
    async with (
        running(tmp_path / "data", configs) as bootstrap,
        RawClient(bootstrap) as silent,
        RawClient(bootstrap) as other,
        asyncio.timeout(DEADLINE_S),
    ):
        await find(other)
        lost = await silent.ask(3, join_request(session_timeout_ms=300))
        await sync(silent, lost)
        joined = await other.ask(3, join_request())
        assert joined.generation_id == lost.generation_id + 1
        assert [member.member_id for member in joined.members] == [joined.member_id] == [joined.leader]
        beat = HeartbeatRequest(group_id="g", member_id=lost.member_id, generation_id=lost.generation_id)
        assert (await silent.ask(4, beat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_stop_does_not_wait_for_a_rebalance(tmp_path: Path) -> None:
    """Members that wait for others are sent away, so that the broker stops at once. The rebalance would outlast the
    test."""
    patient: dict[str, Any] = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 1_000_000}
    async with AsyncExitStack() as broker, AsyncExitStack() as clients:
        bootstrap = await broker.enter_async_context(running(tmp_path / "data"))
        first, second = [await clients.enter_async_context(RawClient(bootstrap)) for _ in range(2)]
        await find(first)
        joined = await join(first, **patient)
        await sync(first, joined)
        told = await second.ask(9, join_request(**patient))
        waiting = asyncio.ensure_future(second.ask(9, join_request(member_id=told.member_id, **patient)))
        beat = HeartbeatRequest(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
        while (await first.ask(4, beat)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            assert not waiting.done()
        await broker.aclose()
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
async def test_a_generation_of_a_group_that_there_is_not(client: RawClient, version: int, error: ErrorCode) -> None:
    told = await commit(client, {0: 1}, version, member_id="m", generation_id_or_member_epoch=3)
    assert told == [error]


def offset_delete(group: str, **topics: tuple[int, ...]) -> OffsetDeleteRequest:
    named = tuple(
        OffsetDeleteRequestTopic(name=name, partitions=tuple(OffsetDeleteRequestPartition(index) for index in indexes))
        for name, indexes in topics.items()
    )
    return OffsetDeleteRequest(group_id=group, topics=named)


async def test_offsets_are_deleted_one_by_one(client: RawClient) -> None:
    await commit(client, {0: 10, 1: 20})
    response = await client.ask(0, offset_delete("g", t=(0, 2, 9), nowhere=(0,)))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    told = {topic.name: [partition.error_code for partition in topic.partitions] for topic in response.topics}
    assert (response.error_code, told) == (0, {"t": [0, 0, unknown], "nowhere": [unknown]})
    assert await committed(client) == {0: -1, 1: 20, 2: -1}


async def test_offsets_that_cannot_be_deleted(client: RawClient) -> None:
    assert (await client.ask(0, offset_delete("", t=(0,)))).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await client.ask(0, offset_delete("nobody", t=(0,)))).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await sync(client, await join(client))
    response = await client.ask(0, offset_delete("g", t=(0,)))
    assert response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


async def test_nothing_is_looked_up_by_a_name_that_is_too_long_for_a_group(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To hash a megabyte holds everybody up for a fifth of a second."""
    hashed = list[int]()

    def counted(group_id: str, partitions: int) -> int:
        hashed.append(len(group_id))
        return partition_for(group_id, partitions)

    monkeypatch.setattr("headrace.broker.shards.coordinator.partition_for", counted)
    name = "g" * (GROUP_NAME_CHARS_MAX + 1)
    topic = OffsetDeleteRequestTopic(name="t", partitions=(OffsetDeleteRequestPartition(partition_index=0),))
    found = await client.ask(4, FindCoordinatorRequest(coordinator_keys=(name, "g")))
    fetched = await client.ask(8, OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=name, topics=None),)))
    described = await client.ask(5, DescribeGroupsRequest(groups=(name,)))
    deleted = await client.ask(1, DeleteGroupsRequest(groups_names=(name,)))
    forgotten = await client.ask(0, OffsetDeleteRequest(group_id=name, topics=(topic,)))
    beaten = await client.ask(3, HeartbeatRequest(group_id=name, generation_id=1, member_id="m"))
    answers = (*found.coordinators[:1], *fetched.groups, *described.groups, *deleted.results, forgotten, beaten)
    assert [answer.error_code for answer in answers] == 6 * [ErrorCode.INVALID_GROUP_ID]
    assert found.coordinators[1].error_code == 0
    assert set(hashed) == {1}


async def test_many_coordinators_are_asked_for_with_one_wait(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[None]()

    async def refuse(self: GroupService) -> Refusal:
        waits.append(None)
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Not now.")

    monkeypatch.setattr(GroupService, "_create_topic", refuse)
    monkeypatch.setattr(GroupService, "TOPIC", "not there")
    found = await client.ask(4, FindCoordinatorRequest(coordinator_keys=("a", "b", "c")))
    assert [one.error_code for one in found.coordinators] == 3 * [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert len(waits) == 1
