"""Answers that refuse a whole request with one error, put together from the request alone.

Where the protocol has an error for each topic or partition, every one that the request names gets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from headrace.base.errors import UsageError
from headrace.wire.apis import Api, ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.catalog import FACTS


class Shape(NamedTuple):
    """Where a request names topics and partitions, and where its response has their errors."""

    topics: str
    answers: str
    partitions: str = ""
    """Empty: the error is the topic's."""
    results: str = ""
    number: str = ""
    """The field with the number of a partition; empty: the partition is its number."""
    error: str = "error_code"
    answered: str = "partition_index"


_BY_PARTITION: Final = Shape("topics", "topics", "partitions", "partitions", "partition_index")
SHAPES: Final = {
    ApiKey.PRODUCE: Shape(
        "topic_data", "responses", "partition_data", "partition_responses", "index", answered="index"
    ),
    ApiKey.FETCH: Shape("topics", "responses", "partitions", "partitions", "partition"),
    ApiKey.LIST_OFFSETS: _BY_PARTITION,
    ApiKey.OFFSET_COMMIT: _BY_PARTITION,
    ApiKey.TXN_OFFSET_COMMIT: _BY_PARTITION,
    ApiKey.DELETE_RECORDS: _BY_PARTITION,
    ApiKey.OFFSET_DELETE: _BY_PARTITION,
    ApiKey.ADD_PARTITIONS_TO_TXN: Shape(
        "v3_and_below_topics",
        "results_by_topic_v3_and_below",
        "partitions",
        "results_by_partition",
        error="partition_error_code",
    ),
    ApiKey.CREATE_TOPICS: Shape("topics", "topics"),
    ApiKey.CREATE_PARTITIONS: Shape("topics", "results"),
    ApiKey.DELETE_TOPICS: Shape("topics", "responses"),
    ApiKey.METADATA: Shape("topics", "topics"),
}


def named_partitions(api: Api, request: Any) -> Iterator[tuple[Any, int | None]]:
    """Each topic that the request names, as an element with a name or an id, with each of its partitions. None: it
    names the topic alone."""
    shape = SHAPES.get(api.key)
    for topic in () if shape is None else getattr(request, shape.topics) or ():
        if shape is None or not shape.partitions:
            yield topic, None
            continue
        for partition in getattr(topic, shape.partitions):
            yield topic, getattr(partition, shape.number) if shape.number else partition


def refusal(api: Api, request: Any, error: ErrorCode) -> Any:
    """The response that refuses all of the request. Raises UsageError where the API's response has no error."""
    response = _response_class(api)
    if api.key == ApiKey.FIND_COORDINATOR:
        (coordinator,) = get_args(get_type_hints(response)["coordinators"])[:1]
        keyed = tuple(coordinator(key=key, node_id=-1, error_code=error) for key in request.coordinator_keys)
        return response(error_code=error, node_id=-1, coordinators=keyed)
    if api.key == ApiKey.OFFSET_FETCH:
        (group,) = get_args(get_type_hints(response)["groups"])[:1]
        groups = tuple(group(group_id=each.group_id, error_code=error) for each in request.groups)
        return response(error_code=error, groups=groups)
    if api.key == ApiKey.DELETE_TOPICS and request.topic_names:  # before version 6
        (deleted,) = get_args(get_type_hints(response)["responses"])[:1]
        return response(responses=tuple(deleted(name=name, error_code=error) for name in request.topic_names))
    if api.key in SHAPES:
        return _by_topic(response, SHAPES[api.key], request, error)
    if "error_code" not in response._fields:
        raise UsageError(f"The response of {api.name} has no error of its own: use `control` to answer it.")
    return response(error_code=error)


def _by_topic(response: Any, shape: Shape, request: Any, error: ErrorCode) -> Any:
    (answer,) = get_args(get_type_hints(response)[shape.answers])[:1]
    topics: Iterable[Any] = getattr(request, shape.topics) or ()
    made = []
    for topic in topics:
        same = {name: getattr(topic, name) for name in ("name", "topic", "topic_id") if name in topic._fields}
        same = {name: value for name, value in same.items() if name in answer._fields}
        if not shape.partitions:
            made.append(answer(**same, **{shape.error: error}))
            continue
        (result,) = get_args(get_type_hints(answer)[shape.results])[:1]
        each = (getattr(part, shape.number) if shape.number else part for part in getattr(topic, shape.partitions))
        results = tuple(result(**{shape.answered: index, shape.error: error}) for index in each)
        made.append(answer(**same, **{shape.results: results}))
    return response(**{shape.answers: tuple(made)})


def _response_class(api: Api) -> Any:
    """The class of the API's responses."""
    (module,) = (facts[-1] for facts in FACTS if facts[0] == api.key)
    return getattr(import_module(f"headrace.wire.messages.{module}"), f"{api.name}Response")
