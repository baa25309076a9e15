"""Where partitions go that people want moved."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.base.ids import BrokerId, PartitionIndex, TopicId
from headrace.controller.decision import Refusal
from headrace.controller.moving import MoveOutcome, MoveWish, UnableBroker, move_partitions
from headrace.controller.topics import NewTopic, create_topics
from headrace.wire.errors import ErrorCode
from tests.controller.test_moves import A, B, C, Cluster

D = BrokerId(4)


def cluster(*placed: tuple[BrokerId, ...]) -> Cluster:
    """Beside 't', which A holds, topic 'u' with its partitions on these brokers, of four."""
    found = Cluster()
    found.register(D)
    new = NewTopic(topic_id=TopicId(uuid.UUID(int=8)), name="u", assignments=tuple(enumerate(placed)), configs={})
    found.do(create_topics(found.image, [new], broker_configs={}))
    return found


def ask(world: Cluster, **wish: Any) -> Any:
    return world.do(move_partitions(world.image, MoveWish(**wish), hands_over=lambda topic: topic.name == "t"))


def short(outcomes: tuple[MoveOutcome, ...]) -> list[tuple[str, int, int, int, bool]]:
    assert all(one.refusal is None for one in outcomes)
    return [(one.topic, one.partition, one.source, one.target, one.is_handed_over) for one in outcomes]


def replicas(world: Cluster, index: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As they shall be, and those that go."""
    found = world.image.partition_info("u", index)
    assert found is not None
    return found.replicas[: found.replication_factor], found.removing


def test_all_of_a_topic_goes_to_one_broker_and_what_is_there_stays() -> None:
    world = cluster((B,), (C,), (A,))
    assert short(ask(world, topic="u", to=C)) == [("u", 0, B, C, False), ("u", 2, A, C, False)]
    assert replicas(world, 0) == ((C,), (B,))
    assert replicas(world, 1) == ((C,), ())
    assert replicas(world, 2) == ((C,), (A,))
    assert ask(world, topic="u", to=C) == (), "it is on its way"


def test_one_partition_of_it() -> None:
    world = cluster((B,), (B,))
    assert short(ask(world, topic="u", partitions=(PartitionIndex(1),), to=C)) == [("u", 1, B, C, False)]
    assert replicas(world, 0) == ((B,), ())


def test_a_target_with_a_copy_is_told_from_one_without() -> None:
    world = cluster((B, C))
    copied = move_partitions(world.image, MoveWish(topic="u", to=D), hands_over=lambda _: False).result
    assert not isinstance(copied, Refusal)
    assert [(one.target, one.has_copy) for one in copied] == [(D, False)]
    (led,) = ask(world, topic="u", to=C)
    assert (led.target, led.has_copy) == (C, True)


def test_a_partition_that_is_not_there_is_refused_by_name() -> None:
    world = cluster((B,), (B,))
    refusal = ask(world, topic="u", partitions=(PartitionIndex(1), PartitionIndex(77), PartitionIndex(78)), to=C)
    assert refusal == Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Partition u-77 does not exist.")
    assert replicas(world, 1) == ((B,), ())


@pytest.mark.parametrize("placed", [(A, B, C), (A, C), (B, A, C)])
@pytest.mark.parametrize("name", ["t", "u"])
def test_who_has_a_copy_already_leads_and_all_copies_stay(placed: tuple[BrokerId, ...], name: str) -> None:
    """`name`: of the topics that are handed over."""
    world = cluster(placed)
    wish = MoveWish(topic="u", to=C)
    outcomes = world.do(move_partitions(world.image, wish, hands_over=lambda topic: topic.name == name))
    assert short(outcomes) == [("u", 0, placed[0], C, False)]
    assert replicas(world) == ((C, *(one for one in placed if one != C)), ())
    found = world.image.partition_info("u", 0)
    assert found is not None
    assert (found.leader, set(found.isr)) == (C, set(placed))
    assert short(ask(world, topic="u", to=C)) == []


def test_who_has_a_copy_that_is_not_in_sync_is_refused_and_so_is_one_copy_less() -> None:
    world = cluster((A, B, C))
    before = world.image
    (refused,) = ask(world, topic="u", broker=A, to=C)
    assert refused.refusal.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert world.image is before
    world.fence(C)
    world.register(C)
    (refused,) = ask(world, topic="u", to=C)
    assert refused.refusal.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert replicas(world) == ((A, B, C), ())


def test_who_leads_is_replaced_in_its_place() -> None:
    world = cluster((A, B))
    assert short(ask(world, topic="u", to=C)) == [("u", 0, A, C, False)]
    assert replicas(world) == ((C, B), (A,))


def test_whoever_holds_least_is_chosen_and_each_gets_its_part() -> None:
    world = cluster((B,), (B,), (B,), (C,))
    assert short(ask(world, topic="u", broker=B)) == [
        ("u", 0, B, D, False),
        ("u", 1, B, A, False),
        ("u", 2, B, C, False),
    ]


def test_a_broker_that_is_drained_is_replaced_everywhere_by_who_holds_no_copy_yet() -> None:
    world = cluster((A, C), (B, A))
    assert short(ask(world, broker=A)) == [("t", 0, A, D, True), ("u", 0, A, B, False), ("u", 1, A, C, False)]
    assert replicas(world, 0) == ((B, C), (A,))
    assert replicas(world, 1) == ((B, C), (A,))
    assert world.partition.move is not None
    assert world.partition.move.target == D
    assert short(ask(world, broker=A)) == [], "all of it is on its way"


def test_what_has_nowhere_to_go_is_named_and_the_rest_is_moved() -> None:
    world = cluster((A, B, C), (A, B, D))
    world.fence(D)
    full, other = ask(world, broker=A)[1:]
    assert (full.partition, full.target) == (0, -1)
    assert full.refusal.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert "headrace topic reassign u --partition 0 --replicas 2,3" in full.refusal.message
    assert (other.partition, other.refusal) == (1, None)
    assert replicas(world, 0) == ((A, B, C), ())
    assert replicas(world, 1)[1] == (A,)


def test_nothing_is_handed_over_to_a_broker_that_cannot_take_it() -> None:
    """Others may be given copies by it: 'u' is not handed over."""
    world = cluster((A,))
    unable = (UnableBroker(broker=B, reason="it has no store"), UnableBroker(broker=C, reason="nor has it"))
    refused, copied = (ask(world, topic=name, to=B, unable=unable)[0] for name in ("t", "u"))
    assert "cannot be handed over to broker 2, for it has no store" in refused.refusal.message
    assert (copied.refusal, copied.is_handed_over) == (None, False)
    (chosen,) = ask(world, topic="t", unable=unable)
    assert (chosen.target, chosen.refusal) == (D, None)


def test_what_cannot_be_is_refused_as_a_whole() -> None:
    world = cluster((A, B, C, D))
    for wish, code in (
        ({"topic": "nope", "to": B}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "u", "to": BrokerId(9)}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"broker": BrokerId(9)}, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        refused = ask(world, **wish)
        assert isinstance(refused, Refusal)
        assert refused.code is code
    world.fence(B)
    assert isinstance(ask(world, topic="t", to=B), Refusal), "it is not alive"


def test_a_dry_run_decides_the_same_and_changes_nothing() -> None:
    world = cluster((B,))
    wish = MoveWish(topic="u", to=C)
    tried = move_partitions(world.image, wish, hands_over=lambda _: True, validate_only=True)
    assert tried.events == ()
    assert tried.result == move_partitions(world.image, wish, hands_over=lambda _: True).result
