"""Stories of static members (KIP-345, KIP-814): they come back to their own place, and whoever had it is fenced."""

from __future__ import annotations

import pytest

from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.model import GroupState
from headrace.wire.errors import ErrorCode
from tests.coordinators.group_world import World
from tests.coordinators.test_group_membership import state


def stable(world: World, *names: str) -> int:
    """A stable group of static members, each with its name in capitals as its member id and its name as its share."""
    waiters = {name: world.join(new_member_id=name.upper(), instance_id=name, known_id=True) for name in names}
    for _ in range(2):
        for name in names:
            if waiters[name] in world.replies and state(world) is GroupState.PREPARING:
                waiters[name] = world.join(member_id=name.upper(), instance_id=name)
    group = world.groups["g"]
    for name in sorted(names, key=lambda name: name.upper() == group.leader):
        shares = {other.upper(): other.encode() for other in names} if name.upper() == group.leader else None
        world.sync(name.upper(), group.generation, shares, instance_id=name)
    assert state(world) is GroupState.STABLE
    return group.generation


def test_a_static_member_is_let_in_at_once() -> None:
    world = World()
    joined = world.joined(world.join(new_member_id="A", instance_id="a", known_id=True))
    assert (joined.error, joined.member_id, joined.leader) == (ErrorCode.NONE, "A", "A")
    assert joined.members == (("A", "a", b"topics"),)


def test_one_that_comes_back_has_its_share_and_nobody_else_notices() -> None:
    world = World()
    generation = stable(world, "a", "b")
    back = world.joined(world.join(new_member_id="B2", instance_id="b"))
    assert (back.error, back.member_id, back.generation, back.leader) == (ErrorCode.NONE, "B2", generation, "A")
    assert (back.members, back.skip_assignment) == ((), False)
    assert world.synced(world.sync("B2", generation, instance_id="b")).assignment == b"b"
    assert world.heartbeat("A", generation, instance_id="a") is ErrorCode.NONE


def test_a_leader_that_comes_back_need_not_share_out_again() -> None:
    world = World()
    generation = stable(world, "a", "b")
    back = world.joined(world.join(new_member_id="A2", instance_id="a"))
    assert (back.leader, back.skip_assignment, back.generation) == ("A2", True, generation)
    assert back.members == (("A2", "a", b"topics"), ("B", "b", b"topics"))
    assert world.synced(world.sync("A2", generation, instance_id="a")).assignment == b"a"


def test_a_leader_of_an_older_version_is_told_that_another_leads() -> None:
    world = World()
    generation = stable(world, "a", "b")
    back = world.joined(world.join(new_member_id="A2", instance_id="a", skips_assignment=False))
    assert (back.leader, back.skip_assignment, back.members) == ("A", False, ())
    assert world.synced(world.sync("A2", generation, instance_id="a")).assignment == b"a"
    assert world.groups["g"].leader == "A2"


