"""Requests of members of a classic group in one turn of the loop are decided together. A heartbeat is answered before
the group gets it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.groups import shard as group_shard
from headrace.broker.groups.shard import GroupShard
from headrace.broker.shards.timers import elapsed_ms
from headrace.coordinators.groups.events import Event, Heartbeat, Join, JoinReply, Sync, SyncReply, Tick, Together
from headrace.coordinators.groups.machine import step
from headrace.coordinators.groups.model import Group, GroupState, Protocol
from headrace.wire.errors import ErrorCode
from tests.broker.handlers.test_plain_groups import world

MEMBERS = ("a", "b", "c")
SESSION_MS = 45_000


def joins(shard: GroupShard, member_id: str, *, new: bool = False) -> asyncio.Future[Any]:
    def build(waiter: int) -> Join:
        ids = ("", member_id) if new else (member_id, "")
        return Join(waiter, *ids, False, "c", "/h", SESSION_MS, 60_000, "consumer", (Protocol("range", b"t"),))

    return shard.ask("g", build)


def syncs(shard: GroupShard, member_id: str, **shares: bytes) -> asyncio.Future[Any]:
    generation = shard.groups["g"].generation
    return shard.ask("g", lambda waiter: Sync(waiter, member_id, generation, shares))


async def formed(shard: GroupShard) -> None:
    """A stable group of all of them, led by the first."""
    first = joins(shard, MEMBERS[0], new=True)
    await first
    others = [joins(shard, name, new=True) for name in MEMBERS[1:]]
    await asyncio.gather(joins(shard, MEMBERS[0]), *others)
    await asyncio.gather(
        *(syncs(shard, name) for name in MEMBERS[1:]), syncs(shard, MEMBERS[0], a=b"1", b=b"2", c=b"3")
    )
    assert shard.groups["g"].state is GroupState.STABLE


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The events that the machine gets."""
    told: list[Event] = []

    def noted(group_id: str, group: Group | None, event: Event, *more: Any) -> object:
        told.append(event)
        return step(group_id, group, event, *more)

    monkeypatch.setattr(group_shard, "step", noted)
    return told


async def test_those_who_join_and_sync_in_one_turn_are_one_change(tmp_path: Path, steps: list[Event]) -> None:
    async with world(tmp_path) as w:
        await formed(w.shard)
        leader = joins(w.shard, "a")
        before = w.shard.groups["g"]
        assert before.state is GroupState.PREPARING
        steps.clear()
        waiting = [joins(w.shard, name) for name in MEMBERS[1:]]
        assert w.shard.groups["g"] is before, "nothing is decided before the end of the turn"
        replies = await asyncio.gather(leader, *waiting)
        assert [len(event.events) for event in steps if isinstance(event, Together)] == [2]
        assert {type(reply) for reply in replies} == {JoinReply}
        steps.clear()
        waiting = [syncs(w.shard, name) for name in MEMBERS[1:]]
        assert not steps
        leader = syncs(w.shard, "a", a=b"x", b=b"y", c=b"z")
        assert [type(event) for event in steps] == [Together, Sync], "for the leader's nobody waits"
        shares = [reply.assignment for reply in await asyncio.gather(leader, *waiting) if isinstance(reply, SyncReply)]
        assert shares == [b"x", b"y", b"z"]


async def test_who_asks_in_the_turn_in_which_all_is_lost_is_sent_away(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await formed(w.shard)
        waiting = [joins(w.shard, name) for name in MEMBERS]
        w.shard.lose()
        assert await asyncio.gather(*waiting) == [ErrorCode.NOT_COORDINATOR] * 3


async def test_a_heartbeat_is_answered_first_and_the_session_goes_on_all_the_same(
    tmp_path: Path, steps: list[Event]
) -> None:
    async with world(tmp_path) as w:
        await formed(w.shard)
        before = w.shard.groups["g"]
        steps.clear()
        earliest_ms = elapsed_ms(asyncio.get_running_loop().time())
        assert w.shard.beat("g", Heartbeat(-1, "b", before.generation)) is ErrorCode.NONE
        latest_ms = elapsed_ms(asyncio.get_running_loop().time())
        assert w.shard.beat("g", Heartbeat(-1, "c", before.generation - 1)) is ErrorCode.ILLEGAL_GENERATION
        assert w.shard.beat("g", Heartbeat(-1, "nobody", before.generation)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert w.shard.beat("nothing", Heartbeat(-1, "b", 1)) is None
        assert w.shard.groups["g"] is before
        assert not steps
        w.shard.send("g", Tick())
        after = w.shard.groups["g"]
        deadline_ms = after.members["b"].deadline_ms
        assert deadline_ms is not None
        assert earliest_ms <= deadline_ms - SESSION_MS <= latest_ms
        assert {after.members[name] == before.members[name] for name in ("a", "c")} == {True}
        w.shard.send("g", Tick())
        assert [type(event) for event in steps] == [Together, Tick], "it was heard once"
        assert w.shard.groups["g"] == after


async def test_a_heartbeat_while_others_are_being_told_waits_for_its_turn(tmp_path: Path) -> None:
    """Earlier requests are decided first."""
    async with world(tmp_path) as w:
        await formed(w.shard)
        answers: list[ErrorCode | None] = []
        generation = w.shard.groups["g"].generation

        class Asks:
            """A client that asks in the moment in which it is answered."""

            def done(self) -> bool:
                return False

            def set_result(self, told: object, /) -> None:
                answers.append(w.shard.beat("g", Heartbeat(-1, "c", generation)))

        w.shard.put("g", lambda waiter: Heartbeat(waiter, "b", generation), Asks())
        assert answers == [None]
