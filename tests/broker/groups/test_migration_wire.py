"""Groups that change their protocol with members in them (KIP-848), over the wire. The tests check answers to tools,
the output of Kafka's own tool, and the state at the next coordinator."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.groups import shard as group_shard
from headrace.wire.data import CONSUMER_ASSIGNMENT, CONSUMER_SUBSCRIPTION
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from headrace.wire.messages.consumer_protocol_assignment import TopicPartition as AssignedTopic
from headrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from headrace.wire.messages.delete_groups import DeleteGroupsRequest
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.list_groups import ListGroupsRequest
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.group_broker import RawClient, running
from tests.broker.groups.test_consumer_groups_wire import beating, commit, fetched, joining, partitions
from tests.broker.groups.test_failover import run, unheard, world
from tests.broker.groups.test_wire import commit as commit_offsets
from tests.broker.groups.test_wire import committed, find
from tools import kafka_jars

DEADLINE_S = 150
SUBSCRIBED: bytes = CONSUMER_SUBSCRIPTION.encode(1, ConsumerProtocolSubscription(topics=("t",)))


async def join(client: RawClient, member_id: str = "") -> Any:
    request = JoinGroupRequest(
        group_id="g",
        member_id=member_id,
        session_timeout_ms=1_000_000,
        rebalance_timeout_ms=1_000_000,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=SUBSCRIBED),),
    )
    answer = await client.ask(9, request)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await join(client, answer.member_id)
    return answer


async def sync(client: RawClient, joined: Any, shares: dict[str, list[int]] | None = None) -> tuple[int, list[int]]:
    """The error, and the partitions that it is given."""
    given = tuple(
        SyncGroupRequestAssignment(
            member_id=name,
            assignment=CONSUMER_ASSIGNMENT.encode(
                1,
                ConsumerProtocolAssignment(assigned_partitions=(AssignedTopic(topic="t", partitions=tuple(indexes)),)),
            ),
        )
        for name, indexes in (shares or {}).items()
    )
    told = await client.ask(
        5,
        SyncGroupRequest(
            group_id="g",
            member_id=joined.member_id,
            generation_id=joined.generation_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        ),
    )
    if not told.assignment:
        return told.error_code, []
    _, read = CONSUMER_ASSIGNMENT.decode(bytes(told.assignment))
    return told.error_code, [index for topic in read.assigned_partitions for index in topic.partitions]


async def beat(client: RawClient, joined: Any) -> int:
    request = HeartbeatRequest(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
    code: int = (await client.ask(4, request)).error_code
    return code


async def mixed(client: RawClient, count: int = 3) -> Any:
    """A consumer group of `m`, and of a classic member that was there before it: its last JoinGroup's answer."""
    classic = await join(client)
    assert await sync(client, classic, {classic.member_id: list(range(count))}) == (0, list(range(count)))
    assert partitions(await client.ask(1, joining())) == []
    assert await beat(client, classic) == ErrorCode.REBALANCE_IN_PROGRESS
    return await join(client, classic.member_id)


async def test_a_group_lives_through_both_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        classic = await mixed(client)
        assert (classic.error_code, classic.leader, classic.protocol_name) == (0, "", "range")
        error, kept = await sync(client, classic)
        assert (error, len(kept) in (1, 2)) == (0, True)
        others = partitions(await client.ask(1, beating(2)))
        assert sorted([*kept, *others]) == [0, 1, 2]
        assert await beat(client, classic) == 0
        assert await commit(client, classic.generation_id, 8, classic.member_id) == 0
        assert await commit(client, 9, 8, classic.member_id) == ErrorCode.ILLEGAL_GENERATION
        assert (await fetched(client, classic.member_id, 9)).error_code == ErrorCode.ILLEGAL_GENERATION
        (listed,) = (await client.ask(5, ListGroupsRequest())).groups
        assert (listed.group_type, listed.group_state) == ("consumer", "Stable")
        (described,) = (await client.ask(1, ConsumerGroupDescribeRequest(group_ids=("g",)))).groups
        assert {one.member_id: one.member_type for one in described.members} == {"m": 1, classic.member_id: 0}
        assert {one.member_epoch for one in described.members} == {classic.generation_id}
        (gone,) = (await client.ask(6, DescribeGroupsRequest(groups=("g",)))).groups
        assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await client.ask(1, beating(-1))).error_code == 0
        (listed,) = (await client.ask(5, ListGroupsRequest())).groups
        assert (listed.group_type, listed.group_state) == ("classic", "PreparingRebalance")
        assert await beat(client, classic) == ErrorCode.REBALANCE_IN_PROGRESS
        back = await join(client, classic.member_id)
        assert (back.generation_id, back.leader) == (classic.generation_id + 1, classic.member_id)
        assert await sync(client, back, {back.member_id: [0, 1, 2]}) == (0, [0, 1, 2])
        leaving = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=back.member_id),))
        assert (await client.ask(5, leaving)).members[0].error_code == 0
        assert await committed(client, (0,)) == {0: 7}


