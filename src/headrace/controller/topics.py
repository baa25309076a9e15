"""Decides on new topics: their names, their number of partitions, and the places of these.

Promises: each topic of a request is decided on its own, on the state after those before it. A refusal names the topic
or key at fault. `validate_only` decides all and commits nothing. Sources: KIP-4, KIP-464 (defaults), KIP-516 (ids),
KIP-525 (configs in the response).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import immutables

from headrace.base.ids import NO_TOPIC_ID, BrokerId, TopicId
from headrace.base.limits import PARTITIONS_PER_REQUEST_MAX
from headrace.controller import shared_logs
from headrace.controller.decision import Decision, Refusal
from headrace.controller.placement import Placement
from headrace.controller.topic_names import NamesTaken, topic_name_problem
from headrace.metadata.configs import (
    ConfigValue,
    broker_value,
    kept_topic_configs,
    topic_config_conflict,
    topic_config_problem,
)
from headrace.metadata.events import MetadataEvent, TopicCreated
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode

DEFAULT: Final = -1
"""Stands for the broker's choice of a partition count or replication factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """One topic to create. The caller chooses a random `topic_id`."""

    topic_id: TopicId
    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: tuple[tuple[int, tuple[BrokerId, ...]], ...] | None = None
    """(partition index, replicas), as they came; None: the controller places them."""
    configs: Mapping[str, str | None]
    desired_replicas: int | None = None
    """The replicas that each partition shall have, as brokers come; None: as the factor says, or the broker's
    default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutcome:
    """The outcome for one topic of a request: a refusal, or the topic. The topic is as created (or as it would be,
    where only validated), or as before its deletion."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID
    refusal: Refusal | None = None
    topic: TopicImage | None = None


@dataclass(frozen=True, slots=True)
class _Defaults:
    """The values that hold where a request leaves the choice to the broker."""

    image: MetadataImage
    broker_configs: Mapping[str, str]
    node: BrokerId | None

    @property
    def partitions(self) -> int:
        return self._value("num.partitions").number()

    def replication_factor(self, live: int) -> int:
        """Return the configured factor; where nobody set it, at most the number of live brokers."""
        value = self._value("default.replication.factor")
        return min(value.number(), max(live, 1)) if value.is_default else value.number()

    def desired_replicas(self, request: NewTopic, made_with: int) -> int:
        """Return the replicas that a topic shall have whose partitions were placed with `made_with` of them."""
        if self.image.shares_logs:
            return made_with
        if request.desired_replicas is not None:
            return request.desired_replicas
        is_chosen = request.replication_factor == DEFAULT and request.assignments is None
        return self._value("default.replication.factor").number() if is_chosen else made_with

    def _value(self, key: str) -> ConfigValue:
        return broker_value(self.image, self.broker_configs, key, node=self.node)


def topic_id_of(bits: int) -> TopicId | None:
    """Return a topic id from 128 random bits. None where it would begin with `-` in base64, the form in which Kafka's
    tools print ids."""
    drawn = TopicId(uuid.UUID(int=bits, version=4))
    return None if drawn.bytes[0] >> 2 == 62 else drawn


def create_topics(
    image: MetadataImage,
    requests: Sequence[NewTopic],
    *,
    broker_configs: Mapping[str, str],
    node: BrokerId | None = None,
    validate_only: bool = False,
) -> Decision[list[TopicOutcome]]:
    """Return one outcome for each request, in order. The defaults are those of broker `node`, started with
    `broker_configs`."""
    defaults = _Defaults(image, broker_configs, node)
    named = Counter(request.name for request in requests)
    placement, names = Placement(image), NamesTaken(image)
    events: list[MetadataEvent] = []
    outcomes = []
    room = PARTITIONS_PER_REQUEST_MAX
    for request in requests:
        if named[request.name] > 1:
            verdict: TopicCreated | Refusal = Refusal(
                ErrorCode.INVALID_REQUEST, f"Topic '{request.name}' is in the request more than once."
            )
        else:
            verdict = _name_refusal(image, request.name, names) or _create_topic(
                image, request, placement, defaults, room
            )
        if isinstance(verdict, TopicCreated):
            names.take(request.name)
            room -= len(verdict.partitions)
            events.append(verdict)
        outcomes.append(_created(request, verdict))
    return Decision(() if validate_only else tuple(events), outcomes)


