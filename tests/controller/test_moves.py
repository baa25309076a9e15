"""The controller's decisions on hand-overs, story by story. Laws of images are in tests/metadata."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.controller.brokers import fence_broker, register_broker, unfence_broker
from headrace.controller.decision import Decision, Refusal
from headrace.controller.durable import delete_history, publish_segment
from headrace.controller.moves import (
    Seal,
    SealedTail,
    fail_target,
    finish_move,
    give_up_move,
    prove_move,
    seal_move,
    tend_moves,
)
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.controller.removal import remove_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.events import LeaderChanged, MoveSealed, ReplicasChanged, SegmentPublished
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Endpoint, PartitionImage
from headrace.wire.errors import ErrorCode
from tests.metadata.histories import descriptor, sealed

A, B, C = (BrokerId(one) for one in (1, 2, 3))
TOPIC = TopicId(uuid.UUID(int=7))
KEY = TopicPartition(TOPIC, PartitionIndex(0))
ABOUT: dict[str, Any] = {"topic_id": TOPIC, "partition": KEY.partition}


class Cluster:
    """Three live brokers, and a partition that A has written offsets 0 to 21 of, all of them exported."""

    def __init__(self, records: int = 22) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        for broker in (A, B, C):
            self.register(broker)
        new = NewTopic(topic_id=TOPIC, name="t", assignments=((0, (A,)),), configs={})
        self.do(create_topics(self.image, [new], broker_configs={}))
        if records:
            self.publish(records)

    def do(self, decision: Decision[Any]) -> Any:
        if decision.events:
            self.image = self.image.replay(decision.events, index=self.image.index + 1)
        return decision.result

    def register(self, broker: BrokerId, directory: int = 1) -> None:
        endpoints = (Endpoint(listener="PLAINTEXT", host="h", port=9),)
        directory_id = DirectoryId(uuid.UUID(int=directory))
        about: dict[str, Any] = {"broker_id": broker, "directory_id": directory_id, "endpoints": endpoints}
        epoch = self.do(register_broker(self.image, cluster_id=ClusterId("c"), **about))
        self.do(unfence_broker(self.image, broker_id=broker, broker_epoch=epoch))

    def fence(self, broker: BrokerId) -> None:
        self.do(fence_broker(self.image, broker_id=broker, broker_epoch=self.epoch(broker)))

    def epoch(self, broker: BrokerId) -> BrokerEpoch:
        return self.image.brokers[broker].epoch

    @property
    def partition(self) -> PartitionImage:
        found = self.image.partition(KEY)
        assert found is not None
        return found

    def publish(self, records: int, *, start: int | None = None) -> None:
        catalog, epoch = self.image.durable(KEY), self.partition.leader_epoch
        segment = descriptor(catalog.next_offset if start is None else start, records, epoch)
        assert (
            self.do(
                publish_segment(self.image, **ABOUT, leader_epoch=epoch, descriptor=segment, previous_hash=catalog.head)
            )
            is None
        )

    def ask(self, *replicas: BrokerId, cancel: bool = False) -> Refusal | None:
        wish = Reassignment(topic="t", partition=KEY.partition, replicas=None if cancel else replicas)
        (refusal,) = self.do(reassign_partitions(self.image, [wish], hands_over=lambda _: True))
        assert refusal is None or isinstance(refusal, Refusal)
        return refusal

    def prove(self, broker: BrokerId = B) -> Any:
        return self.do(prove_move(self.image, **ABOUT, broker_id=broker, broker_epoch=self.epoch(broker)))

    def seal(self, **changes: Any) -> Seal:
        """As A proposes it."""
        state = sealed(A, self.partition.leader_epoch, 0, self.image.durable(KEY).end_offset)
        state = replace(state, **{name: changes.pop(name) for name in list(changes) if hasattr(state, name)})
        wanted = {"broker_epoch": self.epoch(A), "target": B, "state": state, **changes}
        return Seal(**ABOUT, **wanted)

    def propose(self, seal: Seal) -> Any:
        return self.do(seal_move(self.image, seal))

    def finish(self, broker: BrokerId = B) -> Any:
        known = self.partition
        return self.do(
            finish_move(
                self.image,
                **ABOUT,
                leader_epoch=known.leader_epoch,
                broker_id=broker,
                broker_epoch=self.epoch(broker),
            )
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def aimed(cluster: Cluster) -> Cluster:
    """On its way from A to B, who has read the store."""
    assert cluster.ask(B) is None
    assert cluster.prove() is None
    return cluster


@pytest.fixture
def left(aimed: Cluster) -> Cluster:
    """Sealed."""
    assert aimed.propose(aimed.seal()) is None
    return aimed


def test_the_seal_and_the_new_owner_are_one_entry(aimed: Cluster) -> None:
    before = aimed.partition
    decision = seal_move(aimed.image, aimed.seal())
    assert [type(event) for event in decision.events] == [MoveSealed, LeaderChanged, ReplicasChanged]
    aimed.do(decision)
    after = aimed.partition
    assert (after.leader, after.replicas, after.isr) == (B, (B,), (B,))
    assert after.leader_epoch == after.assignment_epoch == before.leader_epoch + 1
    assert after.is_sealed
    assert after.left_by == A
    assert aimed.propose(aimed.seal(state=decision.events[0].state)) is None, "asked twice"  # type: ignore[union-attr]
    assert aimed.partition == after


def tail_of(cluster: Cluster, records: int = 3, **changes: Any) -> Seal:
    """A's seal, with a last segment that is in the store and not published."""
    catalog, epoch = cluster.image.durable(KEY), cluster.partition.leader_epoch
    last = catalog.end_offset + records
    wanted = {"descriptor": descriptor(catalog.next_offset, records, epoch), "previous_hash": catalog.head, **changes}
    start = max(0, catalog.readable_start)
    return cluster.seal(last_committed_offset=Offset(last), log_start_offset=Offset(start), tail=SealedTail(**wanted))


