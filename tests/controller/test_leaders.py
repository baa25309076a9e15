"""Elections that somebody asks for, that balance leaders, and that cost data."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex, TopicId
from headrace.controller import leaders
from headrace.controller.decision import Decision
from headrace.controller.isr import IsrMember, IsrProposal, alter_isr
from headrace.controller.leaders import (
    Election,
    PartitionRef,
    balance_leaders,
    elect_leaders,
    elect_uncleanly,
    unclean_topics,
)
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.events import BrokerFenced, BrokerUnfenced, ConfigChanged
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from tests.controller.test_brokers import KEY, TOPIC, fence, register, state, unfence, with_topic
from tests.metadata.histories import Entry, histories

T0 = PartitionRef("t", PartitionIndex(0))
PREFERRED, UNCLEAN = Election.PREFERRED, Election.UNCLEAN
ONE = BrokerId(1)


def three(replicas: tuple[int, ...] = (2, 3, 1)) -> MetadataImage:
    """t-0 on these of three brokers."""
    return with_topic(register(register(register(EMPTY_IMAGE, 1), 2), 3), replicas)


def with_isr(image: MetadataImage, *isr: int) -> MetadataImage:
    """As t-0's leader proposes it."""
    partition = image.partition(KEY)
    assert partition is not None
    members = tuple(IsrMember(broker_id=BrokerId(one), broker_epoch=image.brokers[BrokerId(one)].epoch) for one in isr)
    proposal = IsrProposal(
        topic_id=TOPIC,
        partition=partition.index,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=members,
    )
    epoch = image.brokers[partition.leader].epoch
    decision = alter_isr(image, broker_id=partition.leader, broker_epoch=epoch, proposals=[proposal])
    assert decision.result == (ErrorCode.NONE,)
    return image.replay(decision.events, index=image.index + 1)


def elected(image: MetadataImage, election: Election, *refs: PartitionRef) -> tuple[MetadataImage, list[str]]:
    """The image after it, and what was said of each partition."""
    decision = elect_leaders(image, election, refs)
    assert [(one.topic, one.partition) for one in decision.result] == [(ref.topic, ref.partition) for ref in refs]
    codes = [one.refusal.code.name if one.refusal is not None else "NONE" for one in decision.result]
    return image.replay(decision.events, index=image.index + 1), codes


def test_a_preferred_election_moves_a_partition_to_its_first_replica_and_keeps_the_isr() -> None:
    image = unfence(fence(three(), 2), 2)
    assert state(image) == (3, 1, (3, 1))
    assert elected(image, PREFERRED, T0)[1] == ["PREFERRED_LEADER_NOT_AVAILABLE"], "it is not in sync"
    image = with_isr(image, 1, 2, 3)
    image, codes = elected(image, PREFERRED, T0)
    assert (codes, state(image)) == (["NONE"], (2, 2, (2, 3, 1)))
    after, codes = elected(image, PREFERRED, T0)
    assert (codes, state(after)) == (["ELECTION_NOT_NEEDED"], state(image))


def test_an_unclean_election_is_held_only_where_nobody_leads() -> None:
    image = three()
    assert elected(image, UNCLEAN, T0)[1] == ["ELECTION_NOT_NEEDED"]
    image = fence(with_isr(image, 2), 2)
    assert state(image) == (NO_LEADER, 1, (2,))
    assert elected(image, PREFERRED, T0)[1] == ["PREFERRED_LEADER_NOT_AVAILABLE"]
    image, codes = elected(image, UNCLEAN, T0)
    assert (codes, state(image)) == (["NONE"], (3, 2, (3,))), "the first replica that lives, alone"


def test_nothing_is_lost_where_one_in_sync_has_come_back_and_does_not_lead_yet() -> None:
    image = fence(with_isr(three(), 2), 2)
    known = image.brokers[BrokerId(2)]
    image = image.replay([BrokerUnfenced(broker_id=known.id, broker_epoch=known.epoch)])  # its election is to follow
    wanting = configured(image, "true", TOPIC)
    for events in (
        elect_leaders(image, UNCLEAN, [T0]).events,
        elect_uncleanly(wanting, broker_configs={}, node=ONE, elections_max=9).events,
    ):
        assert state(wanting.replay(events)) == (2, 2, (2,))


