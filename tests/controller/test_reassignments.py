"""A partition on its way to other brokers: what is added, when others go, and what can still be undone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerId, PartitionEpoch, PartitionIndex, TopicPartition
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller.decision import Refusal
from headrace.controller.isr import IsrMember, IsrProposal, alter_isr
from headrace.controller.leaders import Election, PartitionRef, elect_leaders
from headrace.controller.reassignments import Reassignment, finish_reassignments, reassign_partitions
from headrace.controller.removal import remove_broker
from headrace.metadata.codec import decode_event, encode_event
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import (
    BrokerFenced,
    DesiredReplicasChanged,
    IsrChanged,
    LeaderChanged,
    MetadataEvent,
    ReplicasChanged,
)
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode
from tests.controller.test_brokers import KEY, TOPIC, fence, register, state, unfence, with_topic
from tests.metadata.histories import BROKERS, Entry, histories
from tests.metadata.test_image_laws import check_epochs_rise, check_invariants


def cluster(*replicas: int) -> MetadataImage:
    """Brokers 1 to 5; t-0 on these, all in sync, led by the first."""
    image = EMPTY_IMAGE
    for broker in range(1, 6):
        image = register(image, broker)
    return with_topic(image, replicas)


def part(image: MetadataImage) -> PartitionImage:
    found = image.partition(KEY)
    assert found is not None
    return found


def view(image: MetadataImage) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(leader, replicas, ISR, adding, removing)"""
    one = part(image)
    return one.leader, one.replicas, one.isr, one.adding, one.removing


def applied(image: MetadataImage, events: Sequence[MetadataEvent]) -> MetadataImage:
    """As one entry; what holds of every image holds after it."""
    after = image.replay(events, index=image.index + 1)
    check_invariants(after)
    check_epochs_rise(image, after)
    assert after.replay(events) == after
    assert EMPTY_IMAGE.replay(after.snapshot(), index=after.index) == after
    return after


def wish(*replicas: int) -> Reassignment:
    return Reassignment(topic="t", partition=PartitionIndex(0), replicas=tuple(map(BrokerId, replicas)))


def check_that_who_goes_begins_an_epoch(before: MetadataImage, after: MetadataImage) -> None:
    """Nothing that its broker says before it has heard of that counts afterwards."""
    for topic in before.topics.values():
        for old in topic.partitions:
            new = after.partition(TopicPartition(topic.id, old.index))
            if new is not None and old.leader != NO_LEADER and not set(old.replicas) <= set(new.replicas):
                assert new.leader_epoch > old.leader_epoch


CANCEL = Reassignment(topic="t", partition=PartitionIndex(0), replicas=None)


def reassign(image: MetadataImage, one: Reassignment, *, factor_may_change: bool = True) -> MetadataImage:
    decision = reassign_partitions(image, [one], factor_may_change=factor_may_change)
    assert decision.result == (None,)
    after = applied(image, decision.events)
    check_that_who_goes_begins_an_epoch(image, after)
    return after


def refusal(image: MetadataImage, one: Reassignment, *, factor_may_change: bool = True) -> tuple[str, str]:
    decision = reassign_partitions(image, [one], factor_may_change=factor_may_change)
    assert not isinstance(decision.result, Refusal)
    assert decision.events == ()
    (found,) = decision.result
    assert found is not None
    return found.code.name, found.message


def propose(image: MetadataImage, *isr: int) -> MetadataImage:
    one = part(image)
    members = tuple(
        IsrMember(broker_id=BrokerId(each), broker_epoch=image.brokers[BrokerId(each)].epoch) for each in isr
    )
    proposal = IsrProposal(
        topic_id=TOPIC,
        partition=one.index,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        isr=members,
    )
    epoch = image.brokers[one.leader].epoch
    decision = alter_isr(image, broker_id=one.leader, broker_epoch=epoch, proposals=[proposal])
    assert decision.result == (ErrorCode.NONE,)
    after = applied(image, decision.events)
    check_that_who_goes_begins_an_epoch(image, after)
    return after


