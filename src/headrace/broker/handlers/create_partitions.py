"""CreatePartitions: adds partitions to existing topics, numbered on from those they have.

`count` is the total that the topic shall have. v0 and v1 plain; v2 flexible; v3 errors of quotas (KIP-599).
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import BrokerId
from headrace.broker.requests.access import on_topics
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.bucket_quotas import EXCEEDED
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.topics import CreatePartitions, TopicAnswer
from headrace.controller.decision import Refusal
from headrace.controller.topic_changes import NewPartitions
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

STRICT_VERSION: Final = 3


async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    """Return one result for each topic, in the order of the request."""
    mutations = context.mutations(strict_from=STRICT_VERSION)
    topics = request.topics
    made, refused = (topics, ()) if request.validate_only else mutations.part(topics, lambda each: _size(each, context))
    wanted = tuple(await in_turns(map(_new_partitions, made)))
    throttled = tuple(_forbidden(topic, EXCEEDED) for topic in refused)
    if throttled and not wanted:
        return CreatePartitionsResponse(throttle_time_ms=mutations.wait_ms, results=throttled)
    ask = CreatePartitions(topics=wanted, validate_only=request.validate_only)
    answers = await submitted(context, ask, request.timeout_ms)
    if isinstance(answers, Refusal):
        refusal = answers
        answers = tuple(TopicAnswer(name=topic.name, refusal=refusal) for topic in wanted)
    results = (*await in_turns(map(_result, answers)), *throttled)
    return CreatePartitionsResponse(throttle_time_ms=mutations.wait_ms, results=results)


def _size(topic: CreatePartitionsTopic, context: RequestContext) -> int:
    """Return the number of partitions that the request would add."""
    known = context.image.topic(topic.name)
    return 0 if known is None else max(0, topic.count - len(known.partitions))


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        name=topic.name,
        count=topic.count,
        assignments=tuple(tuple(map(BrokerId, item.broker_ids)) for item in assignments) if assignments else None,
    )


def _result(answer: TopicAnswer) -> CreatePartitionsTopicResult:
    code, message = error_of(answer.refusal)
    return CreatePartitionsTopicResult(name=answer.name or "", error_code=code, error_message=message)


def _forbidden(topic: CreatePartitionsTopic, error: ErrorCode) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=topic.name, error_code=error, error_message=error.message)


HANDLER = Handler(
    int(ApiKey.CREATE_PARTITIONS),
    (0, 3),
    handle,
    on_topics(
        CreatePartitionsResponse,
        AclOperation.ALTER,
        _forbidden,
        answers="results",
    ),
)
