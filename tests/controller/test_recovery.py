"""Partitions whose brokers are gone for good: what is decided of them, and what is refused, in words."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex, TopicId, TopicPartition
from headrace.controller import recovery
from headrace.controller.brokers import unfence_broker
from headrace.controller.decision import Refusal
from headrace.controller.durable import publish_segment
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.controller.recovery import Recovery, RecoveryWish, recover_partitions
from headrace.controller.removal import remove_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.events import MoveCancelled
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode
from tests.controller.test_moves import A, B, C, Cluster
from tests.metadata.histories import BROKERS, Entry, descriptor, histories
from tests.metadata.test_image_laws import check_epochs_rise, check_invariants, replay_all

T0 = PartitionIndex(0)
OTHER = TopicId(uuid.UUID(int=8))


def make(world: Cluster, name: str, *placed: tuple[BrokerId, ...], records: int = 4) -> None:
    """Topic `OTHER`, with its partitions on these brokers, and so much of each exported."""
    new = NewTopic(topic_id=OTHER, name=name, assignments=tuple(enumerate(placed)), configs={})
    (made,) = world.do(create_topics(world.image, [new], broker_configs={}))
    assert made.refusal is None
    for at in range(len(placed)) if records else ():
        known = world.image.topics[OTHER].partitions[at]
        publishing = publish_segment(
            world.image,
            topic_id=OTHER,
            partition=known.index,
            leader_epoch=known.leader_epoch,
            descriptor=descriptor(0, records, known.leader_epoch),
            previous_hash=world.image.durable(TopicPartition(OTHER, known.index)).head,
        )
        assert world.do(publishing) is None


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def lost(cluster: Cluster) -> Cluster:
    """A, which alone had it, is gone."""
    cluster.fence(A)
    assert cluster.partition.leader == NO_LEADER
    return cluster


def ask(world: Cluster, *, validate_only: bool = False, **wish: Any) -> Any:
    before = world.image
    wanted = RecoveryWish(**{"topic": "t", **wish})
    answer = world.do(recover_partitions(world.image, wanted, validate_only=validate_only))
    check_epochs_rise(before, world.image)
    check_invariants(world.image)
    return answer


def refused(world: Cluster, **wish: Any) -> Refusal:
    """Of the one partition that is named, or of all; nothing has changed."""
    before = world.image
    answer = ask(world, **wish)
    if isinstance(answer, Recovery):
        (one,) = answer.outcomes
        assert one.target == NO_LEADER
        answer = one.refusal
    assert isinstance(answer, Refusal)
    assert world.image is before
    return answer


def check_recovered(before: PartitionImage, now: PartitionImage, by: BrokerId, *, epochs: int = 1) -> None:
    assert (now.replicas, now.isr, now.leader) == ((by,), (by,), by)
    assert now.leader_epoch == before.leader_epoch + epochs == now.assignment_epoch == now.recovered_epoch
    assert now.partition_epoch > before.partition_epoch
    assert now.is_unclean
    assert now.is_recovered
    assert (now.adding, now.removing, now.kept_in, now.move) == ((), (), None, None)


def test_what_nobody_leads_goes_on_at_another_behind_history(lost: Cluster) -> None:
    before = lost.partition
    answer = ask(lost, to=C)
    (one,) = answer.outcomes
    assert (one.topic, one.partition, one.replicas, one.target, one.end_offset) == ("t", T0, (A,), C, 21)
    assert (one.refusal, answer.led) == (None, 0)
    check_recovered(before, lost.partition, C)


def test_the_target_is_chosen_as_for_a_new_partition(lost: Cluster) -> None:
    make(lost, "u", (B,), (B,))
    assert ask(lost).outcomes[0].target == C, "it leads the fewest"


def test_of_several_each_counts_those_before_it() -> None:
    world = Cluster()
    make(world, "u", (A,), (A,), (A,), (A,))
    world.fence(A)
    assert [one.target for one in ask(world, topic="u").outcomes] == [B, C, B, C]


def test_a_dry_run_changes_nothing_and_says_the_same(lost: Cluster) -> None:
    before = lost.image
    told = ask(lost, validate_only=True)
    assert lost.image is before
    assert ask(lost) == told


def test_to_ask_again_changes_nothing(lost: Cluster) -> None:
    ask(lost, to=B)
    before = lost.image
    assert ask(lost, to=C) == Recovery(outcomes=(), led=1)
    assert lost.image is before


def test_who_comes_back_is_no_replica_and_may_be_removed(lost: Cluster) -> None:
    ask(lost, to=B)
    lost.register(A)
    assert (lost.partition.replicas, lost.partition.leader) == ((B,), B)
    lost.fence(A)
    assert lost.do(remove_broker(lost.image, broker_id=A)) is None


def test_a_move_that_is_not_sealed_is_given_up(cluster: Cluster) -> None:
    assert cluster.ask(B) is None
    cluster.fence(A)
    before = cluster.partition
    assert before.move is not None
    decision = recover_partitions(cluster.image, RecoveryWish(topic="t", to=C))
    assert isinstance(decision.events[0], MoveCancelled)
    cluster.do(decision)
    check_recovered(before, cluster.partition, C, epochs=2)
    assert not cluster.image.moves


def test_a_reassignment_that_is_under_way_is_over(cluster: Cluster) -> None:
    cluster.register(BrokerId(4))
    wish = (B, C)
    assert cluster.ask(*wish) is None
    assert cluster.partition.adding == wish
    for broker in (B, C, A):
        cluster.fence(broker)
    before = cluster.partition
    assert ask(cluster).outcomes[0].target == 4
    check_recovered(before, cluster.partition, BrokerId(4))


def test_a_disk_that_only_a_gone_broker_had_is_waited_for_no_more(lost: Cluster) -> None:
    lost.register(A, directory=2)
    lost.fence(A)
    before = lost.partition
    assert before.kept_in is not None
    ask(lost, to=B)
    check_recovered(before, lost.partition, B)


# refusals


def test_what_is_led_is_left_alone_with_how_to_proceed(cluster: Cluster) -> None:
    found = refused(cluster, partitions=(T0,))
    assert found.code is ErrorCode.ELECTION_NOT_NEEDED
    assert "led by broker 1" in found.message
    assert "broker.session.timeout.ms" in found.message
    assert ask(cluster) == Recovery(outcomes=(), led=1), "not named, it is counted"


def test_where_a_replica_lives_it_may_be_elected(cluster: Cluster) -> None:
    make(cluster, "v", (A, B, C))
    for broker in (C, B, A):
        cluster.fence(broker)
    cluster.register(C)
    (known,) = cluster.image.topics[OTHER].partitions
    assert (known.leader, known.isr) == (NO_LEADER, (A,))
    found = refused(cluster, topic="v", to=C)
    assert found.code is ErrorCode.INVALID_REQUEST
    assert "Broker 3 is alive" in found.message
    assert "headrace topic elect v --partition 0 --unclean" in found.message


def test_what_is_sealed_goes_on_by_itself(cluster: Cluster) -> None:
    assert cluster.ask(B) is None
    assert cluster.prove() is None
    assert cluster.propose(cluster.seal()) is None
    cluster.fence(B)
    found = refused(cluster, partitions=(T0,), to=C)
    assert found.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert "headrace topic move t --partition 0 --to BROKER" in found.message
    assert refused(cluster) == found


def test_what_has_no_history_is_refused() -> None:
    world = Cluster(records=0)
    world.fence(A)
    found = refused(world)
    assert found.code is ErrorCode.INVALID_REQUEST
    assert "no durable history" in found.message


@pytest.mark.parametrize(
    ("wish", "code", "words"),
    [
        ({"topic": "nope"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Topic 'nope' does not exist"),
        ({"partitions": (7,)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-7 does not exist"),
        ({"partitions": (-1,)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t--1 does not exist"),
        ({"to": 9}, ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker 9 is not registered"),
        ({"to": A}, ErrorCode.BROKER_NOT_AVAILABLE, "Broker 1 is not alive"),
        ({"topic": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "is internal"),
    ],
)
def test_what_cannot_be_is_refused(lost: Cluster, wish: dict[str, Any], code: ErrorCode, words: str) -> None:
    make(lost, "__consumer_offsets", (B,), records=0)
    found = refused(lost, **wish)
    assert found.code is code
    assert words in found.message


def test_where_nobody_lives_nothing_goes_on(lost: Cluster) -> None:
    lost.fence(B)
    lost.fence(C)
    assert refused(lost).code is ErrorCode.BROKER_NOT_AVAILABLE


def test_more_than_an_entry_holds_is_to_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cluster()
    monkeypatch.setattr(recovery, "ELECTIONS_PER_ENTRY_MAX", 1)
    make(world, "u", (A,), (A,))
    world.fence(A)
    first, second = ask(world, topic="u").outcomes
    assert (first.refusal, second.refusal.code) == (None, ErrorCode.REQUEST_TIMED_OUT)
    (rest,) = ask(world, topic="u").outcomes
    assert (rest.partition, rest.refusal) == (1, None)


# any earlier state


def exported(world: Cluster, topic: TopicImage) -> None:
    """A segment more of each partition that is led."""
    for known in topic.partitions:
        catalog = world.image.durable(TopicPartition(topic.id, known.index))
        publishing = publish_segment(
            world.image,
            topic_id=topic.id,
            partition=known.index,
            leader_epoch=known.leader_epoch,
            descriptor=descriptor(catalog.next_offset, 2, known.leader_epoch),
            previous_hash=catalog.head,
        )
        world.do(publishing)


@given(histories(), st.none() | st.sampled_from(BROKERS), st.integers(0, 2), st.booleans())
def test_what_is_recovered_was_dead_and_is_whole_and_the_rest_is_as_it_was(
    entries: list[Entry], to: BrokerId | None, number: int, moves: bool
) -> None:
    """All live, all that is led is exported, and with `moves` is to be handed over to one; then all others die."""
    world = Cluster()
    world.image = replay_all(entries)
    alive = sorted(world.image.brokers)[number % len(world.image.brokers)] if world.image.brokers else BROKERS[0]
    for broker in world.image.brokers:
        world.do(unfence_broker(world.image, broker_id=broker, broker_epoch=world.epoch(broker)))
    for topic in world.image.topics.values():
        exported(world, topic)
        wishes = [Reassignment(topic=topic.name, partition=one.index, replicas=(alive,)) for one in topic.partitions]
        world.do(reassign_partitions(world.image, wishes if moves else [], hands_over=lambda _: True))
    for broker in [broker for broker in world.image.brokers if broker != alive]:
        world.fence(broker)
    image = world.image
    for topic in list(image.topics.values()):
        decision = recover_partitions(image, RecoveryWish(topic=topic.name, to=to))
        after = image.replay(decision.events, index=image.index + 1)
        check_invariants(after)
        check_epochs_rise(image, after)
        done = {}
        if isinstance(decision.result, Recovery):
            done = {one.partition: one for one in decision.result.outcomes if one.refusal is None}
        for before, now in zip(topic.partitions, after.topics[topic.id].partitions, strict=True):
            if before.index not in done:
                assert now == before
                continue
            one = done[before.index]
            event("recovered while it moved" if before.move is not None else "recovered")
            assert before.leader == NO_LEADER
            assert not before.is_sealed
            assert all(image.brokers[replica].fenced for replica in before.replicas)
            catalog = image.durable(TopicPartition(topic.id, before.index))
            assert one.end_offset == catalog.end_offset >= 0
            check_recovered(before, now, one.target, epochs=1 if before.move is None else 2)
        again = recover_partitions(after, RecoveryWish(topic=topic.name, to=to))
        assert again.events == ()
        image = after