def test_replicas_are_added_first_and_the_others_go_once_those_are_in_sync() -> None:
    image = reassign(cluster(1, 2), wish(3, 2))
    assert view(image) == (1, (3, 2, 1), (2, 1), (3,), (1,))
    image = propose(image, 1, 2)
    assert view(image)[1] == (3, 2, 1), "what is added is not in sync yet"
    image = propose(image, 1, 2, 3)
    assert view(image) == (3, (3, 2), (3, 2), (), ())
    assert part(image).leader_epoch == 1


def test_a_leader_that_stays_goes_on_leading_in_its_epoch_unless_a_replica_goes() -> None:
    image = propose(reassign(cluster(1, 2), wish(1, 2, 3)), 1, 2, 3)
    assert view(image) == (1, (1, 2, 3), (1, 2, 3), (), ())
    assert part(image).leader_epoch == 0
    image = propose(reassign(cluster(1, 2), wish(3, 1)), 1, 3)
    assert view(image) == (1, (3, 1), (3, 1), (), ())
    assert part(image).leader_epoch == 1


def test_who_goes_while_nobody_leads_begins_no_epoch() -> None:
    """Nobody counts on anything then; and whose disk alone has what was acknowledged is not forgotten."""
    image = fence(propose(cluster(1, 2, 3), 1), 1)
    assert view(image)[:3] == (NO_LEADER, (1, 2, 3), (1,))
    before = part(image)
    image = reassign(image, wish(1, 2))
    assert view(image)[1] == (1, 2)
    assert (part(image).leader_epoch, part(image).kept_in) == (before.leader_epoch, before.kept_in)


def test_the_change_that_finishes_it_is_one_entry_with_the_isr() -> None:
    image = reassign(cluster(1, 2), wish(3, 4))
    one = part(image)
    after = propose(propose(image, 1, 2, 3), 1, 2, 3, 4)
    assert view(after) == (3, (3, 4), (3, 4), (), ())
    assert after.index == image.index + 2
    assert part(after).partition_epoch == one.partition_epoch + 3


def test_fewer_replicas_are_had_at_once_where_one_that_stays_is_in_sync() -> None:
    assert view(reassign(cluster(1, 2, 3), wish(2))) == (2, (2,), (2,), (), ())
    behind = propose(cluster(1, 2, 3), 1)
    image = reassign(behind, wish(2))
    assert view(image) == (1, (2, 1, 3), (1,), (), (1, 3)), "only what goes is in sync"
    assert view(propose(image, 1, 2)) == (2, (2,), (2,), (), ())


def test_another_order_is_another_preferred_leader_and_an_isr_in_that_order() -> None:
    image = reassign(cluster(1, 2, 3), wish(3, 1, 2))
    assert view(image) == (1, (3, 1, 2), (3, 1, 2), (), ())
    again = reassign_partitions(image, [wish(3, 1, 2)])
    assert (again.events, again.result) == ((), (None,))


def test_what_is_under_way_is_cancelled() -> None:
    image = reassign(reassign(cluster(1, 2), wish(3, 2)), CANCEL)
    assert view(image) == (1, (2, 1), (2, 1), (), ())
    assert refusal(image, CANCEL)[0] == "NO_REASSIGNMENT_IN_PROGRESS"


def test_cancelling_takes_the_lead_from_a_broker_that_was_added() -> None:
    image = propose(reassign(cluster(1, 2), wish(3, 4)), 1, 2, 3)
    elected = elect_leaders(image, Election.PREFERRED, [PartitionRef("t", PartitionIndex(0))])
    image = applied(image, elected.events)
    assert view(image)[0] == 3
    assert view(reassign(image, CANCEL)) == (1, (1, 2), (1, 2), (), ())
    only_new = propose(image, 3)
    assert refusal(only_new, CANCEL)[0] == "INVALID_REPLICA_ASSIGNMENT"
    assert "only brokers that it adds are in sync" in refusal(only_new, CANCEL)[1]


