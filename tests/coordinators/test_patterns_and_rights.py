"""Members that subscribe by regular expression are told of no topic that they may not describe themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.coordinators.groups.consumer.model import ConsumerHeartbeatReply, Partitions
from tests.coordinators.consumer_world import NOTHING, REBALANCE_MS, ConsumerWorld
from tests.coordinators.test_consumer_members import asked

ALL = frozenset({"t", "t2", "u"})


def world_with(rights: Mapping[str, frozenset[str]] | None) -> ConsumerWorld:
    world = ConsumerWorld()
    world.cluster = replace(world.cluster.having(t2=2, u=2), rights=rights)
    return world


def allow(world: ConsumerWorld, **rights: frozenset[str]) -> None:
    """A change of ACLs, which is one of the image."""
    changed = {**(world.cluster.rights or {}), **rights}
    world.cluster = replace(world.cluster, rights=changed, version=world.cluster.version + 1)


def joins(world: ConsumerWorld, member_id: str, principal: str, pattern: str = ".*") -> ConsumerHeartbeatReply:
    fields: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE_MS, "owned": NOTHING, "pattern": pattern}
    return asked(world, member_id, 0, principal=principal, **fields)


def beats(world: ConsumerWorld, member_id: str, principal: str, owned: Partitions | None = None) -> Partitions | None:
    epoch = world.group.members[member_id].epoch
    return asked(world, member_id, epoch, principal=principal, owned=owned).assigned


def quiet(world: ConsumerWorld, **principals: str) -> dict[str, Partitions]:
    """All give up and take up what they are told, until nothing changes. Returns what each has."""
    for _ in range(4):
        for member_id, principal in principals.items():
            beats(world, member_id, principal, world.group.members[member_id].assigned)
    return {member_id: world.group.members[member_id].assigned for member_id in principals}


def topics(world: ConsumerWorld, *names: str) -> Partitions:
    return world.cluster.partitions(names)


def test_a_member_gets_what_it_may_describe() -> None:
    world = world_with({"alice": frozenset({"t", "u"})})
    assert joins(world, "m", "alice", "t.*").assigned == topics(world, "t")
    assert dict(world.group.patterns) == {"t.*": frozenset({"t"})}
    assert joins(world_with(None), "m", "alice", "t.*").assigned == topics(world, "t", "t2")


def test_rights_that_come_and_go_are_followed() -> None:
    world = world_with({"alice": frozenset()})
    assert joins(world, "m", "alice").assigned == NOTHING
    allow(world, alice=frozenset({"t"}))
    assert beats(world, "m", "alice") == topics(world, "t")
    allow(world, alice=frozenset({"u"}))
    assert beats(world, "m", "alice") == NOTHING, "it is to give up first"
    assert beats(world, "m", "alice", NOTHING) == topics(world, "u")
    allow(world, bob=ALL)
    before = world.group.epoch
    assert beats(world, "m", "alice") is None
    assert world.group.epoch == before, "the rights of others are no reason to rebalance"


def test_members_with_one_expression_get_what_each_may_describe() -> None:
    world = world_with({"alice": frozenset({"t", "u"}), "bob": frozenset({"t", "t2"})})
    joins(world, "a", "alice")
    joins(world, "b", "bob")
    has = quiet(world, a="alice", b="bob")
    assert has["a"] | has["b"] == topics(world, *ALL)
    assert has["a"] <= topics(world, "t", "u")
    assert has["b"] <= topics(world, "t", "t2")
    assert world.group.patterns[".*"] == ALL
    allow(world, alice=frozenset({"u"}))
    has = quiet(world, a="alice", b="bob")
    assert has == {"a": topics(world, "u"), "b": topics(world, "t", "t2")}
    allow(world, bob=ALL)
    has = quiet(world, a="alice", b="bob")
    assert has["a"] | has["b"] == topics(world, *ALL)
    assert has["b"] >= topics(world, "t", "t2")


def test_a_new_coordinator_tells_a_member_nothing_before_it_knows_who_it_is() -> None:
    world = world_with({"alice": ALL, "bob": frozenset({"t"})})
    joins(world, "a", "alice")
    joins(world, "b", "bob")
    before = quiet(world, a="alice", b="bob")
    world.crash()
    world.cluster = world.cluster.having(secret=4)
    allow(world, alice=ALL | {"secret"})
    assert world.group.members["b"].principal is None
    beats(world, "a", "alice")
    assert beats(world, "b", "bob") in (None, before["b"])
    has = quiet(world, a="alice", b="bob")
    assert has["b"] <= topics(world, "t")
    assert has["a"] >= topics(world, "secret", "t2", "u")


def test_a_new_coordinator_rebalances_nobody_for_nothing() -> None:
    world = world_with({"alice": frozenset({"t", "u"})})
    for member_id in "ab":
        joins(world, member_id, "alice")
    before = quiet(world, a="alice", b="alice")
    epoch = world.group.epoch
    world.crash()
    assert quiet(world, a="alice", b="alice") == before
    assert world.group.epoch == epoch


def test_rights_that_went_while_nobody_coordinated_are_missed() -> None:
    world = world_with({"alice": frozenset({"t", "u"})})
    joins(world, "m", "alice")
    quiet(world, m="alice")
    world.crash()
    allow(world, alice=frozenset({"u"}))
    assert beats(world, "m", "alice") == topics(world, "u")


def test_a_member_that_is_another_client_now_has_its_rights() -> None:
    """A client may log in as another one between two heartbeats."""
    world = world_with({"alice": frozenset({"t", "u"}), "bob": frozenset({"u"})})
    joins(world, "m", "alice")
    quiet(world, m="alice")
    assert beats(world, "m", "bob") == topics(world, "u")
