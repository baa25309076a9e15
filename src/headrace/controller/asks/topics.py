"""Requests to the controller about topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.base.ids import NO_TOPIC_ID, TopicId
from headrace.base.values import Value
from headrace.controller.asks.asking import Command, Setting
from headrace.controller.decision import Decision, Refusal
from headrace.controller.topic_changes import NewPartitions, TopicRef, create_partitions, delete_topics
from headrace.controller.topics import NewTopic, TopicOutcome, create_topics
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TopicAnswer(Value):
    """The outcome for one topic of a request. A topic that was created, or would be, is described."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID
    refusal: Refusal | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] | None = None

    @classmethod
    def of(cls, outcome: TopicOutcome, *, made: bool = False) -> TopicAnswer:
        topic = outcome.topic
        if topic is None or not made:
            return cls(name=outcome.name, topic_id=outcome.topic_id, refusal=outcome.refusal)
        return cls(
            name=topic.name,
            topic_id=topic.id,
            partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            configs=dict(topic.configs),
        )


TopicAnswers = tuple[TopicAnswer, ...]


def _answers(decision: Decision[list[TopicOutcome]], *, made: bool = False) -> Decision[TopicAnswers | Refusal]:
    return Decision(decision.events, tuple(TopicAnswer.of(outcome, made=made) for outcome in decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CreateTopics(Command[TopicAnswers]):
    """Create topics. One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False  # another may have deleted it meanwhile, and it would be there again
    SETTLED_FIRST: ClassVar[bool] = True
    topics: tuple[NewTopic, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        decision = create_topics(
            image,
            self.topics,
            broker_configs=setting.broker_configs,
            node=setting.node,
            validate_only=self.validate_only,
        )
        return _answers(decision, made=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopics(Command[TopicAnswers]):
    """Delete topics. One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False
    SETTLED_FIRST: ClassVar[bool] = True
    topics: tuple[TopicRef, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        return _answers(delete_topics(image, self.topics, broker_configs=setting.broker_configs, node=setting.node))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CreatePartitions(Command[TopicAnswers]):
    """Add partitions to topics. One answer for each topic, in order."""

    RESULT: ClassVar[Any] = TopicAnswers
    REPEATABLE: ClassVar[bool] = False
    SETTLED_FIRST: ClassVar[bool] = True
    topics: tuple[NewPartitions, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[TopicAnswers | Refusal]:
        return _answers(create_partitions(image, self.topics, validate_only=self.validate_only))
