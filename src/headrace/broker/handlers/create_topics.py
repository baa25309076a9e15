"""CreateTopics: creates topics. Each is refused or created on its own, and all that are created share one log entry.

The answer is sent once the topics are in this broker's image, whichever broker is the controller. It has a topic's
configs with value, source and default flag. `timeout_ms` bounds the wait for a controller. The checks are in
`headrace.controller.topics`.

- v2 is the first.
- v4: -1 for the broker's own partition count and replication factor (KIP-464).
- v5: flexible; partitions, factor and configs in the answer (KIP-525).
- v7: topic ids (KIP-516).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.base.ids import BrokerId
from headrace.base.limits import RESOURCES_PER_TURN_MAX
from headrace.broker.requests.access import on_items
from headrace.broker.requests.admin import error_of, new_topic_id, submitted
from headrace.broker.requests.bucket_quotas import EXCEEDED
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.topics import CreateTopics, TopicAnswer
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.configs import broker_value, topic_values
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

STRICT_VERSION: Final = 6


async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    """Return one result for each topic, in the order of the request."""
    mutations = context.mutations(strict_from=STRICT_VERSION)
    topics = request.topics
    made, refused = (topics, ()) if request.validate_only else mutations.part(topics, lambda each: _size(each, context))
    wanted = tuple(await in_turns(_new_topic(topic, context) for topic in made))
    throttled = tuple(_forbidden(topic, EXCEEDED) for topic in refused)
    if throttled and not wanted:
        return CreateTopicsResponse(throttle_time_ms=mutations.wait_ms, topics=throttled)
    ask = CreateTopics(topics=wanted, validate_only=request.validate_only)
    answers = await submitted(context, ask, request.timeout_ms)
    if isinstance(answers, Refusal):
        refusal = answers
        answers = tuple(TopicAnswer(name=topic.name, refusal=refusal) for topic in wanted)
    results = await in_turns((_result(answer, context) for answer in answers), RESOURCES_PER_TURN_MAX)
    return CreateTopicsResponse(throttle_time_ms=mutations.wait_ms, topics=(*results, *throttled))


def _size(topic: CreatableTopic, context: RequestContext) -> int:
    """Return the number of partitions that the request would create."""
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions >= 0:
        return topic.num_partitions
    services = context.services
    return broker_value(context.image, services.configs, "num.partitions", node=services.node_id).number()


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


def _result(answer: TopicAnswer, context: RequestContext) -> CreatableTopicResult:
    code, message = error_of(answer.refusal)
    name, configs = answer.name or "", answer.configs
    if configs is None:
        return CreatableTopicResult(name=name, error_code=code, error_message=message)
    if not context.rights.may(
        AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name
    ):  # it is made, and no more is told
        forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return CreatableTopicResult(
            name=name,
            topic_id=answer.topic_id,
            error_code=code,
            error_message=message,
            topic_config_error_code=forbidden if context.version >= 5 else 0,
            configs=None if context.version >= 5 else (),
        )
    return CreatableTopicResult(
        name=name,
        topic_id=answer.topic_id,
        error_code=code,
        error_message=message,
        num_partitions=answer.partitions,
        replication_factor=answer.replication_factor * context.services.partitions.kept_copies,
        configs=_configs(configs, answer.replication_factor, context) if context.version >= 5 else (),
    )


def _configs(configs: Mapping[str, str], replicas: int, context: RequestContext) -> tuple[CreatableTopicConfigs, ...]:
    services = context.services
    values = topic_values(services.metadata.image, configs, services.configs, node=services.node_id, replicas=replicas)
    return tuple(
        CreatableTopicConfigs(
            name=value.key, value=value.value, read_only=value.read_only, config_source=int(value.source)
        )
        for value in values.values()
    )


def _problem(topic: CreatableTopic, context: RequestContext) -> ErrorCode | None:
    """Return the error for a client that may create neither any topic nor this one."""
    rights = context.rights
    if rights.may(AclOperation.CREATE, ResourceType.CLUSTER) or rights.may(
        AclOperation.CREATE, ResourceType.TOPIC, topic.name
    ):
        return None
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _forbidden(topic: CreatableTopic, error: ErrorCode) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, error_code=error, error_message=error.message)


HANDLER = Handler(
    int(ApiKey.CREATE_TOPICS),
    (2, 7),
    handle,
    on_items(CreateTopicsResponse, _problem, _forbidden, items="topics", answers="topics"),
)
