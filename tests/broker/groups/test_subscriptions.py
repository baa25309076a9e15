"""Large subscriptions of groups' members are bounded together, and give their room back however their members end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.base.limits import GROUP_LARGE_SUBSCRIPTION_BYTES_MIN, GROUP_TOPIC_NAME_BYTES
from headrace.broker.groups import subscriptions as group_room
from headrace.broker.groups.subscriptions import SubscriptionRoom
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.broker.group_broker import RawClient, running

LARGE = GROUP_LARGE_SUBSCRIPTION_BYTES_MIN
TOPICS = LARGE // GROUP_TOPIC_NAME_BYTES + 1
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


async def join(client: RawClient, group_id: str, size: int, member_id: str = "") -> Any:
    request = JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=1_000_000,
        rebalance_timeout_ms=1_000_000,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=bytes(size)),),
    )
    return await client.ask(3, request)


async def beat(client: RawClient, group_id: str, topics: int) -> Any:
    return await client.ask(
        1,
        ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            rebalance_timeout_ms=1_000_000,
            subscribed_topic_names=tuple(f"topic-{at}" for at in range(topics)),
            topic_partitions=(),
        ),
    )


async def leave(client: RawClient, group_id: str, member_id: str) -> None:
    left = await client.ask(3, LeaveGroupRequest(group_id=group_id, members=(MemberIdentity(member_id=member_id),)))
    assert left.error_code == ErrorCode.NONE


async def test_a_large_subscription_needs_room_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[SubscriptionRoom] = []
    init = SubscriptionRoom.__init__

    def noted(self: SubscriptionRoom) -> None:
        init(self)
        rooms.append(self)

    monkeypatch.setattr(SubscriptionRoom, "__init__", noted)
    monkeypatch.setattr(group_room, "GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX", 3 * LARGE)
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        await client.ask(2, FindCoordinatorRequest(key="a"))
        (room,) = rooms
        first = await join(client, "a", LARGE)
        assert room.bytes == LARGE
        assert (await join(client, "b", 2 * LARGE)).error_code == ErrorCode.NONE
        assert (await join(client, "c", LARGE)).error_code == FULL
        assert (await beat(client, "d", TOPICS)).error_code == FULL
        assert (await join(client, "c", LARGE - 1)).error_code == ErrorCode.NONE, "it is not counted"
        assert (await join(client, "a", LARGE, first.member_id)).error_code == ErrorCode.NONE, "its own room"
        assert room.bytes == 3 * LARGE
        await leave(client, "a", first.member_id)
        assert room.bytes == 2 * LARGE
        assert (await beat(client, "d", TOPICS)).error_code == FULL, "it needs a little more than is left"
        assert (await join(client, "e", LARGE)).error_code == ErrorCode.NONE
    assert room.bytes == 0, "the groups are kept here no more"


async def test_what_a_restart_finds_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        await client.ask(2, FindCoordinatorRequest(key="d"))
        assert (await beat(client, "d", TOPICS)).error_code == ErrorCode.NONE
    monkeypatch.setattr(group_room, "GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX", 2 * LARGE)
    async with running(tmp_path / "data") as bootstrap, RawClient(bootstrap) as client, asyncio.timeout(150):
        while (error := (await join(client, "a", LARGE)).error_code) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        assert error == FULL
        assert (await beat(client, "d", TOPICS)).error_code == ErrorCode.NONE, "its own room"
