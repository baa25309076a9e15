"""Decides who shall lead instead: at an operator's request, back to a partition's first replica, or at the price of
data.

Promises:
- A preferred election moves a partition to its first replica, where that is live and in sync, and nowhere else.
- An unclean election is held only where nobody leads. It makes its leader the only member of the ISR.
- Each election raises the leader epoch.

`headrace.controller.elections` has the elections when brokers come and go. Sources: KIP-460 (ElectLeaders), KIP-106
(unclean election), DESIGN "Placement and failover".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Final

from headrace.base.ids import (
    NO_LEADER,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicPartition,
)
from headrace.base.limits import ELECTIONS_PER_ENTRY_MAX
from headrace.controller import shared_logs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.elections import live_directories
from headrace.metadata.configs import broker_value
from headrace.metadata.events import LeaderChanged, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode

UNCLEAN_ENABLED: Final = "unclean.leader.election.enable"


class Election(IntEnum):
    """The election types of ElectLeaders, by number."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """A partition by its topic's name."""

    topic: str
    partition: PartitionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOutcome:
    """The outcome for one partition; no refusal: it has another leader."""

    topic: str
    partition: PartitionIndex
    refusal: Refusal | None = None


def elect_leaders(
    image: MetadataImage, election: Election, partitions: Sequence[PartitionRef] | None
) -> Decision[tuple[ElectionOutcome, ...]]:
    """Return one outcome for each partition, in order. None: all partitions, except those with their proper leader.
    Beyond ELECTIONS_PER_ENTRY_MAX elections, the rest is refused with REQUEST_TIMED_OUT, to be asked for again."""
    live = live_directories(image)
    leaderships = shared_logs.Leaderships(image) if image.shares_logs else None
    events: dict[TopicPartition, list[MetadataEvent]] = {}
    outcomes = []
    for name, index, found in _every(image) if partitions is None else _named(image, partitions):
        verdict = _elected(election, name, index, found, live, leaderships)
        refusal = None
        if isinstance(verdict, Refusal):
            if partitions is None and verdict.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            refusal = verdict
        elif len(events) < ELECTIONS_PER_ENTRY_MAX:
            key, done = verdict
            events[key] = done
        else:
            message = f"One request elects at most {ELECTIONS_PER_ENTRY_MAX} leaders: ask again for the rest."
            refusal = Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        outcomes.append(ElectionOutcome(topic=name, partition=index, refusal=refusal))
    return Decision(tuple(event for done in events.values() for event in done), tuple(outcomes))


_Place = tuple[str, PartitionIndex, tuple[TopicImage, PartitionImage] | None]


def _every(image: MetadataImage) -> Iterator[_Place]:
    return ((topic.name, partition.index, (topic, partition)) for topic, partition in image.all_partitions())


def _named(image: MetadataImage, partitions: Iterable[PartitionRef]) -> Iterator[_Place]:
    for ref in partitions:
        topic, partition = image.topic(ref.topic), image.partition_info(ref.topic, ref.partition)
        yield ref.topic, ref.partition, None if topic is None or partition is None else (topic, partition)


def _elected(
    election: Election,
    name: str,
    index: PartitionIndex,
    found: tuple[TopicImage, PartitionImage] | None,
    live: Mapping[BrokerId, DirectoryId],
    leaderships: shared_logs.Leaderships | None,
) -> tuple[TopicPartition, list[MetadataEvent]] | Refusal:
    """Return the events of one election. `leaderships`: those of a cluster that shares logs."""
    if found is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {name}-{index} does not exist.")
    topic, partition = found
    key = TopicPartition(topic.id, partition.index)
    if election is Election.UNCLEAN:
        if partition.leader != NO_LEADER:
            return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"{name}-{index} is led by broker {partition.leader}.")
        if leaderships is not None:
            done = shared_logs.elected(topic, partition, leaderships)
            return done if isinstance(done, Refusal) else (key, done)
        if (unclean := _unclean(topic, partition, live)) is not None:
            return key, [unclean]
        message = f"No replica of {name}-{index} is alive: start one of the brokers {_listed(partition.replicas)}."
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"{name}-{index} is led by broker {preferred} already.")
    if (moved := _preferred(topic, partition, live)) is not None:
        return key, [moved]
    message = f"Broker {preferred}, which is to lead {name}-{index}, is not alive, or not in sync."
    return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)


