"""Assignors: they distribute partitions to subscribers.

Promises:
- Every partition of a subscribed topic has exactly one owner, which subscribes to it.
- Equal inputs give equal results, whatever the order of their maps.
- `assign_uniform` keeps as much of the previous assignment as it can. Loads differ by at most one if all members
  subscribe to the same topics. Otherwise no single move could make them more even.
- `assign_range` gives out each topic in runs in the order of the members. If all subscribe to the same topics, one
  member gets partitions with equal indexes of each (KIP-848; KIP-54 for the aim of stickiness).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import GROUP_TOPIC_SETS_KEPT_MAX
from headrace.coordinators.groups.consumer.model import NO_PARTITIONS, Partitions


class Subscriber(NamedTuple):
    """A member, as assignors see it."""

    id: str
    topics: frozenset[TopicId]
    """Only existing topics."""
    instance_id: str | None = None
    before: Partitions = NO_PARTITIONS
    """Its previous assignment."""


Assignor: TypeAlias = Callable[[list[Subscriber], Mapping[TopicId, int]], dict[str, Partitions]]
"""Returns assignments by member id. The mapping has the number of partitions of each topic."""


def assign_range(subscribers: list[Subscriber], sizes: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """Assign runs of neighbouring partitions, topic by topic. Static members come first, by instance id, because these
    ids do not change."""
    members = sorted(subscribers, key=lambda one: (one.instance_id is None, one.instance_id or one.id))
    shares: dict[str, set[TopicPartition]] = {member.id: set() for member in members}
    for topic_id, partitions in sizes.items():
        wanting = [member.id for member in members if topic_id in member.topics]
        at = 0
        for place, member_id in enumerate(wanting):
            count = partitions // len(wanting) + (place < partitions % len(wanting))
            shares[member_id].update(TopicPartition(topic_id, PartitionIndex(each)) for each in range(at, at + count))
            at += count
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def assign_uniform(subscribers: list[Subscriber], sizes: Mapping[TopicId, int]) -> dict[str, Partitions]:
    members = sorted(subscribers, key=lambda one: one.id)
    if not members:
        return {}
    wanted = {topic_id: sizes[topic_id] for member in members for topic_id in member.topics if topic_id in sizes}
    if all(member.topics == members[0].topics for member in members):
        return _even(members, dict(sorted(wanted.items())))
    return _Balance(members, dict(sorted(wanted.items()))).shares()


@lru_cache(maxsize=GROUP_TOPIC_SETS_KEPT_MAX)
def _all(sizes: tuple[tuple[TopicId, int], ...]) -> tuple[tuple[TopicPartition, ...], Partitions]:
    """Every partition, in order of index, so that neighbours come from different topics; and the same as a set. Cached,
    because a group that many members join asks for it repeatedly."""
    found = [TopicPartition(topic_id, PartitionIndex(at)) for topic_id, count in sizes for at in range(count)]
    return tuple(sorted(found, key=_by_index)), frozenset(found)


def _by_index(partition: TopicPartition) -> tuple[PartitionIndex, TopicId]:
    return partition.partition, partition.topic_id


def _even(members: list[Subscriber], sizes: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """All want the same topics. Each member gets the quota, and some get one more, first those that had more."""
    partitions, wanted = _all(tuple(sizes.items()))
    quota, extra = divmod(len(partitions), len(members))
    kept: dict[str, Partitions] = {}
    for member in sorted(members, key=lambda one: (-len(one.before), one.id)):
        mine = member.before if member.before <= wanted else member.before & wanted
        more = extra > 0 and len(mine) > quota
        extra -= more
        room = quota + more
        kept[member.id] = mine if len(mine) <= room else frozenset(sorted(mine, key=_by_index)[:room])
    left = wanted.difference(*kept.values())
    rest = deque(each for each in partitions if each in left) if left else deque[TopicPartition]()
    shares = {member.id: list(kept[member.id]) for member in members}
    _deal(rest, list(shares.values()), quota)
    _deal(rest, list(shares.values()), quota + 1)
    assert not rest
    return {
        member_id: kept[member_id] if len(share) == len(kept[member_id]) else frozenset(share)
        for member_id, share in shares.items()
    }


def _deal(rest: deque[TopicPartition], shares: list[list[TopicPartition]], up_to: int) -> None:
    """Give partitions in turn to the members that have fewer."""
    open_shares = deque(share for share in shares if len(share) < up_to)
    while rest and open_shares:
        share = open_shares.popleft()
        share.append(rest.popleft())
        if len(share) < up_to:
            open_shares.append(share)


@dataclass(slots=True)
class _Balance:
    """Members that want different topics. They start from what they had; the rest goes to the least loaded; then loads
    are evened out."""

    members: list[Subscriber]
    sizes: Mapping[TopicId, int]
    held: dict[str, dict[TopicId, list[PartitionIndex]]] = field(default_factory=dict)
    load: dict[str, int] = field(default_factory=dict)

    def shares(self) -> dict[str, Partitions]:
        self.held = {member.id: {} for member in self.members}
        self.load = {member.id: 0 for member in self.members}
        wanting = {
            topic_id: [member.id for member in self.members if topic_id in member.topics] for topic_id in self.sizes
        }
        before = {each: member.id for member in self.members for each in member.before}
        rest: list[TopicPartition] = []
        for topic_id, count in self.sizes.items():
            for index in map(PartitionIndex, range(count)):
                owner = before.get(TopicPartition(topic_id, index))
                if owner is not None and topic_id in self._topics_of(owner):
                    self._give(owner, topic_id, index)
                else:
                    rest.append(TopicPartition(topic_id, index))
        for topic_id, index in sorted(rest, key=lambda each: (len(wanting[each.topic_id]), each)):
            self._give(min(wanting[topic_id], key=self._by_load), topic_id, index)
        moved = True
        while moved:  # ends, because the sum of the squared loads falls with each move
            moves = [self._even_out(topic_id, wanting[topic_id]) for topic_id in self.sizes]
            moved = any(moves)
        return {
            member_id: frozenset(TopicPartition(topic_id, index) for topic_id, held in topics.items() for index in held)
            for member_id, topics in self.held.items()
        }

    def _topics_of(self, member_id: str) -> frozenset[TopicId]:
        return next(member.topics for member in self.members if member.id == member_id)

    def _by_load(self, member_id: str) -> tuple[int, str]:
        return self.load[member_id], member_id

    def _give(self, member_id: str, topic_id: TopicId, index: PartitionIndex) -> None:
        self.held[member_id].setdefault(topic_id, []).append(index)
        self.load[member_id] += 1

    def _even_out(self, topic_id: TopicId, wanting: list[str]) -> bool:
        """Move partitions of a topic while that evens out loads. Returns whether any moved."""
        moved = False
        while True:
            holding = [member_id for member_id in wanting if self.held[member_id].get(topic_id)]
            if not holding:
                return moved
            most, least = max(holding, key=self._by_load), min(wanting, key=self._by_load)
            if self.load[most] - self.load[least] < 2:
                return moved
            self._give(least, topic_id, self.held[most][topic_id].pop())
            self.load[most] -= 1
            moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that clients and `group.consumer.assignors` use."""