def test_the_last_segment_is_published_with_the_seal(aimed: Cluster) -> None:
    seal = tail_of(aimed)
    decision = seal_move(aimed.image, seal)
    assert [type(event) for event in decision.events] == [SegmentPublished, MoveSealed, LeaderChanged, ReplicasChanged]
    aimed.do(decision)
    catalog = aimed.image.durable(KEY)
    assert (catalog.end_offset, aimed.partition.leader, aimed.partition.is_sealed) == (24, B, True)
    assert catalog.last is not None
    assert seal.tail is not None
    assert catalog.last.descriptor == seal.tail.descriptor
    assert aimed.propose(seal) is None, "asked twice"
    assert aimed.image.durable(KEY) is catalog


def test_a_last_segment_that_was_published_by_itself_is_none_too_many(aimed: Cluster) -> None:
    seal = tail_of(aimed)
    aimed.publish(3)
    assert aimed.propose(seal) is None
    assert aimed.image.durable(KEY).end_offset == 24


@pytest.mark.parametrize(
    "changes",
    [
        {"previous_hash": "of another"},
        {"descriptor": descriptor(23, 2, 0)},
        {"descriptor": descriptor(22, 2, 0)},
        {"descriptor": descriptor(22, 4, 0)},
        {"descriptor": descriptor(22, 3, 1)},
    ],
    ids=["another chain", "a gap", "too little", "too much", "another epoch"],
)
def test_nothing_is_sealed_nor_published_where_the_last_segment_does_not_fit(
    aimed: Cluster, changes: dict[str, Any]
) -> None:
    before = aimed.image
    assert isinstance(aimed.propose(tail_of(aimed, **changes)), Refusal)
    assert aimed.image is before
    assert aimed.propose(tail_of(aimed)) is None, "but for that, it would have been"


def test_nothing_is_published_of_an_owner_whose_epoch_is_over(aimed: Cluster) -> None:
    late = tail_of(aimed)
    assert aimed.ask(cancel=True) is None
    before = aimed.image
    assert isinstance(aimed.propose(late), Refusal)
    assert aimed.image is before


def test_the_first_segment_of_all_has_to_be_read_by_the_target_before_the_seal() -> None:
    world = Cluster(records=0)
    assert world.ask(B) is None
    before = world.image
    assert isinstance(world.propose(tail_of(world)), Refusal)
    assert world.image is before


def test_it_is_finished_by_the_target_alone(left: Cluster) -> None:
    assert isinstance(left.finish(A), Refusal)
    assert isinstance(left.finish(C), Refusal)
    assert left.finish(B) is None
    assert left.partition.move is None
    assert left.finish(B) is None, "asked twice"


