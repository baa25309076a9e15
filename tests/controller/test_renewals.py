"""When a broker may drop a damaged copy: each refusal, and laws over histories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex
from headrace.base.limits import ISR_PROPOSALS_PER_ASK_MAX
from headrace.controller.decision import Refusal
from headrace.controller.renewals import CopyRenewal, renew_copies
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from tests.controller.test_brokers import KEY, TOPIC, fence, register
from tests.controller.test_isr import ask as alter
from tests.controller.test_isr import proposal, state, three_replicas
from tests.metadata.histories import BROKERS, Entry, histories


def wish(image: MetadataImage, **other: Any) -> CopyRenewal:
    partition = image.partition(KEY)
    assert partition is not None
    made = CopyRenewal(topic_id=TOPIC, partition=PartitionIndex(0), leader_epoch=partition.leader_epoch)
    return replace(made, **other)


def ask(image: MetadataImage, broker: int, *copies: CopyRenewal, least: int = 1) -> tuple[MetadataImage, list[str]]:
    """The image after it, and the codes."""
    known = image.brokers[BrokerId(broker)].epoch
    decision = renew_copies(
        image, broker_id=BrokerId(broker), broker_epoch=known, copies=copies, min_in_sync=lambda _: least
    )
    assert not isinstance(decision.result, Refusal)
    return image.replay(decision.events, index=image.index + 1), [code.name for code in decision.result]


def leader(image: MetadataImage) -> int:
    partition = image.partition(KEY)
    assert partition is not None
    return partition.leader


def test_a_follower_leaves_in_an_entry_that_begins_an_epoch() -> None:
    before = three_replicas()
    image, codes = ask(before, 1, wish(before))
    assert (codes, leader(image), state(image)) == (["NONE"], 2, (1, 1, (2, 3)))


def test_what_the_leader_has_asked_for_before_is_not_done_after_it() -> None:
    """It may have let the copy in on what it had."""
    before = three_replicas()
    image, _ = alter(before, proposal(before, 2, 3))
    late = proposal(image, 1, 2, 3)
    image, codes = ask(image, 1, wish(image))
    assert codes == ["NONE"], "who is out of sync needs the epoch, too"
    assert alter(image, late)[1] == ["FENCED_LEADER_EPOCH"]
    assert state(image) == (1, 2, (2, 3))


def test_what_is_asked_twice_is_done_once() -> None:
    before = three_replicas()
    asked = wish(before)
    image, _ = ask(before, 1, asked)
    again, codes = ask(image, 1, asked, asked)
    assert (codes, state(again)) == (["NONE", "NONE"], state(image))
    image, _ = alter(image, proposal(image, 1, 2, 3))
    assert ask(image, 1, asked)[1] == ["FENCED_LEADER_EPOCH"], "it has been let in since"


def test_a_leader_hands_over_to_whom_it_names_and_leaves_where_it_may() -> None:
    before = three_replicas()
    for least, isr in ((3, (2, 3, 1)), (2, (3, 1))):
        image, codes = ask(before, 2, wish(before, successor=BrokerId(1)), least=least)
        assert (codes, leader(image), state(image)) == (["NONE"], 1, (1, 1, isr))
    for nobody in (2, 4, -1):
        refused, codes = ask(before, 2, wish(before, successor=BrokerId(nobody)))
        assert (codes, state(refused)) == (["LEADER_NOT_AVAILABLE"], state(before))


def test_the_isr_keeps_as_many_as_producers_need_and_its_last_member() -> None:
    before = three_replicas()
    for least, code in ((2, "NONE"), (3, "NOT_ENOUGH_REPLICAS")):
        assert ask(before, 1, wish(before), least=least)[1] == [code]
    alone, _ = alter(before, proposal(before, 2))
    assert ask(alone, 2, wish(alone, successor=BrokerId(3)))[1] == ["LEADER_NOT_AVAILABLE"]
    assert ask(alone, 1, wish(alone), least=3)[1] == ["NONE"], "it counts for nobody"


def test_who_knows_an_epoch_that_is_not_known_here_or_no_such_copy_asks_again() -> None:
    before = three_replicas()
    assert ask(before, 1, wish(before, leader_epoch=LeaderEpoch(1)))[1] == ["UNKNOWN_LEADER_EPOCH"]
    assert ask(before, 1, wish(before, partition=PartitionIndex(9)))[1] == ["UNKNOWN_TOPIC_OR_PARTITION"]
    image = register(before, 4)
    assert ask(image, 4, wish(image))[1] == ["UNKNOWN_TOPIC_OR_PARTITION"]


def test_where_nobody_leads_there_is_nothing_to_copy() -> None:
    image = three_replicas()
    for broker in (2, 3, 1):
        image = fence(image, broker)
    assert leader(image) == NO_LEADER
    assert ask(image, 2, wish(image))[1] == ["LEADER_NOT_AVAILABLE"]


def test_another_incarnation_and_too_many_are_refused() -> None:
    image = three_replicas()
    for epoch, count in ((99, 1), (image.brokers[BrokerId(1)].epoch, ISR_PROPOSALS_PER_ASK_MAX + 1)):
        decision = renew_copies(
            image,
            broker_id=BrokerId(1),
            broker_epoch=BrokerEpoch(epoch),
            copies=[wish(image)] * count,
            min_in_sync=lambda _: 1,
        )
        assert isinstance(decision.result, Refusal)
        assert decision.events == ()


@given(histories(), st.sampled_from(sorted(BROKERS)), st.sampled_from([NO_LEADER, *sorted(BROKERS)]), st.integers(1, 3))
def test_whatever_came_before_an_isr_is_not_left_empty_and_nobody_counts_in_the_epoch_in_which_it_may_drop(
    entries: list[Entry], broker: BrokerId, successor: BrokerId, least: int
) -> None:
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries):
        image = image.replay(entry, index=index)
    known = image.brokers.get(broker)
    if known is None:
        return
    asked = [
        CopyRenewal(topic_id=topic.id, partition=part.index, leader_epoch=part.leader_epoch, successor=successor)
        for topic, part in image.all_partitions()
    ]
    decision = renew_copies(
        image, broker_id=broker, broker_epoch=known.epoch, copies=asked, min_in_sync=lambda _: least
    )
    assert not isinstance(decision.result, Refusal)
    after = image.replay(decision.events, index=len(entries) + 1)
    for (_, before), (_, part), code in zip(
        image.all_partitions(), after.all_partitions(), decision.result, strict=True
    ):
        assert part.isr
        assert part.leader == NO_LEADER or part.leader in part.isr
        if code.name == "NONE":
            assert part.leader not in (broker, NO_LEADER)
            assert part.leader_epoch == before.leader_epoch + 1
            assert part.isr == before.isr or (broker not in part.isr and len(part.isr) >= least)
            assert broker not in part.isr or before.leader == broker
        else:
            assert part == before
