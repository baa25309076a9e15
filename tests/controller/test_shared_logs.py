"""A cluster that shares logs: every partition has one live leader, whoever comes and goes, and nothing is copied."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerId, ClusterId, DirectoryId, PartitionIndex, TopicId, TopicPartition
from headrace.controller.asks.asking import Setting
from headrace.controller.asks.carried import decode_ask, encode_ask
from headrace.controller.asks.moves import MovePartitions
from headrace.controller.asks.replicas import RenewCopies
from headrace.controller.brokers import fence_broker, lose_disk, register_broker, settle_broker, unfence_broker
from headrace.controller.decision import Decision, Refusal
from headrace.controller.elections import changed_at_most, only_copies, unsettled
from headrace.controller.isr import leave_isr
from headrace.controller.lacking import lacks_replicas
from headrace.controller.leaders import Election, PartitionRef, balance_leaders, elect_leaders, elect_uncleanly
from headrace.controller.moving import MoveWish
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.controller.recovery import RecoveryWish, recover_partitions
from headrace.controller.removal import holds, release_copies, remove_broker
from headrace.controller.renewals import CopyRenewal
from headrace.controller.topic_changes import NewPartitions, create_partitions
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.codec import image_as_json
from headrace.metadata.events import BrokerFenced, BrokerUnfenced, LeaderChanged, ReplicasChanged
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Engine, PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode
from tests.metadata.histories import BROKERS, CLUSTER, Command, Entry, histories
from tests.metadata.test_image_laws import check_epochs_rise, check_invariants

TOPIC = TopicId(uuid.UUID(int=7, version=4))
SETTING = Setting({}, BrokerId(1), has_store=True)
MANY = 1_000


def leave(broker: BrokerId) -> Command:
    """The broker cannot serve what it leads."""

    def decide(image: MetadataImage) -> Decision[Any]:
        led = [TopicPartition(topic.id, one.index) for topic, one in image.all_partitions() if one.leader == broker]
        epoch = image.brokers[broker].epoch if broker in image.brokers else -1
        return leave_isr(image, broker_id=broker, broker_epoch=epoch, partitions=led)  # type: ignore[arg-type]

    return decide


def balance(elections_max: int) -> Command:
    return lambda image: balance_leaders(image, elections_max=elections_max)


def go(broker: BrokerId) -> Command:
    def decide(image: MetadataImage) -> Decision[Any]:
        return fence_broker(image, **told(image, broker)) if broker in image.brokers else Decision((), None)

    return decide


def come(broker: BrokerId, restarted: bool) -> Command:
    """The broker lives again, as the same process or as another one."""

    def decide(image: MetadataImage) -> Decision[Any]:
        if restarted or broker not in image.brokers:
            return registration(image, broker)
        return unfence_broker(image, **told(image, broker))

    return decide


some = st.sampled_from(BROKERS)
goings = st.builds(go, some)
comings = st.builds(come, some, st.sampled_from([False, False, True]))
others = st.builds(balance, st.integers(1, 3)) | st.builds(leave, some)
shared = histories(Engine.REDIS, st.one_of(goings, goings, comings, comings, others))


def replayed(entries: Iterable[Entry]) -> MetadataImage:
    image = EMPTY_IMAGE
    for entry in entries:
        image = image.replay(entry, index=image.index + 1)
    return image


def after(image: MetadataImage, decision: Decision[Any]) -> MetadataImage:
    return image.replay(decision.events, index=image.index + 1)


def check(image: MetadataImage) -> None:
    """Every partition is as it must be, while no broker comes or goes in slices."""
    live = {broker.id for broker in image.live_brokers()}
    for topic, one in image.all_partitions():
        assert one.replicas == one.isr
        assert len(one.replicas) == 1
        assert one.leader == (one.replicas[0] if live else NO_LEADER), "it has a leader where any broker lives"
        assert one.leader == NO_LEADER or one.leader in live
        assert (one.kept_in, one.is_unclean, one.move, one.is_reassigned) == (None, False, None, False)
        assert topic.desired_replicas <= 1
        assert not lacks_replicas(topic, one, live)
        assert one.recovered_epoch == one.assignment_epoch == 0


# laws


@given(shared)
def test_every_partition_has_one_live_leader_and_epochs_only_rise(entries: list[Entry]) -> None:
    image = EMPTY_IMAGE
    for entry in entries:
        before, image = image, image.replay(entry, index=image.index + 1)
        assert image.shares_logs
        check(image)
        check_invariants(image)
        check_epochs_rise(before, image)


@given(shared)
def test_every_road_to_the_image_leads_to_the_same_one(entries: list[Entry]) -> None:
    image = replayed(entries)
    assert image.replay(chain.from_iterable(entries)) == image, "once more changes nothing"
    assert EMPTY_IMAGE.replay(image.snapshot(), index=image.index) == image
    assert image_as_json(image)["engine"] == "redis"


@given(shared, st.sampled_from(BROKERS), st.booleans())
def test_a_process_start_begins_an_epoch_of_all_that_the_broker_led(
    entries: list[Entry], broker: BrokerId, unfenced: bool
) -> None:
    image = replayed(entries)
    back = after(image, registration(image, broker, directory=9, unfenced=unfenced))
    check(back)
    for (_, old), (_, new) in zip(image.all_partitions(), back.all_partitions(), strict=True):
        if old.leader == broker:
            assert new.leader_epoch == old.leader_epoch + 1
            assert new.leader == broker or not unfenced, "it goes on with what it led"
        elif old.leader != NO_LEADER:
            assert new == old


@given(shared, st.sampled_from(BROKERS))
def test_new_leaders_are_those_that_lead_the_fewest(entries: list[Entry], broker: BrokerId) -> None:
    """Against a slow twin."""
    image = replayed(entries)
    if broker not in image.brokers:
        return
    led = {one.id: image.leaderships.get(one.id, 0) for one in image.live_brokers() if one.id != broker}
    fenced = after(image, fence_broker(image, **told(image, broker)))
    check(fenced)
    for (_, old), (_, new) in zip(image.all_partitions(), fenced.all_partitions(), strict=True):
        if old.leader == broker:
            leader = min(led, key=lambda one: (led[one], one), default=NO_LEADER)
            assert (new.leader, new.leader_epoch) == (leader, old.leader_epoch + 1)
            if leader != NO_LEADER:
                led[leader] += 1
        else:
            assert new == old


@given(shared, st.integers(1, 3), st.sets(st.sampled_from(BROKERS)))
def test_leaderships_are_evened_out_by_no_more_changes_than_that_takes(
    entries: list[Entry], elections_max: int, recent: set[BrokerId]
) -> None:
    image = replayed(entries)
    live = [broker.id for broker in image.live_brokers()]
    led = sorted((image.leaderships.get(broker, 0) for broker in live), reverse=True)
    share, odd = divmod(sum(led), max(1, len(led)))
    needed = sum(max(0, count - share - (at < odd)) for at, count in enumerate(led))
    gently = after(image, balance_leaders(image, elections_max=elections_max, recent=recent))
    assert all(gently.leaderships.get(one, 0) <= image.leaderships.get(one, 0) for one in recent), "they get nothing"
    rounds = 0
    while (decision := balance_leaders(image, elections_max=elections_max)).result:
        assert decision.result <= elections_max
        image = after(image, decision)
        check(image)
        rounds += decision.result
        assert rounds <= needed, "it comes to an end"
    assert rounds == needed
    even = [image.leaderships.get(broker, 0) for broker in live]
    assert max(even, default=0) - min(even, default=0) <= 1


@given(shared, st.integers(1, 4), st.sampled_from(BROKERS))
def test_a_broker_that_comes_or_goes_in_slices_leaves_the_same_order(
    entries: list[Entry], size: int, broker: BrokerId
) -> None:
    image = replayed(entries)
    if broker not in image.brokers:
        return
    at_once = after(image, fence_broker(image, **told(image, broker)))
    at_most = changed_at_most(image, broker)
    slowly = after(image, fence_broker(image, **told(image, broker), among=found(image, broker, fenced=True)[:size]))
    slowly = settled(slowly, broker, size)
    check(slowly)
    assert slowly.leaderships == at_once.leaderships

    assert only_copies(slowly, broker) == [], "no directory has what others lack"
    assert lose_disk(slowly, **told(slowly, broker), among=everywhere(slowly)).events == ()
    back = after(slowly, registration(slowly, broker, directory=9))
    assert back.topics == slowly.topics, "nothing is left to a registration's own entry"

    first = found(back, broker, fenced=False)[:size]
    live = after(back, unfence_broker(back, **told(back, broker)))
    gently = settled(after(back, unfence_broker(back, **told(back, broker), among=first)), broker, size)
    check(live)
    check(gently)
    assert gently.leaderships == live.leaderships
    assert changed_at_most(gently, broker) == at_most, "it is as large to the last slice"


@given(shared, st.integers(1, 4), st.sampled_from(BROKERS))
def test_a_broker_is_removed_whatever_it_led(entries: list[Entry], size: int, broker: BrokerId) -> None:
    image = replayed(entries)
    if broker not in image.brokers:
        return
    fenced = after(image, fence_broker(image, **told(image, broker)))
    decision = remove_broker(fenced, broker_id=broker)
    if len(fenced.brokers) == 1 and fenced.topics:
        assert isinstance(decision.result, Refusal)
        assert "is the last one" in decision.result.message
        return
    assert decision.result is None
    gone = after(fenced, decision)
    check(gone)
    check_invariants(gone)
    check_epochs_rise(fenced, gone)
    held = [key for key in everywhere(fenced) if holds(fenced, broker)(part(fenced, key))]
    slowly = in_slices(fenced, partial(release_copies, **told(fenced, broker)), held, size)
    assert len(remove_broker(slowly, broker_id=broker).events) == 1, "nothing is left to the last entry"


def told(image: MetadataImage, broker: BrokerId) -> dict[str, Any]:
    return {"broker_id": broker, "broker_epoch": image.brokers[broker].epoch}


def part(image: MetadataImage, key: TopicPartition) -> PartitionImage:
    known = image.partition(key)
    assert known is not None
    return known


def everywhere(image: MetadataImage) -> list[TopicPartition]:
    return [TopicPartition(topic.id, one.index) for topic, one in image.all_partitions()]


def found(image: MetadataImage, broker: BrokerId, *, fenced: bool | None = None) -> list[TopicPartition]:
    is_unsettled = unsettled(image, broker, fenced=fenced)
    return [key for key in everywhere(image) if is_unsettled(part(image, key))]


def settled(image: MetadataImage, broker: BrokerId, size: int) -> MetadataImage:
    image = in_slices(image, partial(settle_broker, **told(image, broker)), found(image, broker), size)
    assert found(image, broker) == []
    return image


def in_slices(
    image: MetadataImage, decide: Callable[..., Decision[Any]], keys: list[TopicPartition], size: int
) -> MetadataImage:
    """Each twice: what was done is not done again."""
    for at in [*range(0, len(keys), size), *range(0, len(keys), size)]:
        image = after(image, decide(image, among=keys[at : at + size]))
    return image


# stories


def registration(
    image: MetadataImage, broker: int, *, directory: int = 1, unfenced: bool = False, engine: Engine = Engine.REDIS
) -> Decision[Any]:
    return register_broker(
        image,
        cluster_id=CLUSTER,
        broker_id=BrokerId(broker),
        directory_id=DirectoryId(uuid.UUID(int=directory)),
        endpoints=(),
        engine=engine,
        unfenced=unfenced,
    )


def cluster(*brokers: int, fenced: Iterable[int] = ()) -> MetadataImage:
    image = EMPTY_IMAGE
    for broker in (*brokers, *fenced):
        image = after(image, registration(image, broker, unfenced=broker in brokers))
    return image


def new(partitions: int = -1, factor: int = -1, **fields: Any) -> NewTopic:
    return NewTopic(topic_id=TOPIC, name="t", partitions=partitions, replication_factor=factor, configs={}, **fields)


def with_topic(image: MetadataImage, partitions: int) -> MetadataImage:
    decision = create_topics(image, [new(partitions)], broker_configs={})
    assert decision.result[0].refusal is None
    return after(image, decision)


def topic_of(image: MetadataImage) -> TopicImage:
    return image.topics[TOPIC]


def leaders(image: MetadataImage) -> list[int]:
    return [one.leader for one in topic_of(image).partitions]


def epochs(image: MetadataImage) -> list[int]:
    return [one.leader_epoch for one in topic_of(image).partitions]


def fence(image: MetadataImage, broker: int) -> MetadataImage:
    return after(image, fence_broker(image, **told(image, BrokerId(broker))))


def unfence(image: MetadataImage, broker: int) -> MetadataImage:
    return after(image, unfence_broker(image, **told(image, BrokerId(broker))))


def test_the_first_broker_chooses_the_engine_and_others_run_the_same() -> None:
    image = cluster(1)
    assert image.engine is Engine.REDIS
    refusal = registration(image, 2, engine=Engine.LOCAL).result
    assert isinstance(refusal, Refusal)
    assert refusal.code is ErrorCode.INVALID_REGISTRATION
    assert refusal.message == (
        "Broker 2 runs with the engine local, but this cluster has redis: start it with --engine redis, or name "
        "addresses of another cluster."
    )
    local = after(EMPTY_IMAGE, registration(EMPTY_IMAGE, 1, engine=Engine.LOCAL))
    assert (local.engine, local.shares_logs) == (Engine.LOCAL, False)
    assert isinstance(registration(local, 1).result, Refusal), "not even a broker that it knows"


@pytest.mark.parametrize("factor", [-1, 1, 3, 100])
def test_any_replication_factor_is_taken_and_leaders_are_spread(factor: int) -> None:
    image = cluster(1, 2, 3)
    decision = create_topics(image, [new(5, factor, desired_replicas=3)], broker_configs={})
    assert decision.result[0].refusal is None
    image = after(image, decision)
    assert leaders(image) == [1, 2, 3, 1, 2]
    assert (topic_of(image).replication_factor, topic_of(image).desired_replicas) == (1, 1)
    grown = after(image, create_partitions(image, [NewPartitions(name="t", count=8)]))
    assert leaders(grown) == [1, 2, 3, 1, 2, 3, 1, 2]
    check(grown)


def test_what_is_refused_of_new_topics_is_what_a_local_cluster_refuses_and_assignments() -> None:
    image = cluster(1, 2)

    def code(*topics: NewTopic, **options: Any) -> ErrorCode | None:
        decision = create_topics(image, topics, broker_configs={}, **options)
        refusal = decision.result[0].refusal
        assert refusal is None or decision.events == ()
        return None if refusal is None else refusal.code

    assert code(new(1, 0)) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert code(new(0)) is ErrorCode.INVALID_PARTITIONS
    one = (BrokerId(1),)
    assert code(new(assignments=((0, one),))) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert code(new(assignments=((0, one),)), validate_only=True) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create_topics(image, [new(3)], broker_configs={}, validate_only=True).events == ()
    image = with_topic(image, 1)
    assert code(new(1)) is ErrorCode.TOPIC_ALREADY_EXISTS
    more = create_partitions(image, [NewPartitions(name="t", count=2, assignments=(one,))])
    assert more.events == ()
    refusal = more.result[0].refusal
    assert refusal is not None
    assert refusal.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "leave the assignment out" in refusal.message
    image = cluster(fenced=[1])
    assert code(new(1)) is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_dead_broker_s_partitions_go_to_those_that_lead_the_fewest_in_one_entry() -> None:
    image = with_topic(cluster(1, 2, 3), 6)
    decision = fence_broker(image, **told(image, BrokerId(2)))
    image = after(image, decision)
    assert leaders(image) == [1, 1, 3, 1, 3, 3]
    assert epochs(image) == [0, 1, 0, 0, 1, 0]
    kinds = Counter(type(event) for event in decision.events)
    assert kinds == {BrokerFenced: 1, LeaderChanged: 2, ReplicasChanged: 2}
    assert leaders(unfence(image, 2)) == leaders(image), "it gets its share later"


def test_the_broker_that_leads_the_fewest_gets_them_not_the_next_in_turn() -> None:
    image = with_topic(cluster(1, 2, 3), 6)
    wish = Reassignment(topic="t", partition=PartitionIndex(1), replicas=(BrokerId(1),))
    image = after(image, reassign_partitions(image, [wish]))
    assert leaders(image) == [1, 1, 3, 1, 2, 3]
    assert leaders(fence(image, 3)) == [1, 1, 2, 1, 2, 2]


def test_the_first_broker_that_lives_again_leads_all_and_its_directory_means_nothing() -> None:
    image = with_topic(cluster(1, 2), 4)
    image = fence(fence(image, 1), 2)
    assert (leaders(image), epochs(image)) == ([NO_LEADER] * 4, [2, 1, 2, 1])
    image = after(image, registration(image, 2, directory=9))
    assert leaders(image) == [NO_LEADER] * 4, "it does not serve yet"
    decision = unfence_broker(image, **told(image, BrokerId(2)))
    image = after(image, decision)
    assert leaders(image) == [2, 2, 2, 2]
    assert isinstance(decision.events[0], BrokerUnfenced)
    assert leaders(after(image, balance_leaders(image, elections_max=MANY))) == [2, 2, 2, 2]


def test_a_broker_alone_goes_on_after_a_restart_with_a_new_directory_under_a_new_epoch() -> None:
    image = with_topic(cluster(1), 2)
    image = after(image, registration(image, 1, directory=9, unfenced=True))
    assert (leaders(image), epochs(image)) == ([1, 1], [1, 1])


def test_a_broker_that_is_back_gets_its_share_a_few_at_a_time_and_of_every_topic() -> None:
    image = cluster(1, 2)
    for at, name in enumerate(("a", "b")):
        topic = NewTopic(topic_id=TopicId(uuid.UUID(int=at)), name=name, partitions=6, configs={})
        image = after(image, create_topics(image, [topic], broker_configs={}))
    image = after(image, registration(image, 3, unfenced=True))
    assert balance_leaders(image, elections_max=MANY, recent={BrokerId(3)}).result == 0
    few = balance_leaders(image, elections_max=3)
    assert few.result == 3
    image = after(after(image, few), balance_leaders(after(image, few), elections_max=3))
    assert dict(image.leaderships) == {1: 4, 2: 4, 3: 4}
    assert Counter(topic.name for topic, one in image.all_partitions() if one.leader == 3) == {"a": 2, "b": 2}


def test_a_broker_that_cannot_serve_gives_its_partition_to_another_or_opens_it_again_in_a_new_epoch() -> None:
    image = with_topic(cluster(1, 2), 2)
    key = TopicPartition(TOPIC, PartitionIndex(0))
    image = after(image, leave_isr(image, **told(image, BrokerId(1)), partitions=[key, key]))
    assert (leaders(image), epochs(image)) == ([2, 2], [1, 0])
    assert leave_isr(image, **told(image, BrokerId(1)), partitions=[key]).events == ()
    image = fence(image, 1)
    image = after(image, leave_isr(image, **told(image, BrokerId(2)), partitions=[key, key]))
    assert (leaders(image), epochs(image)) == ([2, 2], [2, 0])
    image = fence(image, 2)
    assert leave_isr(image, **told(image, BrokerId(2)), partitions=[key]).events == ()
    image = unfence(image, 2)
    renewal = CopyRenewal(topic_id=TOPIC, partition=PartitionIndex(0), leader_epoch=part(image, key).leader_epoch)
    decision = RenewCopies(**told(image, BrokerId(2)), copies=(renewal,)).decide(image, SETTING)
    assert (decision.events, decision.result) == ((), (ErrorCode.LEADER_NOT_AVAILABLE,)), "there are no copies"


def test_an_election_has_nothing_to_do_but_where_nobody_leads() -> None:
    image = with_topic(cluster(1, 2), 3)
    ref = PartitionRef("t", PartitionIndex(0))

    def codes(election: Election, refs: list[PartitionRef] | None = None) -> list[str]:
        outcomes = elect_leaders(image, election, refs).result
        return [one.refusal.code.name if one.refusal is not None else "NONE" for one in outcomes]

    assert codes(Election.PREFERRED, [ref]) == codes(Election.UNCLEAN, [ref]) == ["ELECTION_NOT_NEEDED"]
    assert codes(Election.PREFERRED) == codes(Election.UNCLEAN) == []
    image = fence(fence(image, 1), 2)
    assert codes(Election.UNCLEAN, [ref]) == ["ELIGIBLE_LEADERS_NOT_AVAILABLE"]
    for broker in image.brokers.values():  # their partitions are to follow
        image = image.replay([BrokerUnfenced(broker_id=broker.id, broker_epoch=broker.epoch)])
    assert codes(Election.UNCLEAN) == ["NONE"] * 3
    assert elect_uncleanly(image, broker_configs={}, node=BrokerId(1), elections_max=9) == Decision((), 0)
    image = after(image, elect_leaders(image, Election.UNCLEAN, None))
    assert leaders(image) == [1, 2, 1]
    check(image)


@pytest.mark.parametrize(
    ("replicas", "code", "words"),
    [
        ((1, 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name one broker, which leads it then"),
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name one broker"),
        ((9,), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is not registered"),
        ((3,), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is not alive"),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "is not being reassigned"),
    ],
)
def test_a_reassignment_that_cannot_be_is_refused(
    replicas: tuple[int, ...] | None, code: ErrorCode, words: str
) -> None:
    image = with_topic(cluster(1, 2, fenced=[3]), 1)
    brokers = None if replicas is None else tuple(map(BrokerId, replicas))
    decision = reassign_partitions(image, [Reassignment(topic="t", partition=PartitionIndex(0), replicas=brokers)])
    assert decision.events == ()
    assert isinstance(decision.result, tuple)
    (refusal,) = decision.result
    assert refusal is not None
    assert refusal.code is code
    assert words in refusal.message


def test_a_reassignment_to_one_broker_makes_it_the_leader_at_once() -> None:
    image = with_topic(cluster(1, 2, 3), 2)
    wishes = [
        Reassignment(topic="t", partition=PartitionIndex(at), replicas=(BrokerId(broker),))
        for at, broker in ((0, 1), (1, 3), (0, 2), (0, 3))
    ]
    decision = reassign_partitions(image, wishes, factor_may_change=False)
    assert decision.result == (None,) * 4
    image = after(image, decision)
    assert (leaders(image), epochs(image)) == ([3, 3], [2, 1]), "one after another; what is there stays"
    check(image)


def test_a_move_changes_the_leader_and_hands_nothing_over() -> None:
    image = with_topic(cluster(1, 2, 3), 6)
    wish = MoveWish(broker=BrokerId(2))
    tried = MovePartitions(wish=wish, validate_only=True).decide(image, SETTING)
    decision = MovePartitions(wish=wish).decide(image, SETTING)
    assert tried == Decision((), decision.result)
    assert not isinstance(decision.result, Refusal)
    assert [(one.partition, one.target, one.is_handed_over) for one in decision.result] == [
        (1, 1, False),
        (4, 3, False),
    ]
    image = after(image, decision)
    assert leaders(image) == [1, 1, 3, 1, 3, 3]
    image = after(image, MovePartitions(wish=MoveWish(topic="t", to=BrokerId(2))).decide(image, SETTING))
    assert leaders(image) == [2] * 6
    check(image)


def test_a_recovery_is_refused_for_nothing_can_be_lost() -> None:
    image = fence(with_topic(cluster(1), 1), 1)
    decision = recover_partitions(image, RecoveryWish(topic="t"))
    assert decision.events == ()
    assert isinstance(decision.result, Refusal)
    assert "any broker that lives leads its partitions" in decision.result.message


def test_the_partitions_of_a_removed_broker_are_kept_by_another_until_one_lives() -> None:
    image = with_topic(cluster(1, 2), 2)
    image = fence(fence(image, 1), 2)
    decision = remove_broker(image, broker_id=BrokerId(2))
    assert decision.result is None
    image = after(image, decision)
    check(image)
    assert [one.replicas for one in topic_of(image).partitions] == [(1,), (1,)]
    assert isinstance(remove_broker(image, broker_id=BrokerId(1)).result, Refusal)
    image = after(image, registration(image, 3, unfenced=True))
    assert leaders(image) == [3, 3]
    assert remove_broker(image, broker_id=BrokerId(1)).result is None


def test_a_registration_of_an_older_version_is_of_a_local_broker() -> None:
    data = (
        b'{"cluster":"c","ask":"RegisterBroker","cluster_id":"c","broker_id":1,"endpoints":[],"rack":null,'
        b'"directory_id":"00000000-0000-0000-0000-000000000001","incarnation":"00000000-0000-0000-0000-000000000002"}'
    )
    cluster_id, ask = decode_ask(data)
    assert (cluster_id, ask.engine) == (ClusterId("c"), Engine.LOCAL)  # type: ignore[attr-defined]
    assert decode_ask(encode_ask(cluster_id, ask)) == (cluster_id, ask)
