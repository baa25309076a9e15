"""Permitted changes of an ISR: each refusal of AlterPartition, and laws over histories."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
)
from headrace.base.limits import ISR_PROPOSALS_PER_ASK_MAX
from headrace.controller.decision import Refusal
from headrace.controller.isr import IsrMember, IsrProposal, alter_isr, leave_isr
from headrace.metadata.events import IsrChanged
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.wire.errors import ErrorCode
from tests.controller.test_brokers import KEY, TOPIC, fence, register, with_topic
from tests.metadata.histories import BROKERS, Entry, histories

LEADER = BrokerId(2)


def three_replicas() -> MetadataImage:
    """t-0 on brokers 2, 3 and 1, led by 2, all in sync; epochs are (0, 0)."""
    return with_topic(register(register(register(EMPTY_IMAGE, 1), 2), 3), (2, 3, 1))


def proposal(image: MetadataImage, *isr: int, **other: Any) -> IsrProposal:
    partition = image.partition(KEY)
    assert partition is not None
    members = (IsrMember(broker_id=BrokerId(one), broker_epoch=image.brokers[BrokerId(one)].epoch) for one in isr)
    made = IsrProposal(
        topic_id=TOPIC,
        partition=PartitionIndex(0),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple(members),
    )
    return replace(made, **other)


def ask(image: MetadataImage, *proposals: IsrProposal, broker: BrokerId = LEADER) -> tuple[MetadataImage, list[str]]:
    """The image after it, and the codes."""
    decision = alter_isr(image, broker_id=broker, broker_epoch=image.brokers[broker].epoch, proposals=proposals)
    assert not isinstance(decision.result, Refusal)
    return image.replay(decision.events, index=image.index + 1), [code.name for code in decision.result]


def state(image: MetadataImage) -> tuple[int, int, tuple[int, ...]]:
    """(leader epoch, partition epoch, ISR)"""
    partition = image.partition(KEY)
    assert partition is not None
    return partition.leader_epoch, partition.partition_epoch, partition.isr


def test_a_leader_takes_members_out_and_in_again_in_replica_order() -> None:
    image, codes = ask(three := three_replicas(), proposal(three, 1, 2))
    assert (codes, state(image)) == (["NONE"], (0, 1, (2, 1)))
    image, codes = ask(image, proposal(image, 2))
    assert (codes, state(image)) == (["NONE"], (0, 2, (2,)))
    image, codes = ask(image, proposal(image, 1, 3, 2))
    assert (codes, state(image)) == (["NONE"], (0, 3, (2, 3, 1)))


def test_what_is_asked_twice_is_done_once() -> None:
    before = three_replicas()
    wish = proposal(before, 2, 3)
    image, codes = ask(before, wish)
    assert codes == ["NONE"]
    decision = alter_isr(image, broker_id=LEADER, broker_epoch=image.brokers[LEADER].epoch, proposals=[wish])
    assert (decision.events, decision.result) == ((), (ErrorCode.NONE,))
    later = image.replay(ask_events(image, proposal(image, 2)))
    later = later.replay(ask_events(later, proposal(later, 2, 3)))
    assert ask(later, wish)[1] == ["INVALID_UPDATE_VERSION"], "the ISR is the same, but not by this proposal"


def test_what_was_asked_before_the_isr_was_asked_for_as_it_is_cannot_be_done_after_it() -> None:
    """A leader that takes back what it asked for has to know: it counts on those no more."""
    before, _ = ask(three := three_replicas(), proposal(three, 2, 3))
    late = proposal(before, 2, 3, 1)
    image, codes = ask(before, proposal(before, 3, 2))
    assert (codes, state(image)) == (["NONE"], (0, 2, (2, 3)))
    assert ask(image, late)[1] == ["INVALID_UPDATE_VERSION"]


def ask_events(image: MetadataImage, wish: IsrProposal) -> tuple[Any, ...]:
    return alter_isr(image, broker_id=LEADER, broker_epoch=image.brokers[LEADER].epoch, proposals=[wish]).events


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"topic_id": TopicId(uuid.UUID(int=99, version=4))}, "UNKNOWN_TOPIC_ID"),
        ({"partition": PartitionIndex(1)}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": PartitionIndex(-1)}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"leader_epoch": LeaderEpoch(-1)}, "FENCED_LEADER_EPOCH"),
        ({"leader_epoch": LeaderEpoch(1)}, "NOT_CONTROLLER"),
        ({"partition_epoch": PartitionEpoch(1)}, "INVALID_UPDATE_VERSION"),
        ({"partition_epoch": PartitionEpoch(-1)}, "INVALID_UPDATE_VERSION"),
        ({"isr": ()}, "INVALID_REQUEST"),
    ],
)
def test_a_proposal_from_another_state_is_refused_and_changes_nothing(other: dict[str, Any], code: str) -> None:
    before = three_replicas()
    image, codes = ask(before, proposal(before, 2, 3, **other))
    assert codes == [code]
    assert state(image) == state(before)


@pytest.mark.parametrize("isr", [(3, 1), (2, 2), (2, 3, 2), (2, 4)], ids=str)
def test_what_can_be_no_isr_is_invalid(isr: tuple[int, ...]) -> None:
    """Without the leader; with duplicates; with a broker that is no replica."""
    before = register(three_replicas(), 4)
    image, codes = ask(before, proposal(before, *isr))
    assert (codes, state(image)) == (["INVALID_REQUEST"], state(before))


def test_who_does_not_lead_is_fenced() -> None:
    before = three_replicas()
    assert ask(before, proposal(before, 3, 1), broker=BrokerId(3))[1] == ["FENCED_LEADER_EPOCH"]


def test_an_incarnation_of_the_asker_that_is_over_is_refused_as_a_whole() -> None:
    image = three_replicas()
    for broker, epoch in ((LEADER, image.brokers[LEADER].epoch - 1), (BrokerId(9), 1)):
        decision = alter_isr(image, broker_id=broker, broker_epoch=BrokerEpoch(epoch), proposals=[proposal(image, 2)])
        assert isinstance(decision.result, Refusal)
        assert (decision.events, decision.result.code) == ((), ErrorCode.STALE_BROKER_EPOCH)


def test_a_fenced_member_or_one_of_another_incarnation_is_not_eligible() -> None:
    before = three_replicas()
    fenced = fence(before, 3)
    assert ask(fenced, proposal(fenced, 2, 3, 1))[1] == ["INELIGIBLE_REPLICA"]
    again = register(before, 3)
    old = proposal(before, 2, 3, 1).isr
    assert state(again)[2] == (2, 1)
    assert ask(again, proposal(again, 2, isr=old))[1] == ["INELIGIBLE_REPLICA"]
    assert ask(again, proposal(again, 2, 3, 1))[1] == ["NONE"]


def test_each_partition_is_decided_for_itself_and_one_after_another() -> None:
    before = three_replicas()
    unknown = proposal(before, 2, partition=PartitionIndex(7))
    first, second = proposal(before, 2, 3), proposal(before, 2, partition_epoch=PartitionEpoch(1))
    image, codes = ask(before, unknown, first, second, proposal(before, 2, 1))
    assert codes == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE", "NONE", "INVALID_UPDATE_VERSION"]
    assert state(image) == (0, 2, (2,))


def test_more_proposals_than_one_ask_may_have_are_refused() -> None:
    image = three_replicas()
    many = [proposal(image, 2)] * (ISR_PROPOSALS_PER_ASK_MAX + 1)
    decision = alter_isr(image, broker_id=LEADER, broker_epoch=image.brokers[LEADER].epoch, proposals=many)
    assert isinstance(decision.result, Refusal)
    assert decision.result.code is ErrorCode.POLICY_VIOLATION


@given(histories(), st.data())
def test_whatever_is_proposed_is_what_happens_or_nothing_does(entries: list[Entry], data: st.DataObject) -> None:
    """Any broker, for any partition, from any epochs near the true ones."""
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        image = image.replay(entry, index=index)
    near = st.sampled_from([0, 0, 0, 0, -1, 1])
    for topic, partition in list(image.all_partitions()):
        asker = data.draw(st.sampled_from([partition.leader, partition.leader, *BROKERS]))
        if asker not in image.brokers:
            continue
        members = data.draw(st.lists(st.sampled_from(sorted(image.brokers)), max_size=4))
        wish = IsrProposal(
            topic_id=topic.id,
            partition=partition.index,
            leader_epoch=LeaderEpoch(partition.leader_epoch + data.draw(near)),
            partition_epoch=PartitionEpoch(partition.partition_epoch + data.draw(near)),
            isr=tuple(
                IsrMember(broker_id=one, broker_epoch=BrokerEpoch(image.brokers[one].epoch + data.draw(near)))
                for one in members
            ),
        )
        decision = alter_isr(image, broker_id=asker, broker_epoch=image.brokers[asker].epoch, proposals=[wish])
        after = image.replay(decision.events)
        new = after.topics[topic.id].partitions[partition.index]
        assert not isinstance(decision.result, Refusal)
        check(image, partition, new, wish, asker, decision.result[0])
        image = after


def check(
    image: MetadataImage,
    old: PartitionImage,
    new: PartitionImage,
    wish: IsrProposal,
    asker: BrokerId,
    code: ErrorCode,
) -> None:
    members = [member.broker_id for member in wish.isr]
    if code is not ErrorCode.NONE:
        assert new == old
        return
    assert sorted(members) == sorted(new.isr)
    assert asker == old.leader == new.leader != NO_LEADER
    assert new.leader in new.isr
    assert new.leader_epoch == old.leader_epoch == wish.leader_epoch
    if new == old:
        assert set(old.isr) == set(members)
        return
    assert (wish.partition_epoch, new.partition_epoch) == (old.partition_epoch, old.partition_epoch + 1)
    assert new == replace(old, isr=new.isr, partition_epoch=new.partition_epoch)
    for member in wish.isr:
        assert not image.brokers[member.broker_id].fenced
        assert image.brokers[member.broker_id].epoch == member.broker_epoch


def test_the_event_names_the_epochs_that_hold_after_it() -> None:
    image = three_replicas()
    (event,) = ask_events(image, proposal(image, 2, 1))
    assert event == IsrChanged(
        topic_id=TOPIC,
        partition=PartitionIndex(0),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(1),
        isr=(BrokerId(2), BrokerId(1)),
    )


def left(image: MetadataImage, broker: int, *, epoch: int | None = None) -> MetadataImage:
    known = image.brokers[BrokerId(broker)].epoch if epoch is None else BrokerEpoch(epoch)
    decision = leave_isr(image, broker_id=BrokerId(broker), broker_epoch=known, partitions=[KEY, KEY])
    assert (decision.result is None) == (epoch is None)
    return image.replay(decision.events, index=image.index + 1)


def test_whose_disk_failed_leaves_the_isr_and_leads_no_more() -> None:
    image = left(three_replicas(), 1)
    assert state(image) == (0, 1, (2, 3)), "a follower goes under the same leader epoch"
    image = left(image, 2)
    partition = image.partition(KEY)
    assert partition is not None
    assert (partition.leader, *state(image)) == (3, 1, 2, (3,))
    for who in (1, 2, 3):
        assert left(image, who) == replace(image, index=image.index + 1), "it is out of it, or the last of it"


def test_another_incarnation_of_whose_disk_failed_stays() -> None:
    image = three_replicas()
    assert left(image, 2, epoch=99) == replace(image, index=image.index + 1)
