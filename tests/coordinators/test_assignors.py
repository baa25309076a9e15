"""Laws of the assignors, against the definitions and, where it counts moves, against all assignments that there are."""

from __future__ import annotations

import itertools
import random
import uuid
from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.coordinators.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from headrace.coordinators.groups.consumer.model import Partitions
from tests.tiers import examples

TOPICS = [TopicId(uuid.UUID(int=number)) for number in range(1, 5)]


def partition(topic: TopicId, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


@st.composite
def inputs(draw: st.DrawFn, *, alike: bool) -> tuple[list[Subscriber], dict[TopicId, int]]:
    """Members with what they had, which may be of topics that are no more or that they no longer want."""
    sizes = {topic: draw(st.integers(1, 9)) for topic in draw(st.sets(st.sampled_from(TOPICS)))}
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    some = st.frozensets(st.sampled_from(sorted(sizes))) if sizes else st.just(frozenset[TopicId]())
    same = draw(some)
    owners = {
        partition(topic, index): draw(st.sampled_from([*names, None])) for topic in TOPICS[:3] for index in range(10)
    }
    subscribers = [
        Subscriber(
            id=name,
            topics=same if alike else draw(some),
            before=frozenset(each for each, owner in owners.items() if owner == name),
        )
        for name in names
    ]
    return subscribers, sizes


def wanted(subscribers: list[Subscriber], sizes: Mapping[TopicId, int]) -> list[TopicPartition]:
    topics = {topic for one in subscribers for topic in one.topics}
    return sorted(partition(topic, index) for topic in topics for index in range(sizes[topic]))


@settings(max_examples=examples(200))
@given(st.one_of(inputs(alike=True), inputs(alike=False)), st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_has_one_owner_who_wants_it(
    given_: tuple[list[Subscriber], dict[TopicId, int]], name: str
) -> None:
    subscribers, sizes = given_
    shares = ASSIGNORS[name](subscribers, sizes)
    assert shares.keys() == {one.id for one in subscribers}
    assert sorted(each for share in shares.values() for each in share) == wanted(subscribers, sizes)
    for one in subscribers:
        assert {each.topic_id for each in shares[one.id]} <= one.topics


@given(st.one_of(inputs(alike=True), inputs(alike=False)), st.sampled_from(sorted(ASSIGNORS)), st.randoms())
def test_the_order_of_the_input_is_of_no_consequence(
    given_: tuple[list[Subscriber], dict[TopicId, int]], name: str, chance: random.Random
) -> None:
    subscribers, sizes = given_
    mixed, topics = list(subscribers), list(sizes.items())
    chance.shuffle(mixed)
    chance.shuffle(topics)
    assert ASSIGNORS[name](mixed, dict(topics)) == ASSIGNORS[name](subscribers, sizes)


@settings(max_examples=examples(200))
@given(st.one_of(inputs(alike=True), inputs(alike=False)))
def test_no_single_move_makes_loads_more_alike(given_: tuple[list[Subscriber], dict[TopicId, int]]) -> None:
    subscribers, sizes = given_
    shares = assign_uniform(subscribers, sizes)
    for giver, taker in itertools.permutations(subscribers, 2):
        if any(each.topic_id in taker.topics for each in shares[giver.id]):
            assert len(shares[giver.id]) - len(shares[taker.id]) <= 1


@given(inputs(alike=True))
def test_loads_differ_by_one_at_most(given_: tuple[list[Subscriber], dict[TopicId, int]]) -> None:
    loads = [len(share) for share in assign_uniform(*given_).values()]
    assert max(loads) - min(loads) <= 1


def kept(subscribers: list[Subscriber], shares: Mapping[str, Partitions]) -> int:
    return sum(len(one.before & shares[one.id]) for one in subscribers)


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from("abc-"), min_size=1, max_size=6), st.integers(1, 3))
def test_as_few_partitions_move_as_can_be(owners: list[str], members: int) -> None:
    """Of all the even assignments of one topic none keeps more."""
    topic = TOPICS[0]
    names = "abc"[:members]
    subscribers = [
        Subscriber(
            id=name,
            topics=frozenset([topic]),
            before=frozenset(partition(topic, index) for index, owner in enumerate(owners) if owner == name),
        )
        for name in names
    ]
    best = 0
    for choice in itertools.product(names, repeat=len(owners)):
        loads = Counter(dict.fromkeys(names, 0))
        loads.update(choice)
        if max(loads.values()) - min(loads.values()) <= 1:
            best = max(best, sum(mine == before for mine, before in zip(choice, owners, strict=True)))
    assert kept(subscribers, assign_uniform(subscribers, {topic: len(owners)})) == best


@given(st.one_of(inputs(alike=True), inputs(alike=False)))
def test_what_is_settled_stays(given_: tuple[list[Subscriber], dict[TopicId, int]]) -> None:
    subscribers, sizes = given_
    shares = assign_uniform(subscribers, sizes)
    again = [Subscriber(id=one.id, topics=one.topics, before=shares[one.id]) for one in subscribers]
    assert assign_uniform(again, sizes) == shares


def test_range_gives_runs_and_the_same_index_of_topics_alike_to_the_same_member() -> None:
    topics = dict.fromkeys(TOPICS[:2], 5)
    members = [Subscriber(id=name, topics=frozenset(topics)) for name in "cab"]
    shares = assign_range(members, topics)
    runs = {"a": [0, 1], "b": [2, 3], "c": [4]}
    assert shares == {
        name: frozenset(partition(topic, index) for topic in topics for index in run) for name, run in runs.items()
    }


def test_range_puts_static_members_first_by_their_instance_ids() -> None:
    topic = TOPICS[0]
    some = frozenset([topic])
    members = [Subscriber(id="a", topics=some), Subscriber(id="z", instance_id="1", topics=some)]
    shares = assign_range(members, {topic: 3})
    assert shares == {"z": frozenset([partition(topic, 0), partition(topic, 1)]), "a": frozenset([partition(topic, 2)])}
    assert assign_uniform([], {topic: 3}) == assign_range([], {topic: 3}) == {}
