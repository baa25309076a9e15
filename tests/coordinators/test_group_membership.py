"""Stories of membership, as Kafka's classic protocol expects them: joining, rebalancing, timing out, being fenced."""

from __future__ import annotations

import pytest

from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.model import GroupState
from headrace.wire.errors import ErrorCode
from tests.coordinators.group_world import World


def stable(world: World, *names: str) -> int:
    """A stable group of these members, each with its own name as its assignment; the generation."""
    waiters = {name: world.join(new_member_id=name) for name in names}
    for _ in range(2):  # those that were let in before the last one came join again
        for name in names:
            if waiters[name] in world.replies and world.groups["g"].state is GroupState.PREPARING:
                waiters[name] = world.join(member_id=name)
    generation = world.groups["g"].generation
    leader = world.groups["g"].leader
    for name in sorted(names, key=lambda name: name == leader):
        world.sync(name, generation, {name: name.encode() for name in names} if name == leader else None)
    assert world.groups["g"].state is GroupState.STABLE
    return generation


def state(world: World) -> GroupState:
    return world.groups["g"].state


def test_a_newcomer_is_told_its_id_first() -> None:
    world = World()
    told = world.joined(world.join(new_member_id="m", known_id=True))
    assert (told.error, told.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m")
    assert world.groups["g"].members == {}
    joined = world.joined(world.join(member_id="m", known_id=True))
    assert (joined.error, joined.generation, joined.leader) == (ErrorCode.NONE, 1, "m")


def test_a_heartbeat_of_a_member_that_waits_begins_no_session() -> None:
    """On another connection: what it waits for may take longer than its session."""
    world = World()
    generation = stable(world, "a", "b")
    world.join(member_id="a")
    waits = world.join(member_id="a")
    assert waits in world.waiting
    assert world.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.groups["g"].members["a"].deadline_ms is None


def test_an_id_that_is_never_used_lapses_and_the_group_with_it() -> None:
    world = World()
    world.join(new_member_id="m", known_id=True, session_timeout_ms=10_000)
    world.advance(9_999)
    assert "g" in world.groups
    world.advance(1)
    assert world.groups == {}
    assert world.joined(world.join(member_id="m")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_an_id_that_was_given_out() -> None:
    world = World()
    generation = stable(world, "a")
    world.join(new_member_id="b", known_id=True)
    again = world.join(member_id="a")
    assert again in world.waiting, "b is on its way"
    world.join(member_id="b")
    assert world.joined(again).generation == generation + 1


def test_the_first_generation_waits_for_more_members_and_longer_as_they_come() -> None:
    world = World(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = world.join(rebalance_timeout_ms=7_000)
    world.advance(2_000)
    second = world.join(rebalance_timeout_ms=7_000)
    world.advance(1_000)
    assert {first, second} <= world.waiting
    third = world.join(rebalance_timeout_ms=7_000)
    world.advance(3_999)
    assert first in world.waiting, "up to the rebalance timeout in all"
    world.advance(1)
    assert len({world.joined(waiter).generation for waiter in (first, second, third)}) == 1
    assert len(world.joined(first).members) == 3


def test_the_first_generation_is_formed_after_the_delay_where_nobody_else_comes() -> None:
    world = World(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
    alone = world.join()
    world.advance(2_999)
    assert alone in world.waiting
    world.advance(1)
    assert world.joined(alone).error is ErrorCode.NONE


def test_only_the_leader_is_told_who_is_in() -> None:
    world = World(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
    waiters = [world.join(new_member_id=name, metadata=name.encode()) for name in "abc"]
    world.advance(6_000)
    leader, *others = [world.joined(waiter) for waiter in waiters]
    assert leader.members == (("a", None, b"a"), ("b", None, b"b"), ("c", None, b"c"))
    assert [reply.members for reply in others] == [(), ()]
    assert {reply.leader for reply in (leader, *others)} == {"a"}


def test_assignments_are_handed_out_only_once_they_are_durable() -> None:
    world = World(autowrite=False)
    joined = world.joined(world.join(new_member_id="a"))
    synced = world.sync("a", joined.generation, {"a": b"share"})
    assert synced in world.waiting
    world.settle()
    assert world.synced(synced).assignment == b"share"
    assert world.replayed()["g"].members["a"].assignment == b"share"


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_starts_the_rebalance_anew(refused: ErrorCode, told: ErrorCode) -> None:
    world = World(autowrite=False)
    world.join(new_member_id="a")
    world.refuse_next = refused
    synced = world.sync("a", 1, {"a": b"share"})
    assert world.synced(synced).error is told
    assert state(world) is GroupState.PREPARING
    assert world.joined(world.join(member_id="a")).generation == 2


def test_a_write_that_settles_after_its_generation_has_passed_changes_nothing() -> None:
    world = World(autowrite=False)
    world.join(new_member_id="a")
    synced = world.sync("a", 1, {"a": b"share"})
    joining = world.join(new_member_id="b")
    assert world.synced(synced).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.settle()
    assert state(world) is GroupState.PREPARING
    world.join(member_id="a")
    assert world.joined(joining).generation == 2


def test_a_member_that_comes_makes_the_others_join_again() -> None:
    world = World()
    generation = stable(world, "a")
    joining = world.join(new_member_id="b")
    assert world.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(member_id="a")
    assert world.joined(again).generation == world.joined(joining).generation == generation + 1
    assert world.heartbeat("a", generation) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("a", generation + 1) is ErrorCode.NONE


def test_who_does_not_join_again_in_time_is_out() -> None:
    world = World()
    generation = stable(world, "a", "b")
    joining = world.join(member_id="a", rebalance_timeout_ms=60_000)
    for _ in range(59):
        world.advance(1_000)
        assert world.heartbeat("b", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert joining in world.waiting
    world.advance(1_000)
    assert [member.id for member in world.joined(joining).members] == ["a"]
    assert world.heartbeat("b", generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_its_session_timeout_is_out() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.advance(9_000)
    assert world.heartbeat("a", generation) is ErrorCode.NONE
    world.advance(1_000)
    assert world.heartbeat("b", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_renews_the_session() -> None:
    world = World()
    generation = stable(world, "a")
    for _ in range(4):
        world.advance(9_000)
        assert world.committed(world.commit({0: 1}, member_id="a", generation=generation)) == (ErrorCode.NONE,)
    assert world.heartbeat("a", generation) is ErrorCode.NONE


def test_who_waits_in_a_join_is_not_silent() -> None:
    world = World()
    generation = stable(world, "a", "b")
    joining = world.join(member_id="a", session_timeout_ms=6_000)
    for _ in range(5):
        world.advance(6_000)
        world.heartbeat("b", generation)
    assert joining in world.waiting
    world.join(member_id="b")
    assert world.joined(joining).error is ErrorCode.NONE


def test_a_newcomer_waits_five_minutes_at_most() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.join(member_id="a", rebalance_timeout_ms=1_000_000)
    joining = world.join(new_member_id="c")
    for _ in range(60):
        world.advance(5_000)
        world.heartbeat("b", generation)
    assert world.joined(joining).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_takes_its_generation_and_never_syncs_is_out() -> None:
    world = World()
    stable(world, "a", "b")
    for name in ("a", "b"):
        world.join(member_id=name)
    generation = world.groups["g"].generation
    leader = world.groups["g"].leader
    assert leader == "a"
    synced = world.sync("b", generation)
    for _ in range(59):
        world.advance(1_000)
        assert world.heartbeat("a", generation) is ErrorCode.NONE
    assert synced in world.waiting
    world.advance(1_000)
    assert world.synced(synced).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(world.groups["g"].members) == {"b"}


def test_leaving_is_quicker_than_falling_silent() -> None:
    world = World()
    generation = stable(world, "a", "b")
    assert world.leave("a", "nobody") == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert world.heartbeat("b", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.joined(world.join(member_id="b")).leader == "b"


def test_the_last_to_leave_empties_the_group_durably() -> None:
    world = World()
    generation = stable(world, "a")
    world.leave("a")
    assert state(world) is GroupState.EMPTY
    replayed = world.replayed()["g"]
    assert (replayed.state, replayed.generation, replayed.members) == (GroupState.EMPTY, generation + 1, {})


def test_a_member_that_leaves_while_others_wait_lets_them_go_on() -> None:
    world = World()
    stable(world, "a", "b")
    joining = world.join(member_id="a")
    assert joining in world.waiting
    world.leave("b")
    assert world.joined(joining).error is ErrorCode.NONE


def test_the_longest_standing_member_leads_after_the_leader() -> None:
    world = World()
    stable(world, "a", "b", "c")
    world.leave("a")
    assert world.groups["g"].leader == "b"


def test_the_leader_may_ask_for_a_rebalance_and_a_follower_without_news_may_not() -> None:
    world = World()
    generation = stable(world, "a", "b")
    same = world.joined(world.join(member_id="b"))
    assert (same.generation, same.members, state(world)) == (generation, (), GroupState.STABLE)
    asked = world.join(member_id="a")
    assert asked in world.waiting
    assert state(world) is GroupState.PREPARING


def test_a_follower_with_another_subscription_makes_a_rebalance() -> None:
    world = World()
    stable(world, "a", "b")
    world.join(member_id="b", metadata=b"other topics")
    assert state(world) is GroupState.PREPARING


def test_a_member_that_lost_the_answer_is_given_it_again() -> None:
    world = World()
    first = world.joined(world.join(new_member_id="a"))
    again = world.joined(world.join(member_id="a"))
    assert again == first
    world.sync("a", 1, {"a": b"share"})
    assert world.synced(world.sync("a", 1)).assignment == b"share"


def test_two_requests_of_one_member_are_both_answered() -> None:
    world = World()
    stable(world, "a", "b")
    first, second = world.join(member_id="a"), world.join(member_id="a")
    assert world.joined(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.join(member_id="b")
    assert world.joined(second).error is ErrorCode.NONE


def test_the_protocol_is_the_one_that_most_members_want_among_those_that_all_have() -> None:
    world = World(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
    waiter = world.join(protocols=("sticky", "range", "own"))
    world.join(protocols=("range", "sticky"))
    world.join(protocols=("roundrobin", "range", "sticky"))
    world.advance(60_000)
    assert world.joined(waiter).protocol == "range"


@pytest.mark.parametrize(
    ("protocols", "protocol_type"), [(("roundrobin",), "consumer"), (("range",), "connect"), ((), "consumer")]
)
def test_a_member_that_shares_no_protocol_is_refused(protocols: tuple[str, ...], protocol_type: str) -> None:
    world = World()
    stable(world, "a")
    refused = world.joined(world.join(protocols=protocols, protocol_type=protocol_type))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert state(world) is GroupState.STABLE


def test_a_sync_for_another_protocol_is_refused() -> None:
    world = World()
    world.join(new_member_id="a")
    waiter = world.waiter("g")
    world.send("g", ev.Sync(waiter=waiter, member_id="a", generation=1, protocol="sticky", assignments={}))
    assert world.synced(waiter).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(session_timeout_ms: int) -> None:
    world = World()
    refused = world.joined(world.join(session_timeout_ms=session_timeout_ms))
    assert refused.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.groups == {}


def test_a_group_takes_no_more_members_than_it_may() -> None:
    world = World(config=GroupConfig(group_max_size=2, group_initial_rebalance_delay_ms=0))
    stable(world, "a")
    world.join(new_member_id="b", known_id=True)
    assert world.joined(world.join(new_member_id="c")).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_commits_are_taken_while_members_join_and_not_while_they_wait_for_shares() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.join(member_id="a")
    assert world.committed(world.commit({0: 1}, member_id="b", generation=generation)) == (ErrorCode.NONE,)
    world.join(member_id="b")
    assert state(world) is GroupState.COMPLETING
    for claimed, error in (
        (generation, ErrorCode.ILLEGAL_GENERATION),
        (generation + 1, ErrorCode.REBALANCE_IN_PROGRESS),
    ):
        assert world.committed(world.commit({0: 2}, member_id="b", generation=claimed)) == (error,)


def test_after_a_restart_members_go_on_and_the_silent_are_dropped() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.crash()
    assert world.synced(world.sync("a", generation)).assignment == b"a"
    world.advance(9_999)
    assert world.heartbeat("a", generation) is ErrorCode.NONE
    world.advance(1)
    assert world.heartbeat("b", generation) is ErrorCode.UNKNOWN_MEMBER_ID