def test_the_earlier_of_two_is_fenced_from_everything() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.join(new_member_id="B2", instance_id="b")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat("B", generation, instance_id="b") is fenced
    assert world.synced(world.sync("B", generation, instance_id="b")).error is fenced
    assert world.joined(world.join(member_id="B", instance_id="b")).error is fenced
    late = world.commit({0: 1}, member_id="B", instance_id="b", generation=generation)
    assert world.committed(late) == (fenced,)
    assert world.leave(ev.Leaver("B", "b")) == (fenced,)
    assert world.heartbeat("B", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("X", generation, instance_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert state(world) is GroupState.STABLE


def test_who_waits_for_a_generation_is_fenced_by_its_successor() -> None:
    world = World()
    stable(world, "a", "b")
    waiting = world.join(member_id="A", instance_id="a")
    successor = world.join(new_member_id="A2", instance_id="a")
    assert world.joined(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert successor in world.waiting
    world.join(member_id="B", instance_id="b")
    assert [member.id for member in world.joined(successor).members] == ["A2", "B"]


def test_who_waits_for_its_share_is_fenced_and_the_group_rebalances() -> None:
    """The leader may be sharing out for the member that is no more."""
    world = World()
    generation = stable(world, "a", "b")
    for name in "ab":
        world.join(member_id=name.upper(), instance_id=name)
    waiting = world.sync("B", generation + 1, instance_id="b")
    successor = world.join(new_member_id="B2", instance_id="b")
    assert world.synced(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert state(world) is GroupState.PREPARING
    world.join(member_id="A", instance_id="a")
    assert world.joined(successor).generation == generation + 2


def test_one_that_comes_back_with_another_protocol_makes_a_rebalance() -> None:
    world = World()
    generation = stable(world, "a")
    back = world.joined(world.join(new_member_id="A2", instance_id="a", protocols=("sticky",)))
    assert (back.generation, back.protocol, back.skip_assignment) == (generation + 1, "sticky", False)


def test_its_new_place_is_durable_before_it_is_told() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.autowrite = False
    back = world.join(new_member_id="B2", instance_id="b")
    assert back in world.waiting
    world.settle()
    assert world.joined(back).error is ErrorCode.NONE
    world.crash()
    assert world.heartbeat("B2", generation, instance_id="b") is ErrorCode.NONE
    assert world.heartbeat("B", generation, instance_id="b") is ErrorCode.FENCED_INSTANCE_ID
    assert world.synced(world.sync("B2", generation, instance_id="b")).assignment == b"b"


def test_two_that_come_back_at_once_are_both_in_the_record() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.autowrite = False
    world.join(new_member_id="A2", instance_id="a")
    world.join(new_member_id="B2", instance_id="b")
    world.settle()
    world.settle()
    world.crash()
    for name in "ab":
        assert world.heartbeat(f"{name.upper()}2", generation, instance_id=name) is ErrorCode.NONE


def test_a_place_that_cannot_be_written_is_asked_for_again() -> None:
    world = World()
    generation = stable(world, "a")
    world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.joined(world.join(new_member_id="A2", instance_id="a")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat("A", generation, instance_id="a") is ErrorCode.NONE, "nobody has its place yet"
    assert world.groups["g"].leader == "A"
    again = world.joined(world.join(new_member_id="A3", instance_id="a"))
    assert (again.error, again.generation) == (ErrorCode.NONE, generation)


def test_one_whose_place_is_being_written_has_joined_the_rebalance_that_began() -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.autowrite = False
    back = world.join(new_member_id="B2", instance_id="b")
    newcomer = world.join(new_member_id="C", instance_id="c")
    world.join(member_id="A", instance_id="a")
    assert {back, newcomer} <= world.waiting
    world.settle()
    assert world.joined(back).generation == world.joined(newcomer).generation == generation + 1


def test_of_two_successors_the_later_has_the_place() -> None:
    world = World()
    generation = stable(world, "a")
    world.autowrite = False
    first = world.join(new_member_id="A2", instance_id="a")
    second = world.join(new_member_id="A3", instance_id="a")
    world.settle()
    world.settle()
    assert world.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    assert (world.joined(second).error, world.joined(second).generation) == (ErrorCode.NONE, generation)


def test_a_place_that_an_administrator_took_away_meanwhile_is_unknown() -> None:
    world = World()
    stable(world, "a", "b")
    world.autowrite = False
    back = world.join(new_member_id="B2", instance_id="b")
    assert world.leave(ev.Leaver("", "b")) == (ErrorCode.NONE,)
    world.settle()
    assert world.joined(back).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_is_late_stays_in_until_its_session_ends() -> None:
    world = World()
    generation = stable(world, "a", "b")
    newcomer = world.join(new_member_id="c", rebalance_timeout_ms=6_000, session_timeout_ms=400_000)
    world.join(member_id="A", instance_id="a", rebalance_timeout_ms=6_000, session_timeout_ms=400_000)
    world.groups["g"].validate()
    for _ in range(12):
        world.advance(5_000)
        world.heartbeat("B", generation, instance_id="b")
    assert [member.id for member in world.joined(newcomer).members] == []
    assert set(world.groups["g"].members) == {"A", "B", "c"}
    assert world.heartbeat("B", generation, instance_id="b") is ErrorCode.ILLEGAL_GENERATION
    again = world.joined(world.join(member_id="B", instance_id="b"))
    assert again.generation == generation + 1


def test_a_leader_that_is_late_is_succeeded_by_one_that_is_there() -> None:
    world = World()
    generation = stable(world, "a", "b")
    newcomer = world.join(new_member_id="c", session_timeout_ms=400_000)
    for _ in range(12):
        world.advance(5_000)
        world.heartbeat("A", generation, instance_id="a")
        world.heartbeat("B", generation, instance_id="b")
    joined = world.joined(newcomer)
    assert joined.leader == "c"
    assert [member.instance_id for member in joined.members] == ["a", "b", None]


def test_where_no_static_member_comes_the_group_waits_until_one_does_or_all_are_gone() -> None:
    world = World()
    generation = stable(world, "a", "b")
    assert world.leave(ev.Leaver("A", "a")) == (ErrorCode.NONE,)
    for _ in range(30):
        world.advance(5_000)
        assert world.heartbeat("B", generation, instance_id="b") is ErrorCode.REBALANCE_IN_PROGRESS
    assert state(world) is GroupState.PREPARING
    world.advance(10_000)
    assert state(world) is GroupState.EMPTY


def test_members_are_removed_by_instance_id_all_at_once() -> None:
    world = World()
    generation = stable(world, "a", "b", "c")
    errors = world.leave(ev.Leaver("", "a"), ev.Leaver("", "a"), ev.Leaver("", "x"), ev.Leaver("B", "b"))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert errors == (ErrorCode.NONE, unknown, unknown, ErrorCode.NONE)
    assert set(world.groups["g"].members) == {"C"}
    assert world.joined(world.join(member_id="C", instance_id="c")).generation == generation + 1


def test_a_batch_of_leavers_makes_one_rebalance() -> None:
    """Where one goes and the others have joined already, no generation is formed with the next to go in it."""
    world = World()
    generation = stable(world, "a", "b", "c")
    world.join(member_id="C", instance_id="c", metadata=b"other topics")
    waiting = [world.join(member_id=name.upper(), instance_id=name, metadata=b"other topics") for name in "bc"]
    world.leave(ev.Leaver("A", "a"), ev.Leaver("B", "b"))
    assert world.joined(waiting[0]).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.joined(waiting[1]).generation == generation + 1
    assert [member.id for member in world.joined(waiting[1]).members] == ["C"]


def test_a_full_group_takes_its_own_static_members_back() -> None:
    world = World(config=GroupConfig(group_max_size=1, group_initial_rebalance_delay_ms=0))
    stable(world, "a")
    assert world.joined(world.join(new_member_id="A2", instance_id="a")).error is ErrorCode.NONE
    assert world.joined(world.join(new_member_id="B", instance_id="b")).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_id_that_was_given_to_a_dynamic_member_is_no_static_ones() -> None:
    world = World()
    world.join(new_member_id="m", known_id=True)
    assert world.joined(world.join(member_id="m", instance_id="a")).error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("instance_id", ["a", None])
def test_a_restart_knows_static_members(instance_id: str | None) -> None:
    world = World()
    generation = stable(world, "a", "b")
    world.crash()
    assert world.groups["g"].members["A"].instance_id == "a"
    assert world.heartbeat("A", generation, instance_id=instance_id) is ErrorCode.NONE
    assert world.joined(world.join(new_member_id="A2", instance_id="a")).generation == generation
