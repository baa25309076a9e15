"""DeleteTopics: topics by name or by id, gone from the image when answered; their files follow.

An unknown name is error 3, "Topic 'x' does not exist"; an unknown id UNKNOWN_TOPIC_ID. v1 is the first; v4 flexible; v5
error messages; v6 by id too (KIP-516). `timeout_ms` is not used, as in CreateTopics.
"""

from __future__ import annotations

from headrace.base.ids import NO_TOPIC_ID, TopicId
from headrace.broker.admin import error_of, submitted
from headrace.broker.context import Handler, RequestContext
from headrace.controller.decision import Refusal
from headrace.controller.topic_changes import TopicRef, delete_topics
from headrace.controller.topics import TopicOutcome
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """One result for each topic: first those that no topic can be meant by, then the others in their order."""
    states = request.topics or tuple(DeleteTopicState(name=name) for name in request.topic_names)
    bad = [state for state in states if (state.name is None) == (state.topic_id == NO_TOPIC_ID)]
    wanted = [TopicRef(name=state.name, topic_id=TopicId(state.topic_id)) for state in states if state not in bad]
    services = context.services
    outcomes = await submitted(
        context,
        lambda image: delete_topics(image, wanted, broker_configs=services.configs, node=services.node_id),
    )
    if isinstance(outcomes, Refusal):
        refusal = outcomes
        outcomes = [TopicOutcome(name=ref.name, topic_id=ref.topic_id, refusal=refusal) for ref in wanted]
    return DeleteTopicsResponse(responses=(*map(_unclear, bad), *map(_result, outcomes)))


def _unclear(state: DeleteTopicState) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name,
        topic_id=state.topic_id,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="A topic to delete is given by its name or by its id, not by both and not by neither.",
    )


def _result(outcome: TopicOutcome) -> DeletableTopicResult:
    code, message = error_of(outcome.refusal)
    return DeletableTopicResult(name=outcome.name, topic_id=outcome.topic_id, error_code=code, error_message=message)


HANDLER = Handler(int(ApiKey.DELETE_TOPICS), (1, 6), handle)
