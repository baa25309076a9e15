"""Heartbeats of a consumer group that come in one turn of the event loop are one change of it, and one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.ids import TopicPartition
from headrace.broker.groups.answers import Told
from headrace.broker.groups.gathering import rounds
from headrace.broker.groups.shard import GroupShard
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import WriteRefusal
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import ConsumerHeartbeatReply
from headrace.coordinators.groups.events import (
    Delete,
    DeleteReply,
    Event,
    Heartbeat,
    Join,
    Leave,
    Leaver,
    LeaveReply,
)
from headrace.coordinators.groups.model import Protocol
from headrace.wire.errors import ErrorCode
from tests.broker.groups.test_gathered_commits import Found, found

NOTHING: frozenset[TopicPartition] = frozenset()


def joins(groups: Found, member: str, *, group: str = "g", names: int = 1) -> asyncio.Future[Told]:
    def event(waiter: int) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(
            waiter=waiter,
            member_id=member,
            epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed=tuple(f"topic {number}" for number in range(names)),
            owned=NOTHING,
        )

    return groups.shard.ask(group, event)


def errors(told: Sequence[Told]) -> list[ErrorCode]:
    assert all(isinstance(reply, ConsumerHeartbeatReply) for reply in told)
    return [reply.error for reply in told if isinstance(reply, ConsumerHeartbeatReply)]


async def test_members_that_join_in_one_turn_share_a_batch(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        told = await asyncio.gather(*(joins(groups, f"m{number}") for number in range(10)))
        assert errors(told) == [ErrorCode.NONE] * 10
        assert len(groups.batches()) == 1
        consumer = groups.shard.groups["g"].consumer
        assert consumer is not None
        assert len(consumer.members) == 10
        assert consumer.epoch == 1


async def test_groups_of_one_turn_are_changed_each_by_itself(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        told = await asyncio.gather(*(joins(groups, f"m{number}", group=f"g{number % 2}") for number in range(4)))
        assert errors(told) == [ErrorCode.NONE] * 4
        assert len(groups.batches()) == 2


async def test_what_comes_behind_a_heartbeat_is_decided_behind_it(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        joined = joins(groups, "m")
        deleted = groups.shard.ask("g", lambda waiter: Delete(waiter=waiter))
        told: list[Told] = [*await asyncio.gather(joined, deleted)]
        assert errors(told[:1]) == [ErrorCode.NONE]
        assert told[1] == DeleteReply(error=ErrorCode.NON_EMPTY_GROUP)


async def test_joins_that_are_too_large_together_are_appended_one_by_one(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        settings = groups.shard.partition.settings
        groups.shard.partition.settings = replace(settings, max_message_bytes=1_200)
        told = await asyncio.gather(*(joins(groups, f"m{number}", names=60) for number in range(3)))
        assert errors(told) == [ErrorCode.NONE] * 3
        assert len(groups.batches()) == 3
        large = await joins(groups, "large", names=200)
        assert errors([large]) == [ErrorCode.UNKNOWN_SERVER_ERROR]
        consumer = groups.shard.groups["g"].consumer
        assert consumer is not None
        assert set(consumer.members) == {"m0", "m1", "m2"}


async def test_who_is_gathered_when_the_partition_is_lost_is_sent_elsewhere(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        joined = joins(groups, "m")
        groups.shard.lose()
        assert await joined is ErrorCode.NOT_COORDINATOR
        assert await joins(groups, "late") is ErrorCode.NOT_COORDINATOR
        assert await groups.commit("g", 1) is ErrorCode.NOT_COORDINATOR
        assert await groups.shard.ask("g", lambda waiter: Delete(waiter=waiter)) is ErrorCode.NOT_COORDINATOR
        await asyncio.sleep(0)
        assert groups.shard.groups == {}


def refusing(monkeypatch: pytest.MonkeyPatch, error: ErrorCode) -> None:
    monkeypatch.setattr(Partition, "append", lambda *_, **__: WriteRefusal(error, "it is not taken"))


async def test_what_is_asked_in_the_turn_in_which_the_partition_is_lost_is_sent_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the groups nothing is known by then: a member is not to hear that there is none of it, nor to join alone."""

    def join(waiter: int) -> Event:
        return Join(
            waiter=waiter,
            member_id="",
            new_member_id="new",
            require_known_id=False,
            client_id="",
            client_host="",
            session_timeout_ms=1_000_000,
            rebalance_timeout_ms=1_000_000,
            protocol_type="consumer",
            protocols=(Protocol("range", b""),),
        )

    requests: tuple[Callable[[int], Event], ...] = (
        lambda waiter: Heartbeat(waiter=waiter, member_id="m", generation=3),
        lambda waiter: Leave(waiter=waiter, members=(Leaver("m"),)),
        lambda waiter: Delete(waiter=waiter),
        join,
    )
    for number, request in enumerate(requests):
        async with found(tmp_path / str(number)) as groups:
            first = joins(groups, "first")
            with monkeypatch.context() as patch:
                refusing(patch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                patch.setattr(Partition, "availability", ErrorCode.NOT_LEADER_OR_FOLLOWER)
                asked = groups.shard.ask("classic", request)
            assert groups.shard.lost
            assert await first is ErrorCode.NOT_COORDINATOR
            assert await asked is ErrorCode.NOT_COORDINATOR
            assert groups.shard.groups == {}
            assert not groups.shard._waiters


async def test_who_is_refused_for_a_neighbour_is_told_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's consumers give up where the group is full; it is not where the log does not take who filled it."""
    async with found(tmp_path) as groups:
        shard = groups.shard
        config = shard._config_of("g")
        config = replace(config, consumer=replace(config.consumer, group_consumer_max_size=1))
        shard._config_of = lambda _: config
        with monkeypatch.context() as patch:
            refusing(patch, ErrorCode.NOT_ENOUGH_REPLICAS)
            told = await asyncio.gather(joins(groups, "a"), joins(groups, "b"))
        assert errors(told) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
        shard.partition.settings = replace(shard.partition.settings, max_message_bytes=1_200)
        told = await asyncio.gather(joins(groups, "large", names=200), joins(groups, "b"))
        assert errors(told) == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
        told = await asyncio.gather(joins(groups, "c"), joins(groups, "b"))
        assert errors(told) == [ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.NONE], "and it is full"


async def test_a_large_neighbour_costs_the_others_few_batches(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        settings = groups.shard.partition.settings
        groups.shard.partition.settings = replace(settings, max_message_bytes=16_000)
        told = await asyncio.gather(
            *(joins(groups, f"m{number}", names=2_000 if number == 5 else 1) for number in range(32))
        )
        assert errors(told) == [
            ErrorCode.NONE if number != 5 else ErrorCode.UNKNOWN_SERVER_ERROR for number in range(32)
        ]
        consumer = groups.shard.groups["g"].consumer
        assert consumer is not None
        assert len(consumer.members) == 31
        assert len(groups.batches()) == 5, "halves: of 16, 8, 2, 1 and 4 members"


class Follows:
    """A client that asks for the next thing as soon as it is answered."""

    def __init__(self, order: list[Told], then: Callable[[], None] = lambda: None) -> None:
        self._order = order
        self._then = then
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, told: Told) -> None:
        self._done = True
        self._order.append(told)
        self._then()


async def test_what_an_answer_leads_to_is_decided_behind_all_that_is_being_carried_out(tmp_path: Path) -> None:
    """The answer of the one leads to a request, and that to another, before its neighbour is answered."""

    def beat(member: str, epoch: int) -> Callable[[int], Event]:
        return lambda waiter: ConsumerHeartbeat(
            waiter=waiter,
            member_id=member,
            epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else None,
            subscribed=("t",) if epoch == 0 else None,
            owned=NOTHING if epoch == 0 else None,
        )

    async with found(tmp_path) as groups:
        shard, order, done = groups.shard, list[Told](), asyncio.Event()

        def more() -> None:
            shard.put("g", beat("c", 0), Follows(order, done.set))
            shard.put("g", lambda waiter: Leave(waiter=waiter, members=()), Follows(order))
            shard.put("g", lambda waiter: Delete(waiter=waiter), Follows(order))

        shard.put("g", beat("a", 0), Follows(order, more))
        shard.put("g", beat("b", 0), Follows(order))
        await done.wait()
        kinds = [type(told) for told in order]
        assert kinds == [
            ConsumerHeartbeatReply,
            ConsumerHeartbeatReply,
            LeaveReply,
            DeleteReply,
            ConsumerHeartbeatReply,
        ]
        assert errors([order[0], order[1], order[4]]) == [ErrorCode.NONE] * 3
        assert order[3] == DeleteReply(error=ErrorCode.NON_EMPTY_GROUP)
        assert not shard._waiters
        assert shard._gathered.is_empty


async def test_a_lease_that_ends_in_the_turn_of_a_heartbeat_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the coordinator may prolong a session."""
    async with found(tmp_path) as groups:
        joined = joins(groups, "m")
        monkeypatch.setattr(GroupShard, "is_in_doubt", True)
        assert await joined is ErrorCode.NOT_COORDINATOR
        assert groups.batches() == []


def test_a_member_is_heard_once_in_a_round() -> None:
    def beat(waiter: int, member: str, instance: str | None = None) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(waiter=waiter, member_id=member, epoch=1, instance_id=instance)

    beats = [beat(0, "a"), beat(1, "b", "i"), beat(2, "a"), beat(3, "c", "i"), beat(4, "d")]
    assert [[each.waiter for each in found] for found in rounds(beats)] == [[0, 1], [2, 3, 4]]