async def test_a_classic_member_leaves_a_consumer_group(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        classic = await mixed(client)
        who = (MemberIdentity(member_id=classic.member_id), MemberIdentity(member_id="m"))
        left = await client.ask(5, LeaveGroupRequest(group_id="g", members=who))
        assert [one.error_code for one in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert await beat(client, classic) == ErrorCode.UNKNOWN_MEMBER_ID
        assert partitions(await client.ask(1, beating(2))) == [0, 1, 2]


async def test_a_group_whose_policy_forbids_it_stays_as_it_is(tmp_path: Path) -> None:
    configs = {"group.consumer.migration.policy": "disabled"}
    async with running(tmp_path, configs) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        classic = await join(client)
        assert (await client.ask(1, joining())).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await sync(client, classic, {classic.member_id: [0]}) == (0, [0])


def test_the_next_coordinator_goes_on_in_the_middle_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as old, w.client(w.others[0]) as new:
            classic = await mixed(old, 1)
            await w.move(w.others[0])
            while (error := await beat(new, classic)) == 0:
                described = (await new.ask(1, ConsumerGroupDescribeRequest(group_ids=("g",)))).groups[0]
                if not described.error_code:
                    break
            assert error == 0
            assert {one.member_type for one in described.members} == {0, 1}
            assert await beat(old, classic) == ErrorCode.NOT_COORDINATOR
            error, share = await sync(new, classic)
            whole = beating(2, topic_partitions=(), rebalance_timeout_ms=1_000_000, subscribed_topic_names=("t",))
            owned = partitions(await new.ask(1, whole))
            assert (error, sorted([*share, *owned])) == (0, [0])
            await new.ask(1, beating(-1))
            await w.move(w.others[1])
            async with w.client(w.others[1]) as third:
                while (error := await beat(third, classic)) == 0:
                    pass
                assert error == ErrorCode.REBALANCE_IN_PROGRESS, "a classic group again, and still to join"
                back = await join(third, classic.member_id)
                assert back.generation_id == classic.generation_id + 1

    run(work())


def test_a_coordinator_that_the_controller_does_not_hear_tells_no_classic_member_that_it_is_one(tmp_path: Path) -> None:
    """Of a consumer group: nothing would be written for it, and the next coordinator may have put it out."""

    async def work() -> None:
        async with world(tmp_path) as w, w.client(w.coordinator) as client:
            classic = await mixed(client, 1)
            with unheard(w.cluster.brokers[w.coordinator]):
                assert await beat(client, classic) == ErrorCode.NOT_COORDINATOR
                assert await sync(client, classic) == (ErrorCode.NOT_COORDINATOR, [])
                assert (await join(client, classic.member_id)).error_code == ErrorCode.NOT_COORDINATOR
            assert await beat(client, classic) == 0, "it asks at once, and is heard"

    run(work())


@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
async def test_kafkas_own_tool_reads_the_groups(tmp_path: Path) -> None:
    async with running(tmp_path, {"offsets.topic.num.partitions": "1"}) as bootstrap, RawClient(bootstrap) as client:
        await client.create_topic("t", 3)
        await find(client)
        await client.ask(1, joining("new", instance_id="i", subscribed_topic_regex="t|u"))
        await client.ask(1, joining("new", "n"))
        await client.ask(1, beating(1, group="new"))
        await client.ask(1, beating(-1, "n", "new"))
        classic = await mixed(client)
        await sync(client, classic)  # it has heard how it joined, without which the group is no classic one
        await client.ask(1, beating(-1))
    (log,) = (tmp_path / "logs" / "__consumer_offsets-0").glob("*.log")
    command = [*kafka_jars.QUICK_JAVA, "-cp", kafka_jars.class_path(), "kafka.tools.DumpLogSegments"]
    command += ["--offsets-decoder", "--files", str(log)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=150, check=True)
    said = "".join(done.stdout.split())
    member = '"data":{"groupId":"new","memberId":"m"}}payload:'
    for record in (
        '{"type":"3","data":{"groupId":"new"}}payload:{"version":"0","data":{"epoch":1,"metadataHash":',
        '{"type":"5",' + member + '{"version":"0","data":{"instanceId":"i","rackId":null,"clientId":"raw",',
        '"subscribedTopicNames":["t"],"subscribedTopicRegex":"t|u","rebalanceTimeoutMs":1000000,"serverAssignor":null,'
        '"classicMemberMetadata":null}}',
        '{"type":"6","data":{"groupId":"new"}}payload:{"version":"0","data":{"assignmentEpoch":1}}',
        '{"type":"7",' + member + '{"version":"0","data":{"topicPartitions":[{"topicId":',
        '{"type":"8",' + member + '{"version":"0","data":{"memberEpoch":1,"previousMemberEpoch":0,"state":0,'
        '"assignedPartitions":[{"topicId":',
        '"partitionsPendingRevocation":[{"topicId":',
        '{"type":"16","data":{"groupId":"new","regularExpression":"t|u"}}payload:{"version":"0","data":{"topics":["t"],',
        '{"type":"5","data":{"groupId":"new","memberId":"n"}}payload:<DELETE>',
    ):
        assert record in said, said
    member = f'"data":{{"groupId":"g","memberId":"{classic.member_id}"}}}}payload:'
    formed = '{"type":"2","data":{"group":"g"}}payload:{"version":"3","data":{"protocolType":"consumer","generation":'
    changes = [
        f'{formed}1,"protocol":"range","leader":"{classic.member_id}"',
        '{"type":"2","data":{"group":"g"}}payload:<DELETE>',
        '{"type":"5",' + member,
        '"classicMemberMetadata":{"sessionTimeoutMs":1000000,"supportedProtocols":[{"name":"range","metadata":"',
        '{"type":"8",' + member,
        '{"type":"5",' + member + "<DELETE>",
        '{"type":"3","data":{"groupId":"g"}}payload:<DELETE>',
        f'{formed}2,"protocol":"range","leader":null',
    ]
    places = [said.index(record) for record in changes]
    assert places == sorted(places)


async def test_only_what_makes_a_further_group_is_refused_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_shard, "GROUPS_PER_SHARD_MAX", 0)
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        full = ErrorCode.POLICY_VIOLATION
        assert (await join(client)).error_code == full
        assert (await client.ask(1, joining())).error_code == full
        assert await commit_offsets(client, {0: 1}) == [full]
        gone = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
        assert (await client.ask(4, gone)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await client.ask(1, beating(3))).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        deleted = await client.ask(2, DeleteGroupsRequest(groups_names=("g",)))
        assert deleted.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        left = await client.ask(5, LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="m"),)))
        assert [one.error_code for one in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_each_group_is_answered_once_however_often_it_is_named(tmp_path: Path) -> None:
    async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(DEADLINE_S):
        await client.create_topic("t", 3)
        await find(client)
        await client.ask(1, joining())
        named = ("g", "h", "g", "h", "g")
        classic = (await client.ask(6, DescribeGroupsRequest(groups=named))).groups
        assert [one.group_id for one in classic] == ["g", "h"]
        consumer = (await client.ask(1, ConsumerGroupDescribeRequest(group_ids=named))).groups
        assert [one.group_id for one in consumer] == ["g", "h"]
        asked = tuple(OffsetFetchRequestGroup(group_id=name, topics=None) for name in named)
        offsets = (await client.ask(8, OffsetFetchRequest(groups=asked))).groups
        assert [one.group_id for one in offsets] == ["g", "h"]