def test_another_wish_takes_the_place_of_the_one_under_way_and_drops_what_only_that_added() -> None:
    image = reassign(reassign(cluster(1, 2), wish(3, 4)), wish(4, 5))
    assert view(image) == (1, (4, 5, 1, 2), (1, 2), (4, 5), (1, 2))
    assert view(reassign(image, CANCEL))[1] == (1, 2)
    back = reassign(image, wish(1, 2))
    assert view(back) == (1, (1, 2), (1, 2), (), ())
    half = propose(reassign(cluster(1, 2), wish(3, 4)), 1, 2, 3)
    assert view(reassign(half, wish(3, 5))) == (1, (3, 5, 1, 2), (3, 1, 2), (3, 5), (1, 2)), "3 is still new"


@pytest.mark.parametrize(
    ("replicas", "words"),
    [((), "at least one replica"), ((1, 1), "repeated"), ((1, 9), "broker 9 is not registered")],
)
def test_what_cannot_be_is_refused(replicas: tuple[int, ...], words: str) -> None:
    code, message = refusal(cluster(1, 2), wish(*replicas))
    assert code == "INVALID_REPLICA_ASSIGNMENT"
    assert words in message


def test_a_partition_that_is_not_there_and_another_factor_where_that_is_forbidden_are_refused() -> None:
    image = cluster(1, 2)
    missing = Reassignment(topic="t", partition=PartitionIndex(1), replicas=(BrokerId(1),))
    assert refusal(image, missing)[0] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert refusal(image, wish(1, 2, 3), factor_may_change=False)[0] == "INVALID_REPLICATION_FACTOR"
    under_way = reassign(image, wish(3, 4), factor_may_change=False)
    assert part(under_way).replication_factor == 2
    reassign(under_way, wish(4, 5), factor_may_change=False)


def test_wishes_are_decided_one_after_another_and_not_too_many_at_once() -> None:
    image = cluster(1, 2)
    missing = Reassignment(topic="none", partition=PartitionIndex(0), replicas=None)
    decision = reassign_partitions(image, [wish(3, 2), missing, CANCEL, CANCEL])
    assert not isinstance(decision.result, Refusal)
    codes = [one and one.code for one in decision.result]
    assert codes == [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        None,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ]
    assert view(applied(image, decision.events)) == (1, (2, 1), (2, 1), (), ())
    many = reassign_partitions(image, [CANCEL] * (PARTITIONS_PER_REQUEST_MAX + 1))
    assert isinstance(many.result, Refusal)
    assert many.result.code is ErrorCode.POLICY_VIOLATION


def test_a_broker_that_goes_for_good_goes_from_what_is_under_way() -> None:
    def removed(image: MetadataImage, broker: int) -> MetadataImage:
        image = fence(image, broker)
        decision = remove_broker(image, broker_id=BrokerId(broker))
        assert decision.result is None
        return applied(image, decision.events)

    two_come = reassign(cluster(1, 2), wish(3, 4))
    assert view(removed(two_come, 4)) == (1, (3, 1, 2), (1, 2), (3,), (1, 2))
    assert view(removed(propose(two_come, 1, 2, 3), 4)) == (3, (3,), (3,), (), ()), "it was the last to be waited for"
    assert view(removed(two_come, 1)) == (2, (3, 4, 2), (2,), (3, 4), (2,))
    assert view(removed(reassign(cluster(1, 2), wish(3)), 3)) == (1, (1, 2), (1, 2), (), ()), "nowhere to go"


def test_nobody_goes_while_nobody_who_stays_can_lead() -> None:
    image = fence(propose(reassign(cluster(1, 2), wish(2, 3)), 1), 1)
    assert (state(image)[0], state(image)[2]) == (NO_LEADER, (1,))
    assert view(image)[3:] == ((3,), (1,))
    assert finish_reassignments(image, partitions_max=9).events == ()
    assert view(reassign(image, wish(2)))[1] == (2, 1), "1 alone has what was acknowledged"


