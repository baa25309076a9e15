"""CreateTopics: new topics, each refused or made on its own, all that are made in one entry.

Answered once the topics are in the committed image. A topic's configs come back with value, source and default flag.
v2 is the first; v4 -1 for the broker's own partition count and replication factor (KIP-464); v5 flexible, partitions,
factor and configs in the answer (KIP-525); v7 topic ids (KIP-516). `timeout_ms` is not used: a commit takes
milliseconds, or the broker stops. What is checked is in `headrace.controller.topics`.
"""

from __future__ import annotations

from headrace.base.ids import BrokerId
from headrace.broker.admin import error_of, new_topic_id, submitted
from headrace.broker.context import Handler, RequestContext
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic, TopicOutcome, create_topics
from headrace.metadata.configs import topic_values
from headrace.metadata.values import TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    """One result for each topic, in the order of the request."""
    wanted = [_new_topic(topic, context) for topic in request.topics]
    outcomes = await submitted(
        context,
        lambda image: create_topics(
            image,
            wanted,
            broker_configs=context.services.configs,
            node=context.services.node_id,
            validate_only=request.validate_only,
        ),
    )
    if isinstance(outcomes, Refusal):
        refusal = outcomes
        outcomes = [TopicOutcome(name=topic.name, refusal=refusal) for topic in wanted]
    return CreateTopicsResponse(topics=tuple(_result(outcome, context) for outcome in outcomes))


def _new_topic(topic: CreatableTopic, context: RequestContext) -> NewTopic:
    assigned = tuple(
        (assignment.partition_index, tuple(map(BrokerId, assignment.broker_ids))) for assignment in topic.assignments
    )
    return NewTopic(
        topic_id=new_topic_id(context.services.random),
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assigned or None,
        configs={config.name: config.value for config in topic.configs},
    )


def _result(outcome: TopicOutcome, context: RequestContext) -> CreatableTopicResult:
    code, message = error_of(outcome.refusal)
    topic = outcome.topic
    if topic is None:
        return CreatableTopicResult(name=outcome.name or "", error_code=code, error_message=message)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        error_code=code,
        error_message=message,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=_configs(topic, context) if context.version >= 5 else (),
    )


def _configs(topic: TopicImage, context: RequestContext) -> tuple[CreatableTopicConfigs, ...]:
    services = context.services
    values = topic_values(
        services.metadata.image,
        topic.configs,
        services.configs,
        node=services.node_id,
        replicas=len(topic.partitions[0].replicas),
    )
    return tuple(
        CreatableTopicConfigs(
            name=value.key, value=value.value, read_only=value.read_only, config_source=int(value.source)
        )
        for value in values.values()
    )


HANDLER = Handler(int(ApiKey.CREATE_TOPICS), (2, 7), handle)