def _name_refusal(image: MetadataImage, name: str, names: NamesTaken) -> Refusal | None:
    if problem := topic_name_problem(name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if image.topic(name) is not None:
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if problem := names.problem(name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    return None


def _create_topic(
    image: MetadataImage, request: NewTopic, placement: Placement, defaults: _Defaults, room: int
) -> TopicCreated | Refusal:
    if problem := topic_config_problem(request.configs):
        return Refusal(ErrorCode.INVALID_CONFIG, problem)
    configs = kept_topic_configs(request.configs)
    if problem := topic_config_conflict(image, configs):
        return Refusal(ErrorCode.INVALID_CONFIG, problem)
    if request.assignments is not None and image.shares_logs:
        return shared_logs.unassignable(image, request.name)
    if request.assignments is not None:
        partitions = _assigned_topic(request, request.assignments, placement, room)
    else:
        partitions = _placed_topic(request, placement, defaults, room)
    if isinstance(partitions, Refusal):
        return partitions
    return TopicCreated(
        topic_id=request.topic_id,
        name=request.name,
        partitions=partitions,
        configs=configs,
        desired_replicas=defaults.desired_replicas(request, partitions[0].replication_factor),
    )


def _placed_topic(
    request: NewTopic, placement: Placement, defaults: _Defaults, room: int
) -> tuple[PartitionImage, ...] | Refusal:
    count, factor, live = request.partitions, request.replication_factor, len(placement.live)
    if count == DEFAULT:
        count = defaults.partitions
    if count <= 0:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"Number of partitions must be larger than 0, not {count}.")
    if factor == DEFAULT:
        factor = defaults.replication_factor(live)
    if factor <= 0:
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"Replication factor must be larger than 0, not {factor}.")
    if not live:
        return no_live_broker()
    if placement.shares_logs:
        factor = 1
    if factor > live:
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is larger than the number of live brokers, {live}.",
        )
    if count > room:
        return too_many_partitions()
    return tuple(placement.place(index, factor) for index in range(count))


def _assigned_topic(
    request: NewTopic, assignments: Sequence[tuple[int, tuple[BrokerId, ...]]], placement: Placement, room: int
) -> tuple[PartitionImage, ...] | Refusal:
    if request.partitions != DEFAULT or request.replication_factor != DEFAULT:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            "A topic with an assignment of replicas takes -1 for its partitions and its replication factor.",
        )
    ordered = [replicas for _, replicas in sorted(assignments)]
    if sorted(index for index, _ in assignments) != list(range(len(assignments))):
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be assigned from 0 on, each of them once."
        )
    if len(assignments) > room:
        return too_many_partitions()
    if problem := assignment_problem(ordered, placement, len(ordered[0])):
        return problem
    return tuple(placement.assign(index, replicas) for index, replicas in enumerate(ordered))


def assignment_problem(
    assignments: Sequence[tuple[BrokerId, ...]], placement: Placement, replication_factor: int
) -> Refusal | None:
    """Return why partitions cannot have these replicas; None where they can."""
    for replicas in assignments:
        problem = None
        if not replicas:
            problem = "A partition needs at least one replica."
        elif len(set(replicas)) < len(replicas):
            problem = f"Broker ids are repeated in the assignment {list(replicas)}."
        elif unknown := [broker for broker in replicas if broker not in placement.registered]:
            problem = f"Broker {unknown[0]} in the assignment {list(replicas)} is not registered."
        elif placement.live.isdisjoint(replicas):
            problem = f"None of the brokers in the assignment {list(replicas)} is alive."
        elif len(replicas) != replication_factor:
            problem = f"The assignment {list(replicas)} has not {replication_factor} replicas, as other partitions do."
        if problem is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return None


def no_live_broker() -> Refusal:
    """Return the refusal where nothing can be placed now."""
    return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, "No broker is alive that could hold a partition: start one.")


def too_many_partitions() -> Refusal:
    """Return the refusal of more partitions than one request may create."""
    return Refusal(
        ErrorCode.POLICY_VIOLATION, f"One request makes at most {PARTITIONS_PER_REQUEST_MAX} partitions: split it."
    )


def _created(request: NewTopic, verdict: TopicCreated | Refusal) -> TopicOutcome:
    if isinstance(verdict, Refusal):
        return TopicOutcome(name=request.name, refusal=verdict)
    topic = TopicImage(
        name=verdict.name,
        id=verdict.topic_id,
        partitions=verdict.partitions,
        configs=immutables.Map(verdict.configs),
        desired_replicas=verdict.desired_replicas,
    )
    return TopicOutcome(name=topic.name, topic_id=topic.id, topic=topic)