@pytest.mark.parametrize(
    "changes",
    [
        {"leader_epoch": LeaderEpoch(0)},
        {"leader_epoch": LeaderEpoch(99)},
        {"broker_id": C},
        {"broker_epoch": BrokerEpoch(1)},
        {"target": C},
        {"last_committed_offset": Offset(22)},
        {"last_committed_offset": Offset(20)},
        {"log_start_offset": Offset(1)},
    ],
    ids=str,
)
def test_what_is_not_so_is_not_sealed(aimed: Cluster, changes: dict[str, Any]) -> None:
    aimed.register(A)  # so that there is an older epoch of all
    assert aimed.partition.leader == A
    before = aimed.image
    assert isinstance(aimed.propose(aimed.seal(**changes)), Refusal)
    assert aimed.image is before
    assert aimed.propose(aimed.seal()) is None, "but for that, it would have been"


def test_nothing_is_sealed_where_history_begins_above_what_the_owner_has() -> None:
    """An empty catalog may begin anywhere; its owner's log is deleted once it is handed over."""
    world = Cluster(records=0)
    world.publish(22, start=5)
    assert world.ask(B) is None
    assert world.prove() is None
    before = world.image
    refused = world.propose(world.seal(log_start_offset=Offset(0)))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert world.image is before
    assert world.propose(world.seal(log_start_offset=Offset(5))) is None


def test_what_was_deleted_after_the_owner_looked_is_not_lacking(aimed: Cluster) -> None:
    seal = aimed.seal()
    epoch = aimed.partition.leader_epoch
    assert aimed.do(delete_history(aimed.image, **ABOUT, leader_epoch=epoch, log_start_offset=Offset(7))) is None
    assert aimed.propose(seal) is None


def test_a_seal_that_comes_after_the_move_was_cancelled_is_refused(aimed: Cluster) -> None:
    late = aimed.seal()
    assert aimed.ask(cancel=True) is None
    assert (aimed.partition.leader, aimed.partition.move) == (A, None)
    assert aimed.partition.leader_epoch == late.state.leader_epoch + 1
    assert isinstance(aimed.propose(late), Refusal)
    assert aimed.ask(B) is None
    assert aimed.prove() is None
    assert isinstance(aimed.propose(late), Refusal), "though the same is wished again"
    assert aimed.partition.leader == A


def test_a_seal_for_a_target_that_was_given_up_is_refused(aimed: Cluster) -> None:
    late = aimed.seal()
    assert aimed.ask(C) is None
    assert isinstance(aimed.propose(late), Refusal)
    assert aimed.partition.leader == A


def test_the_owner_gives_up_in_a_new_epoch_and_what_it_proposed_before_is_refused(aimed: Cluster) -> None:
    late = aimed.seal()
    about: dict[str, Any] = {**ABOUT, "broker_id": A, "broker_epoch": aimed.epoch(A), "for_good": True}
    assert aimed.do(give_up_move(aimed.image, leader_epoch=late.state.leader_epoch, **about)) is None
    assert aimed.partition.move is None
    assert isinstance(aimed.propose(late), Refusal)
    again = give_up_move(aimed.image, leader_epoch=late.state.leader_epoch, **about)
    assert isinstance(again.result, Refusal)


def test_the_owner_gives_up_an_epoch_and_the_move_begins_anew_in_the_next(aimed: Cluster) -> None:
    late = aimed.seal()
    about: dict[str, Any] = {**ABOUT, "broker_id": A, "broker_epoch": aimed.epoch(A), "for_good": False}
    assert aimed.do(give_up_move(aimed.image, leader_epoch=late.state.leader_epoch, **about)) is None
    known = aimed.partition
    assert known.move is not None
    assert (known.leader, known.leader_epoch, known.move.target) == (A, late.state.leader_epoch + 1, B)
    assert isinstance(aimed.propose(late), Refusal)
    assert aimed.prove() is None
    assert isinstance(aimed.propose(late), Refusal)
    assert aimed.propose(aimed.seal()) is None


def test_nothing_is_sealed_for_a_dead_target_nor_for_one_that_has_not_read_the_store(cluster: Cluster) -> None:
    assert cluster.ask(B) is None
    refused = cluster.propose(cluster.seal())
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert cluster.prove() is None
    cluster.fence(B)
    assert isinstance(cluster.propose(cluster.seal()), Refusal)
    cluster.register(B)
    assert isinstance(cluster.propose(cluster.seal()), Refusal), "that was another incarnation"
    assert cluster.prove() is None
    assert cluster.propose(cluster.seal()) is None


