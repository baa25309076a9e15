"""Offsets committed in transactions: open until a marker, and of two the later in the log stands."""

from __future__ import annotations

import pytest

from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.model import NamedPartition
from headrace.coordinators.groups.transactional import is_unstable
from headrace.wire.errors import ErrorCode
from tests.coordinators.group_world import World

HOUR_MS = 3_600_000


def unstable(world: World, index: int) -> bool:
    return is_unstable(world.groups.get("g"), NamedPartition("t", index))


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_open_offset_counts_once_its_transaction_is_committed(is_committed: bool) -> None:
    world = World()
    assert world.committed(world.commit_in_transaction(1, {0: 10})) == (ErrorCode.NONE,)
    assert world.offset(0) == -1
    assert unstable(world, 0)
    assert not unstable(world, 1)
    world.crash()
    assert unstable(world, 0)
    world.end(1, is_committed=is_committed)
    assert world.offset(0) == (10 if is_committed else -1)
    assert not unstable(world, 0)
    assert ("g" in world.groups) is is_committed


def test_an_offset_is_unstable_while_it_is_written() -> None:
    world = World(autowrite=False)
    world.commit_in_transaction(1, {0: 10})
    assert unstable(world, 0)
    world.settle()
    assert unstable(world, 0)


def test_a_later_commit_stands_whenever_the_transaction_ends() -> None:
    world = World()
    world.commit_in_transaction(1, {0: 10, 1: 11})
    world.commit({0: 5})
    assert not unstable(world, 0)
    world.end(1, is_committed=True)
    assert (world.offset(0), world.offset(1)) == (5, 11)


def test_of_two_transactions_the_later_record_stands_in_whatever_order_they_end() -> None:
    for first, second in ((1, 2), (2, 1)):
        world = World()
        world.commit_in_transaction(1, {0: 10})
        world.commit_in_transaction(2, {0: 20})
        world.end(first, is_committed=True)
        world.crash()
        world.end(second, is_committed=True)
        assert world.offset(0) == 20


def test_a_deleted_offset_does_not_come_back_with_a_transaction() -> None:
    world = World()
    world.commit({0: 1})
    world.commit_in_transaction(1, {0: 10})
    world.delete_offsets(NamedPartition("t", 0))
    world.end(1, is_committed=True)
    assert world.groups == {} == world.replayed()


def test_who_commits_is_checked_where_the_request_names_a_member() -> None:
    world = World()
    assert world.committed(world.commit_in_transaction(1, {0: 1}, generation=4)) == (ErrorCode.ILLEGAL_GENERATION,)
    member = world.joined(world.join())
    assert world.committed(world.commit_in_transaction(1, {0: 1})) == (ErrorCode.NONE,), "as clients before v3"
    for member_id, generation, error in (
        (member.member_id, 1, ErrorCode.NONE),  # also while the leader's assignment is awaited
        (member.member_id, 2, ErrorCode.ILLEGAL_GENERATION),
        ("other", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("other", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        answer = world.commit_in_transaction(1, {0: 1}, member_id=member_id, generation=generation)
        assert world.committed(answer) == (error,)


def test_a_group_with_open_offsets_is_not_expired() -> None:
    world = World(config=GroupConfig(offsets_retention_ms=HOUR_MS))
    world.commit({0: 1, 1: 1})
    world.commit_in_transaction(1, {0: 10})
    world.advance(2 * HOUR_MS)
    world.send("g", ev.Expire())
    assert (world.offset(0), world.offset(1)) == (1, -1)
    world.end(1, is_committed=True)
    assert world.offset(0) == 10


def test_deleting_a_group_takes_its_open_offsets_too() -> None:
    world = World()
    world.commit_in_transaction(1, {0: 10})
    assert world.replies[world.delete()] == ev.DeleteReply(error=ErrorCode.NONE)
    world.end(1, is_committed=True)
    assert world.groups == {} == world.replayed()