def _listed(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(map(str, brokers))


def _preferred(
    topic: TopicImage, partition: PartitionImage, live: Mapping[BrokerId, DirectoryId]
) -> LeaderChanged | None:
    """Return the election of the first replica. None where that cannot lead, or nobody leads: then no replica can."""
    preferred = partition.replicas[0]
    if preferred == partition.leader or partition.leader == NO_LEADER:
        return None
    if preferred not in partition.isr or preferred not in live:
        return None
    return _led_by(topic, partition, preferred, partition.isr)


def _unclean(
    topic: TopicImage, partition: PartitionImage, live: Mapping[BrokerId, DirectoryId]
) -> LeaderChanged | None:
    """Return the election of a replica outside the ISR, where nobody leads; its records alone are kept.

    - A member of the ISR that has just come back, and is about to lead, leads at once, and nothing is lost.
    - Otherwise the first live replica outside the ISR leads; one that is only being added comes last of them.
    - Where there is none, a live member of the ISR leads whose disk was lost: it is the only replica left.
    """
    assert partition.leader == NO_LEADER, "it is held where nobody leads"
    for member in partition.isr:
        if member in live and partition.kept_in in (None, live[member]):
            return _led_by(topic, partition, member, partition.isr)
    alive = [replica for replica in partition.replicas if replica in live]
    leader = min(alive, key=lambda replica: (replica in partition.isr, replica in partition.adding), default=None)
    return None if leader is None else _led_by(topic, partition, leader, (leader,), unclean=True)


def _led_by(
    topic: TopicImage,
    partition: PartitionImage,
    leader: BrokerId,
    isr: tuple[BrokerId, ...],
    *,
    unclean: bool = False,
) -> LeaderChanged:
    return LeaderChanged(
        topic_id=topic.id,
        partition=partition.index,
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
        partition_epoch=PartitionEpoch(partition.partition_epoch + 1),
        isr=isr,
        unclean=unclean,
    )


# elections that the controller holds by itself


def balance_leaders(
    image: MetadataImage, *, elections_max: int, recent: Container[BrokerId] = frozenset()
) -> Decision[int]:
    """Move up to `elections_max` partitions back to their first replicas, except those on the brokers in `recent`. The
    result is their number. In a cluster that shares logs, even out what brokers lead."""
    if image.shares_logs:
        done = list(shared_logs.balanced(image, elections_max=elections_max, recent=recent))
        return Decision(tuple(event for each in done for event in each), len(done))
    live = live_directories(image)
    partitions = ((topic, one) for topic, one in image.all_partitions() if one.replicas[0] not in recent)
    moves = (_preferred(topic, partition, live) for topic, partition in partitions)
    events = tuple(islice((moved for moved in moves if moved is not None), elections_max))
    return Decision(events, len(events))


def elect_uncleanly(
    image: MetadataImage, *, broker_configs: Mapping[str, str], node: BrokerId, elections_max: int
) -> Decision[int]:
    """Elect leaders outside the ISR for partitions without one, where their topics allow it. `broker_configs` are those
    that broker `node` was started with. The result is their number: 0 where logs are shared, for nobody is out of
    sync."""
    if image.shares_logs:
        return Decision((), 0)
    live = live_directories(image)
    topics = unclean_topics(image, broker_configs=broker_configs, node=node)
    offline = ((topic, one) for topic in topics for one in topic.partitions if one.leader == NO_LEADER)
    elected = (_unclean(topic, partition, live) for topic, partition in offline)
    events = tuple(islice((event for event in elected if event is not None), elections_max))
    return Decision(events, len(events))


def unclean_topics(image: MetadataImage, *, broker_configs: Mapping[str, str], node: BrokerId) -> list[TopicImage]:
    """Return the topics with `unclean.leader.election.enable`, by name."""
    everywhere = broker_value(image, broker_configs, UNCLEAN_ENABLED, node=node).text()
    enabled = (
        topic
        for topic in image.topics.values()
        if topic.configs.get(UNCLEAN_ENABLED, everywhere).strip().lower() == "true"
    )
    return sorted(enabled, key=lambda topic: topic.name)