def test_what_holds_nothing_needs_no_proof_but_a_live_target() -> None:
    empty = Cluster(records=0)
    assert empty.ask(B) is None
    empty.fence(B)
    assert isinstance(empty.propose(empty.seal()), Refusal)
    empty.register(B)
    assert empty.propose(empty.seal()) is None
    assert empty.partition.leader == B


def test_a_dead_owner_is_never_sealed_for(aimed: Cluster) -> None:
    late = aimed.seal()
    aimed.fence(A)
    assert aimed.partition.leader == NO_LEADER
    for seal in (late, aimed.seal()):
        assert isinstance(aimed.propose(seal), Refusal)
    aimed.register(A)
    assert isinstance(aimed.propose(late), Refusal), "its incarnation is another"
    assert aimed.propose(aimed.seal()) is None


def test_a_sealed_move_goes_forward_only(left: Cluster) -> None:
    for refused in (left.ask(cancel=True), left.ask(A, B), left.ask(BrokerId(9))):
        assert isinstance(refused, Refusal)
    assert left.ask(B) is None, "there it goes already"
    assert left.ask(C) is None
    assert (left.partition.leader, left.partition.replicas) == (C, (C,))
    assert left.partition.assignment_epoch == left.partition.leader_epoch
    assert isinstance(left.finish(B), Refusal), "who was to take it over before"
    assert left.finish(C) is None


def test_a_target_that_dies_after_the_seal_is_replaced(left: Cluster) -> None:
    left.fence(B)
    assert left.partition.leader == NO_LEADER
    assert left.do(tend_moves(left.image, moves_max=10)) == 1
    assert left.partition.leader == C, "which holds the fewest, and is not dead"
    assert left.do(tend_moves(left.image, moves_max=10)) == 0
    assert left.finish(C) is None


def test_a_target_that_lives_and_cannot_go_on_is_replaced_at_its_own_word(left: Cluster) -> None:
    def fail(broker: BrokerId, **changes: Any) -> Any:
        about = {"leader_epoch": left.partition.leader_epoch, "broker_epoch": left.epoch(broker), **changes}
        return left.do(fail_target(left.image, **ABOUT, broker_id=broker, **about))

    before = left.image
    assert isinstance(fail(A), Refusal)
    assert isinstance(fail(B, leader_epoch=LeaderEpoch(0)), Refusal)
    assert isinstance(fail(B, broker_epoch=BrokerEpoch(0)), Refusal)
    assert left.image is before
    assert fail(B) is None
    assert left.partition.leader == C, "and not the source, where there is another"
    assert left.partition.is_sealed
    assert isinstance(fail(B), Refusal)
    assert left.finish(C) is None
    assert isinstance(fail(C), Refusal), "now it is its own"


def test_a_target_that_nobody_can_replace_stays_the_target(left: Cluster) -> None:
    left.fence(A)
    left.fence(C)
    about: dict[str, Any] = {"leader_epoch": left.partition.leader_epoch, "broker_epoch": left.epoch(B)}
    refused = left.do(fail_target(left.image, **ABOUT, broker_id=B, **about))
    assert isinstance(refused, Refusal)
    assert left.partition.leader == B


def test_a_target_that_loses_its_disk_after_the_seal_may_lead_all_the_same(left: Cluster) -> None:
    """Nothing was written there yet."""
    left.register(B, directory=2)
    assert (left.partition.leader, left.partition.kept_in) == (B, None)
    assert left.finish(B) is None
    left.register(B, directory=3)
    assert left.partition.leader == NO_LEADER, "now it matters"


def test_a_move_to_a_broker_that_is_removed_is_cancelled(aimed: Cluster) -> None:
    aimed.fence(B)
    assert aimed.do(remove_broker(aimed.image, broker_id=B)) is None
    assert aimed.do(tend_moves(aimed.image, moves_max=10)) == 1
    assert (aimed.partition.leader, aimed.partition.move) == (A, None)


def test_other_wishes_cancel_a_move_that_is_not_sealed(aimed: Cluster) -> None:
    late = aimed.seal()
    assert aimed.ask(A, C) is None
    assert (aimed.partition.move, aimed.partition.adding) == (None, (C,))
    assert isinstance(aimed.propose(late), Refusal)


def test_what_has_two_replicas_is_not_handed_over(cluster: Cluster) -> None:
    assert cluster.ask(A, B) is None
    assert cluster.ask(C) is None
    assert cluster.partition.move is None
    assert cluster.partition.is_reassigned
