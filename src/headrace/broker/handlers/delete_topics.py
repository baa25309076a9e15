"""DeleteTopics: deletes topics by name or id. They are gone from the image when the answer is sent; their files follow.

An unknown name is error 3, "Topic 'x' does not exist"; an unknown id UNKNOWN_TOPIC_ID. v1 is the first; v4 flexible; v5
error messages; v6 by id too (KIP-516). `timeout_ms` as in CreateTopics.

Rights are decided here, by the topics' names. The controller may know an id that is not known here. For a client that
may delete some topics, this broker first replays what the controller has. On Kafka the controller decides on rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final

from headrace.base.ids import NO_TOPIC_ID, TopicId
from headrace.broker.requests.access import by_name_or_id, on_items
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.bucket_quotas import EXCEEDED
from headrace.broker.requests.context import Admitted, Checked, Handler, Refused, RequestContext, Slices
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.brokers import ReadQuorum
from headrace.controller.asks.topics import DeleteTopics, TopicAnswer
from headrace.controller.decision import Refusal
from headrace.controller.topic_changes import TopicRef
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

STRICT_VERSION: Final = 5


async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Return one result for each topic: first those that name no topic clearly, then the others in their order."""
    states = request.topics or tuple(DeleteTopicState(name=name) for name in request.topic_names)
    bad = [state for state in states if not _names_one(state)]
    mutations = context.mutations(strict_from=STRICT_VERSION)
    good = [state for state in states if _names_one(state)]
    gone, refused = mutations.part(good, lambda state: _size(state, context))
    throttled = [_forbidden(state, EXCEEDED) for state in refused]
    wanted = tuple(TopicRef(name=state.name, topic_id=TopicId(state.topic_id)) for state in gone)
    if throttled and not wanted:
        return DeleteTopicsResponse(throttle_time_ms=mutations.wait_ms, responses=(*map(_unclear, bad), *throttled))
    answers = await submitted(context, DeleteTopics(topics=wanted), request.timeout_ms)
    if isinstance(answers, Refusal):
        refusal = answers
        answers = tuple(TopicAnswer(name=ref.name, topic_id=ref.topic_id, refusal=refusal) for ref in wanted)
    results = (*map(_unclear, bad), *await in_turns(map(_result, answers)), *throttled)
    return DeleteTopicsResponse(throttle_time_ms=mutations.wait_ms, responses=results)


def _names_one(state: DeleteTopicState) -> bool:
    """Whether it names a topic clearly: by its name or its id."""
    return (state.name is None) != (state.topic_id == NO_TOPIC_ID)


def _size(state: DeleteTopicState, context: RequestContext) -> int:
    """Return the number of partitions that would go."""
    image = context.image
    known = image.topic(state.name) if state.name is not None else image.topic_by_id(TopicId(state.topic_id))
    return 0 if known is None else len(known.partitions)


def _unclear(state: DeleteTopicState) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name,
        topic_id=state.topic_id,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="A topic to delete is given by its name or by its id, not by both and not by neither.",
    )


def _result(answer: TopicAnswer) -> DeletableTopicResult:
    code, message = error_of(answer.refusal)
    return DeletableTopicResult(name=answer.name, topic_id=answer.topic_id, error_code=code, error_message=message)


def _access(request: DeleteTopicsRequest, context: RequestContext) -> Checked:
    """Access to the topics that the client may delete. A name that it may not even describe is not told."""
    states = request.topics or tuple(DeleteTopicState(name=name) for name in request.topic_names)
    request = request._replace(topics=states, topic_names=())
    if _is_ahead(states, context) and context.rights.may_for_some(AclOperation.DELETE, ResourceType.TOPIC):
        return _once_known(request, context)
    return _on_states(request, context)


def _is_ahead(states: Sequence[DeleteTopicState], context: RequestContext) -> bool:
    """Whether the request has an id that is not known here."""
    return any(_names_one(state) and by_name_or_id(state, context) is None for state in states)


def _once_known(request: DeleteTopicsRequest, context: RequestContext) -> Slices:
    """As `_on_states`, by an image that has all topics that the controller knows."""
    reading = asyncio.ensure_future(submitted(context, ReadQuorum(), request.timeout_ms))
    yield reading
    if isinstance(refusal := reading.result(), Refusal):
        return Refused(DeleteTopicsResponse(responses=tuple(_refused(each, refusal) for each in request.topics)))
    newest = replace(context, image=context.services.metadata.image)
    found = _on_states(request, newest)
    if isinstance(found, Generator):
        found = yield from found
    return found._replace(context=newest) if isinstance(found, Admitted) else found


def _problem(state: DeleteTopicState, context: RequestContext) -> ErrorCode | None:
    name = by_name_or_id(state, context)
    if name is None:  # the controller may have learnt of the id meanwhile, and asks for no rights
        return ErrorCode.UNKNOWN_TOPIC_ID if _names_one(state) else None
    if context.rights.may(AclOperation.DELETE, ResourceType.TOPIC, name):
        return None
    if state.name is None and not context.rights.sees(ResourceType.TOPIC, name):
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refused(state: DeleteTopicState, refusal: Refusal) -> DeletableTopicResult:
    return _result(TopicAnswer(name=state.name, topic_id=TopicId(state.topic_id), refusal=refusal))


def _forbidden(state: DeleteTopicState, error: ErrorCode) -> DeletableTopicResult:
    return DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=error, error_message=error.message)


_on_states = on_items(DeleteTopicsResponse, _problem, _forbidden, items="topics", answers="responses")


HANDLER = Handler(int(ApiKey.DELETE_TOPICS), (1, 6), handle, _access)