def test_who_leads_instead_lives_also_while_a_fencing_is_being_carried_out() -> None:
    """A broker with very many partitions is fenced first, and leaves its ISRs in later entries."""

    def dead(image: MetadataImage, *brokers: int) -> MetadataImage:
        known = [image.brokers[BrokerId(broker)] for broker in brokers]
        return image.replay([BrokerFenced(broker_id=one.id, broker_epoch=one.epoch) for one in known])

    image = dead(cluster(1, 2, 3), 2)
    (event, *_) = reassign_partitions(image, [wish(2, 3)]).events
    assert isinstance(event, LeaderChanged)
    assert event.leader == 3
    stuck = reassign_partitions(image, [wish(2)])
    assert view(image.replay(stuck.events)) == (1, (2, 1, 3), (2, 1, 3), (), (1, 3)), (
        "until it is back, or they are in sync"
    )
    half = propose(reassign(cluster(1, 2), wish(3, 4)), 1, 2, 3)
    led = half.replay(elect_leaders(half, Election.PREFERRED, [PartitionRef("t", PartitionIndex(0))]).events)
    assert refusal(dead(led, 1, 2), CANCEL)[0] == "INVALID_REPLICA_ASSIGNMENT"
    for gone, leader in ((dead(cluster(1, 2), 1), 2), (dead(cluster(1, 2), 1, 2), NO_LEADER)):
        assert view(gone.replay(remove_broker(gone, broker_id=BrokerId(1)).events)) == (leader, (2,), (2,), (), ())


def test_what_no_proposal_finished_is_finished_by_the_controller() -> None:
    """Here after an unclean election: whoever was to go is dead, and will propose nothing."""
    image = fence(fence(reassign(cluster(1, 2), wish(3)), 1), 2)
    elected = elect_leaders(image, Election.UNCLEAN, [PartitionRef("t", PartitionIndex(0))])
    image = applied(image, elected.events)
    assert view(image) == (3, (3, 1, 2), (3,), (3,), (1, 2))
    assert finish_reassignments(image, partitions_max=0).events == ()
    decision = finish_reassignments(image, partitions_max=9)
    assert decision.result == 1
    done = applied(image, decision.events)
    check_that_who_goes_begins_an_epoch(image, done)
    assert view(done) == (3, (3,), (3,), (), ())
    assert part(done).is_unclean, "what it lacks is given up in this epoch too"


def test_an_unclean_election_prefers_what_was_there_to_what_is_only_coming() -> None:
    image = reassign(propose(cluster(1, 2), 1), wish(3, 2))
    elected = elect_leaders(fence(image, 1), Election.UNCLEAN, [PartitionRef("t", PartitionIndex(0))])
    assert view(applied(fence(image, 1), elected.events))[0] == 2


def test_brokers_open_what_comes_drop_what_goes_and_heed_the_new_replication_factor() -> None:
    image = cluster(1, 2)
    delta = ImageDelta.of(image, reassign_partitions(image, [wish(3, 4, 5)]).events)
    assert [one.key for one in delta.local_changes(BrokerId(3)).followers] == [KEY]
    assert delta.local_changes(BrokerId(1)).deleted == ()
    assert delta.local_changes(BrokerId(1)).reconfigured == (), "it has not more replicas before they are in sync"
    image = propose(delta.after, 1, 2, 3, 4)
    one = part(image)
    members = tuple(
        IsrMember(broker_id=BrokerId(each), broker_epoch=image.brokers[BrokerId(each)].epoch) for each in range(1, 6)
    )
    proposal = IsrProposal(
        topic_id=TOPIC,
        partition=one.index,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        isr=members,
    )
    epoch = image.brokers[BrokerId(1)].epoch
    done = alter_isr(image, broker_id=BrokerId(1), broker_epoch=epoch, proposals=[proposal])
    assert [type(event) for event in done.events] == [LeaderChanged, ReplicasChanged]
    delta = ImageDelta.of(image, done.events)
    assert delta.local_changes(BrokerId(1)).deleted == (KEY,)
    assert [led.key for led in delta.local_changes(BrokerId(3)).leaders] == [KEY]
    assert [topic.name for topic in delta.local_changes(BrokerId(3)).reconfigured] == ["t"]


