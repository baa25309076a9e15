"""Static members over the wire (KIP-345, KIP-814), in every version that knows them, and what a restart remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.group_broker import RawClient, running
from tests.broker.groups.test_wire import client, commit, committed, find, join_request

__all__ = ["client"]


async def join(client: RawClient, version: int = 9, instance_id: str = "one") -> Any:
    """At once: a static member needs no member id first."""
    response = await client.ask(version, join_request(group_instance_id=instance_id))
    assert response.error_code == 0
    return response


async def sync(client: RawClient, joined: Any, share: bytes | None = None, version: int = 5) -> Any:
    shares = () if share is None else (SyncGroupRequestAssignment(member_id=joined.member_id, assignment=share),)
    request = SyncGroupRequest(
        group_id="g",
        member_id=joined.member_id,
        group_instance_id="one",
        generation_id=joined.generation_id,
        protocol_type="consumer" if version >= 5 else None,
        protocol_name=joined.protocol_name if version >= 5 else None,
        assignments=shares,
    )
    return await client.ask(version, request)


def beat(joined: Any) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id="g", member_id=joined.member_id, group_instance_id="one", generation_id=joined.generation_id
    )


@pytest.mark.parametrize("version", range(5, 10))
async def test_it_comes_back_to_its_share_in_every_version(client: RawClient, version: int) -> None:
    first = await join(client, version)
    assert first.member_id.startswith("one-")
    assert [(member.member_id, member.group_instance_id) for member in first.members] == [(first.member_id, "one")]
    await sync(client, first, b"all", min(version, 5))
    second = await join(client, version)
    assert second.generation_id == first.generation_id
    assert second.member_id != first.member_id
    if version >= 9:
        assert (second.skip_assignment, second.leader) == (True, second.member_id)
        assert [member.member_id for member in second.members] == [second.member_id]
    else:
        assert (second.leader, second.members) == (first.member_id, ())
    assert (await sync(client, second, version=min(version, 5))).assignment == b"all"
    assert (await client.ask(3, beat(second))).error_code == 0
    for answer in (await client.ask(4, beat(first)), await sync(client, first), await client.ask(3, beat(first))):
        assert answer.error_code == ErrorCode.FENCED_INSTANCE_ID


async def test_its_commits_are_fenced_too(client: RawClient) -> None:
    first = await join(client)
    await sync(client, first, b"all")
    second = await join(client)
    for joined, error in ((first, ErrorCode.FENCED_INSTANCE_ID), (second, ErrorCode.NONE)):
        named = {"member_id": joined.member_id, "group_instance_id": "one"}
        assert await commit(client, {0: 5}, generation_id_or_member_epoch=joined.generation_id, **named) == [error]
    assert await committed(client, (0,)) == {0: 5}


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_an_administrator_removes_it_by_its_name(client: RawClient, version: int) -> None:
    joined = await join(client)
    members = (MemberIdentity(group_instance_id="one"), MemberIdentity(group_instance_id="two"))
    left = await client.ask(version, LeaveGroupRequest(group_id="g", members=members))
    told = [(one.member_id, one.group_instance_id, one.error_code) for one in left.members]
    assert told == [("", "one", 0), ("", "two", ErrorCode.UNKNOWN_MEMBER_ID)]
    assert (await client.ask(4, beat(joined))).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_restart_of_the_broker_knows_it(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        await find(client)
        await sync(client, await join(client), b"all")
        joined = await join(client)
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client:
        while (described := (await client.ask(4, DescribeGroupsRequest(groups=("g",)))).groups[0]).error_code:
            assert described.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        (member,) = described.members
        assert (member.member_id, member.group_instance_id) == (joined.member_id, "one")
        assert (await client.ask(4, beat(joined))).error_code == 0
        again = await join(client)
        assert (again.generation_id, (await sync(client, again)).assignment) == (joined.generation_id, b"all")
