"""Decides on existing topics: deletes them, and gives them more partitions.

Promises: as `headrace.controller.topics`, whose dataclasses it uses. Sources: KIP-4, KIP-195, KIP-516.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.base.ids import NO_TOPIC_ID, BrokerId, TopicId
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller import shared_logs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.placement import Placement
from headrace.controller.topics import TopicOutcome, assignment_problem, no_live_broker, too_many_partitions
from headrace.metadata.configs import broker_value
from headrace.metadata.events import MetadataEvent, PartitionsAdded, TopicDeleted
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRef:
    """A topic by name, else by id."""

    name: str | None = None
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """A topic that shall have `count` partitions in all. `assignments`: replicas of each new one."""

    name: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


def find_topic(image: MetadataImage, ref: TopicRef) -> TopicImage | Refusal:
    """Return the topic, or that it does not exist: by name error 3, by id UNKNOWN_TOPIC_ID."""
    if ref.name is not None:
        found = image.topic(ref.name)
        return found or Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{ref.name}' does not exist")
    found = image.topic_by_id(ref.topic_id)
    return found or Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic with id {ref.topic_id} does not exist")


def delete_topics(
    image: MetadataImage,
    requests: Sequence[TopicRef],
    *,
    broker_configs: Mapping[str, str],
    node: BrokerId | None = None,
) -> Decision[list[TopicOutcome]]:
    """Return one outcome for each request, in order. The configs of broker `node`, started with `broker_configs`, say
    whether topics may be deleted."""
    allowed = broker_value(image, broker_configs, "delete.topic.enable", node=node).boolean()
    gone: set[TopicId] = set()
    outcomes = []
    for ref in requests:
        found = find_topic(image, ref)
        if not allowed:
            found = Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topics cannot be deleted: delete.topic.enable=false.")
        elif isinstance(found, TopicImage) and found.id in gone:
            found = Refusal(ErrorCode.INVALID_REQUEST, f"Topic '{found.name}' is in the request more than once.")
        if isinstance(found, Refusal):
            outcomes.append(TopicOutcome(name=ref.name, topic_id=ref.topic_id, refusal=found))
        else:
            gone.add(found.id)
            outcomes.append(TopicOutcome(name=found.name, topic_id=found.id, topic=found))
    deleted = (outcome.topic.id for outcome in outcomes if outcome.topic is not None)
    return Decision(tuple(TopicDeleted(topic_id=topic_id) for topic_id in deleted), outcomes)


def create_partitions(
    image: MetadataImage, requests: Sequence[NewPartitions], *, validate_only: bool = False
) -> Decision[list[TopicOutcome]]:
    """Return one outcome for each request, in order; its topic is the one before the change."""
    named = Counter(request.name for request in requests)
    placement = Placement(image)
    events: list[MetadataEvent] = []
    outcomes = []
    room = PARTITIONS_PER_REQUEST_MAX
    for request in requests:
        topic = find_topic(image, TopicRef(name=request.name))
        if named[request.name] > 1:
            topic = Refusal(ErrorCode.INVALID_REQUEST, f"Topic '{request.name}' is in the request more than once.")
        elif image.shares_logs and request.assignments is not None and isinstance(topic, TopicImage):
            topic = shared_logs.unassignable(image, topic.name)
        verdict = topic if isinstance(topic, Refusal) else _add_partitions(topic, request, placement, room)
        if isinstance(verdict, Refusal) or isinstance(topic, Refusal):
            refusal = verdict if isinstance(verdict, Refusal) else None
            outcomes.append(TopicOutcome(name=request.name, refusal=refusal))
            continue
        room -= len(verdict.partitions)
        events.append(verdict)
        outcomes.append(TopicOutcome(name=topic.name, topic_id=topic.id, topic=topic))
    return Decision(() if validate_only else tuple(events), outcomes)


def _add_partitions(
    topic: TopicImage, request: NewPartitions, placement: Placement, room: int
) -> PartitionsAdded | Refusal:
    before = len(topic.partitions)
    added = request.count - before
    factor = topic.replication_factor
    if topic.internal:
        return Refusal(
            ErrorCode.INVALID_REQUEST, f"Topic '{topic.name}' keeps its partitions: what is in it is found by them."
        )
    if added <= 0:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{topic.name}' has {before} partitions: it can only get more, not {request.count}.",
        )
    if added > room:
        return too_many_partitions()
    if request.assignments is None:
        if not placement.live:
            return no_live_broker()
        if factor > len(placement.live):
            return Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Topic '{topic.name}' has {factor} replicas, but only {len(placement.live)} brokers are alive.",
            )
        partitions = [placement.place(index, factor) for index in range(before, request.count)]
        return PartitionsAdded(topic_id=topic.id, partitions=tuple(partitions))
    if len(request.assignments) != added:
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions are added, but replicas are assigned to {len(request.assignments)}.",
        )
    if problem := assignment_problem(request.assignments, placement, factor):
        return problem
    assigned = [placement.assign(before + at, replicas) for at, replicas in enumerate(request.assignments)]
    return PartitionsAdded(topic_id=topic.id, partitions=tuple(assigned))