def test_an_event_of_the_first_version_says_nothing_of_reassignments() -> None:
    image = propose(cluster(1, 2, 3), 1, 2)
    one = part(image)
    event = ReplicasChanged(
        topic_id=TOPIC,
        partition=one.index,
        partition_epoch=PartitionEpoch(one.partition_epoch + 1),
        replicas=one.replicas[:2],
    )
    value = encode_event(event)
    for field in ("isr", "adding", "removing"):
        del value[field]
    assert decode_event({**value, "version": 0}) == event
    assert view(applied(image, [event])) == (1, (1, 2), (1, 2), (), ())


def test_only_what_differs_is_said() -> None:
    image = cluster(1, 2, 3)
    (event,) = reassign_partitions(image, [wish(1, 2, 4)]).events
    assert isinstance(event, ReplicasChanged)
    shrunk = reassign_partitions(image, [wish(1, 2)]).events
    assert [type(one) for one in shrunk] == [LeaderChanged, ReplicasChanged, DesiredReplicasChanged]
    assert not any(isinstance(one, IsrChanged) for one in shrunk)


targets = st.none() | st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True)


@given(histories(), st.lists(targets, min_size=1, max_size=3), st.data())
def test_whatever_is_under_way_it_can_be_finished_and_nothing_acknowledged_goes_with_it(
    entries: list[Entry], wishes: list[list[BrokerId] | None], data: st.DataObject
) -> None:
    """After any wishes, one after another: once a live leader has all replicas in sync, the last of them holds."""
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        image = image.replay(entry, index=index)
    for topic, _ in list(image.all_partitions()):
        at = PartitionIndex(data.draw(st.integers(0, len(topic.partitions) - 1)))
        name, target = topic.name, None
        for replicas in wishes:
            before = image.topics[topic.id].partitions[at]
            asked = None if replicas is None else tuple(replicas)
            decision = reassign_partitions(image, [Reassignment(topic=name, partition=at, replicas=asked)])
            assert not isinstance(decision.result, Refusal)
            image = applied(image, decision.events)
            after = image.topics[topic.id].partitions[at]
            went = set(before.replicas) - set(after.replicas)
            assert not went or before.leader == NO_LEADER or after.leader_epoch > before.leader_epoch
            if decision.result[0] is not None:
                assert after == before
                continue
            target = asked or after.replicas[: after.replication_factor]
            assert after.replicas[: after.replication_factor] == target
            assert set(after.isr) <= set(before.isr), "only a leader says who is in sync"
            assert after.isr, "somebody has what was acknowledged"
            assert (after.leader == NO_LEADER) == (before.leader == NO_LEADER)
        one = image.topics[topic.id].partitions[at]
        if target is None or one.leader == NO_LEADER or any(image.brokers[each].fenced for each in one.replicas):
            continue
        members = tuple(IsrMember(broker_id=each, broker_epoch=image.brokers[each].epoch) for each in one.replicas)
        proposal = IsrProposal(
            topic_id=topic.id,
            partition=at,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            isr=members,
        )
        epoch = image.brokers[one.leader].epoch
        image = applied(image, alter_isr(image, broker_id=one.leader, broker_epoch=epoch, proposals=[proposal]).events)
        one = image.topics[topic.id].partitions[at]
        assert (one.replicas, one.adding, one.removing) == (target, (), ())
        assert one.isr == target
        assert one.leader in target


def test_a_fenced_broker_that_is_added_is_waited_for() -> None:
    image = fence(cluster(1, 2), 3)
    image = reassign(image, wish(3))
    assert view(image) == (1, (3, 1, 2), (1, 2), (3,), (1, 2))
    assert view(propose(unfence(image, 3), 1, 2, 3)) == (3, (3,), (3,), (), ())