def test_where_no_replica_lives_there_is_no_election_at_any_price() -> None:
    image = fence(three((2,)), 2)
    assert elected(image, UNCLEAN, T0) == (image.replay((), index=image.index + 1), ["ELIGIBLE_LEADERS_NOT_AVAILABLE"])


def test_a_lost_disk_is_accepted_by_an_unclean_election_if_nobody_else_has_a_copy() -> None:
    image = fence(with_isr(three((2, 3)), 2), 2)
    image = unfence(register(image, 2, directory=9, unfenced=False), 2)
    assert state(image)[0] == NO_LEADER
    assert state(elected(image, UNCLEAN, T0)[0]) == (3, state(image)[1] + 1, (3,)), "a copy that is behind is a copy"
    image, codes = elected(fence(image, 3), UNCLEAN, T0)
    assert (codes, state(image)[0], state(image)[2]) == (["NONE"], 2, (2,))
    partition = image.partition(KEY)
    assert partition is not None
    assert partition.kept_in is None


def test_what_is_not_there_is_unknown_and_what_is_asked_twice_is_done_once() -> None:
    image = with_isr(unfence(fence(three(), 2), 2), 1, 2, 3)
    none = PartitionRef("none", PartitionIndex(0))
    after, codes = elected(image, PREFERRED, T0, PartitionRef("t", PartitionIndex(1)), none, T0)
    assert codes == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION", "NONE"]
    assert state(after) == (2, 2, (2, 3, 1))


def many(count: int, configs: Mapping[str, str] | None = None) -> MetadataImage:
    """m-0, m-1, ... are on brokers 2 and 3, led by 3, in sync with both; 2 would be preferred."""
    image = register(register(EMPTY_IMAGE, 2), 3)
    assignments = tuple((at, (BrokerId(2), BrokerId(3))) for at in range(count))
    topic_id = TopicId(uuid.UUID(int=8, version=4))
    wanted = NewTopic(topic_id=topic_id, name="m", assignments=assignments, configs=dict(configs or {}))
    image = image.replay(create_topics(image, [wanted], broker_configs={}).events, index=image.index + 1)
    image = unfence(fence(image, 2), 2)
    return image.replay(both_in_sync(image).events, index=image.index + 1)


def both_in_sync(image: MetadataImage) -> Decision[Any]:
    """As broker 3 proposes it, of all that `many` made."""
    members = tuple(IsrMember(broker_id=BrokerId(b), broker_epoch=image.brokers[BrokerId(b)].epoch) for b in (2, 3))
    proposals = [
        IsrProposal(
            topic_id=topic.id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=members,
        )
        for topic, partition in image.all_partitions()
    ]
    epoch = image.brokers[BrokerId(3)].epoch
    return alter_isr(image, broker_id=BrokerId(3), broker_epoch=epoch, proposals=proposals)


def led(image: MetadataImage) -> list[int]:
    return [partition.leader for _, partition in image.all_partitions()]


def test_all_partitions_are_meant_where_none_is_named_and_told_where_something_is_to_tell() -> None:
    image = many(3)
    some = image.replay(elect_leaders(image, PREFERRED, [PartitionRef("m", PartitionIndex(1))]).events)
    assert led(some) == [3, 2, 3]
    decision = elect_leaders(some, PREFERRED, None)
    assert [(one.partition, one.refusal) for one in decision.result] == [(0, None), (2, None)]
    assert led(some.replay(decision.events)) == [2, 2, 2]
    assert elect_leaders(some, UNCLEAN, None).result == ()


def test_a_request_that_would_elect_too_many_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "ELECTIONS_PER_ENTRY_MAX", 2)
    image = many(3)
    decision = elect_leaders(image, PREFERRED, None)
    assert [one.refusal and one.refusal.code for one in decision.result] == [None, None, ErrorCode.REQUEST_TIMED_OUT]
    assert led(image.replay(decision.events)) == [2, 2, 3]


