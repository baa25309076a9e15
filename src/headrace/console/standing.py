"""The standing of partitions in one look: counted once for all pages, since there may be very many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.base.ids import NO_LEADER
from headrace.net.client.looks import Place
from headrace.net.client.view import ClusterView, TopicView


class TopicStanding(NamedTuple):
    """The partitions of one topic."""

    replicas: int
    """The most that one of them has."""
    offline: int
    behind: int


class Standing(NamedTuple):
    """All partitions, with those of internal topics."""

    topics: Mapping[str, TopicStanding]
    offline: Sequence[Place]
    """Those without a leader, in order."""
    behind: int
    """Number of those with fewer replicas in sync than they have."""
    leads: Mapping[int, int]
    """Number of partitions by leader."""
    replicas: Mapping[int, int]
    """Number of replicas by broker."""


def standing_of(view: ClusterView) -> Standing:
    """The standing of all partitions that a look has seen."""
    topics: dict[str, TopicStanding] = {}
    offline: list[Place] = []
    leads: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for topic in view.topics.values():
        before = len(offline)
        topics[topic.name] = TopicStanding(
            replicas=_count(topic, leads, replicas, offline),
            offline=len(offline) - before,
            behind=sum(len(part.isr) < len(part.replicas) for part in topic.partitions),
        )
    return Standing(topics, sorted(offline), sum(each.behind for each in topics.values()), leads, replicas)


def _count(topic: TopicView, leads: dict[int, int], replicas: dict[int, int], offline: list[Place]) -> int:
    """Count its partitions with the others. Returns the most replicas that one of them has."""
    most = 0
    for part in topic.partitions:
        leads[part.leader] = leads.get(part.leader, 0) + 1
        most = max(most, len(part.replicas))
        for replica in part.replicas:
            replicas[replica] = replicas.get(replica, 0) + 1
        if part.leader == NO_LEADER:
            offline.append((topic.name, part.index))
    return most