def test_leaders_are_balanced_a_few_at_a_time() -> None:
    image = many(3)
    decision = balance_leaders(image, elections_max=2)
    assert decision.result == len(decision.events) == 2
    image = image.replay(decision.events)
    assert led(image) == [2, 2, 3]
    decision = balance_leaders(image, elections_max=2)
    assert decision.result == 1
    assert balance_leaders(image.replay(decision.events), elections_max=2) == Decision((), 0)


def test_leaders_are_not_balanced_onto_what_is_dead_or_behind_or_has_just_come() -> None:
    behind = unfence(fence(three(), 2), 2)
    known = many(1).brokers[BrokerId(2)]
    dead = many(1).replay([BrokerFenced(broker_id=known.id, broker_epoch=known.epoch)])  # and still in the ISR
    wiped = unfence(register(fence(three((2,)), 2), 2, directory=9, unfenced=False), 2)
    assert balance_leaders(many(1), elections_max=9, recent={BrokerId(2)}).events == ()
    for image in (fence(many(1), 2), behind, fence(with_isr(three(), 2), 2), dead, wiped):
        assert balance_leaders(image, elections_max=9).events == ()
        assert elect_leaders(image, PREFERRED, None).events == ()


def configured(image: MetadataImage, value: str, topic: TopicId | None) -> MetadataImage:
    return image.replay([ConfigChanged(topic_id=topic, changes={"unclean.leader.election.enable": value})])


def test_what_nobody_leads_is_elected_uncleanly_only_where_that_is_wanted() -> None:
    image = fence(with_isr(three(), 2), 2)
    assert state(image)[0] == NO_LEADER
    for static, wanted in (
        ({}, False),
        ({"unclean.leader.election.enable": "true"}, True),
    ):
        decision = elect_uncleanly(image, broker_configs=static, node=ONE, elections_max=9)
        assert decision.result == len(decision.events) == int(wanted)
    for configs, wanted in (
        (configured(image, "true", TOPIC), True),
        (configured(image, "TRUE ", TOPIC), True),
        (configured(image, "true", None), True),
        (configured(configured(image, "true", None), "false", TOPIC), False),
    ):
        decision = elect_uncleanly(configs, broker_configs={}, node=ONE, elections_max=9)
        assert decision.result == int(wanted)
        if wanted:
            assert state(configs.replay(decision.events)) == (3, 2, (3,))
    wanting = configured(image, "true", TOPIC)
    assert [topic.name for topic in unclean_topics(wanting, broker_configs={}, node=ONE)] == ["t"]
    assert elect_uncleanly(wanting, broker_configs={}, node=ONE, elections_max=0).events == ()
    leaders_live = configured(three(), "true", TOPIC)
    assert elect_uncleanly(leaders_live, broker_configs={}, node=ONE, elections_max=9).events == ()


@given(histories(), st.sampled_from(Election))
def test_an_election_changes_nothing_that_it_need_not(entries: list[Entry], election: Election) -> None:
    """After any history, a leader moves to its first replica, or a leaderless partition gets a live one."""
    image = EMPTY_IMAGE
    for index, entry in enumerate(entries, 1):
        image = image.replay(entry, index=index)
    decision = elect_leaders(image, election, None)
    after = image.replay(decision.events)
    refused = {(one.topic, one.partition) for one in decision.result if one.refusal is not None}
    done = {(one.topic, one.partition) for one in decision.result} - refused
    for topic, old in image.all_partitions():
        new = after.topics[topic.id].partitions[old.index]
        assert (new != old) == ((topic.name, old.index) in done)
        if new == old:
            assert election is PREFERRED or old.leader != NO_LEADER or (topic.name, old.index) in refused
            continue
        assert new.leader_epoch == old.leader_epoch + 1
        assert not image.brokers[new.leader].fenced
        assert new.replicas == old.replicas
        if election is PREFERRED:
            assert (new.leader, new.isr) == (old.replicas[0], old.isr)
            assert new.leader in old.isr
        else:
            assert old.leader == NO_LEADER
            assert new.isr == (new.leader,)
