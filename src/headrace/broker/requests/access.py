"""The check that each API states with its handler: which rights a request needs, and how the lack of one is answered.

Promises:
- A handler gets the part of a request that its client has the rights for. The rest is answered by the error of the
  resource's kind, as on Kafka.
- Where no authorizer is set, no check is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from headrace.base.ids import TopicId
from headrace.broker.requests.context import Access, Admitted, Refused, RequestContext
from headrace.broker.requests.rights import DENIED
from headrace.controller.configs import ResourceType as ConfigResource
from headrace.metadata.access.acls import CLUSTER_NAME, AclOperation, ResourceType
from headrace.wire.errors import ErrorCode

Finish: TypeAlias = Callable[[Any], Any]
"""Adds to the response what was refused. The response may be None: no answer is wanted."""


Respond: TypeAlias = Callable[..., Any]
"""Makes a response from some of its fields: its class."""
Refuse: TypeAlias = Callable[[Any, ErrorCode], Any]
"""Makes the answer to a request, or to an item of it, that may not be carried out."""
NameOf: TypeAlias = Callable[[Any, RequestContext], str | None]
"""The resource of an item; None: there is none that could be protected, and the handler says why."""


def anyone(request: Any, _: RequestContext) -> Admitted:
    """Access for every client. The API tells or changes nothing that is protected, or refuses by itself."""
    return Admitted(request)


def as_it_goes(request: Any, _: RequestContext) -> Admitted:
    """Access to an API whose handler asks for the rights itself, as it finds what the answer is about."""
    return Admitted(request)


def on_cluster(refuse: Refuse, *operations: AclOperation) -> Access:
    """Access for clients that may do one of the operations to the cluster."""
    return on_one(ResourceType.CLUSTER, lambda *_: CLUSTER_NAME, refuse, *operations)


def on_group(refuse: Refuse, operation: AclOperation) -> Access:
    """Access for clients that may do this to the request's `group_id`."""
    return on_one(ResourceType.GROUP, lambda request, _: request.group_id, refuse, operation)


def on_transaction(refuse: Refuse, operation: AclOperation = AclOperation.WRITE) -> Access:
    """Access for clients that may do this to the request's `transactional_id`, where it has one."""
    return on_one(ResourceType.TRANSACTIONAL_ID, lambda request, _: request.transactional_id, refuse, operation)


def on_one(kind: ResourceType, name_of: NameOf, refuse: Refuse, *operations: AclOperation) -> Access:
    """Access for clients that may do one of the operations to the one resource of the request."""

    def access(request: Any, context: RequestContext) -> Admitted | Refused:
        name = name_of(request, context)
        if name is None or any(context.rights.may(operation, kind, name) for operation in operations):
            return Admitted(request)
        return Refused(refuse(request, DENIED[kind]))

    return access


def on_topics(
    response: Respond,
    operation: AclOperation,
    refuse: Refuse,
    *,
    items: str = "topics",
    answers: str = "topics",
    name_of: NameOf | None = None,
) -> Access:
    """Access to those topics of the request that the client may do this to. See `on_each`."""
    name_of = name_of or by_name
    return on_each(response, ResourceType.TOPIC, operation, refuse, items=items, answers=answers, name_of=name_of)


def on_each(
    response: Respond,
    kind: ResourceType,
    operation: AclOperation,
    refuse: Refuse,
    *,
    items: str,
    answers: str,
    name_of: NameOf,
) -> Access:
    """Access to those of the request's `items` that the client may do this to. `items` and `answers` name fields of the
    request and of the response, which are tuples."""

    def problem(item: Any, context: RequestContext) -> ErrorCode | None:
        name = name_of(item, context)
        return None if name is None or context.rights.may(operation, kind, name) else DENIED[kind]

    return on_items(response, problem, refuse, items=items, answers=answers)


def on_items(
    response: Respond,
    problem: Callable[[Any, RequestContext], ErrorCode | None],
    refuse: Refuse,
    *,
    items: str,
    answers: str,
) -> Access:
    """Access to those of the request's `items` that have no problem. The answers of the others come last. Where none is
    left, nothing is handled, and `response` makes the answer."""

    def access(request: Any, context: RequestContext) -> Admitted | Refused:
        asked: Sequence[Any] | None = getattr(request, items)
        problems = [problem(item, context) for item in asked or ()]
        if asked is None or not any(problems):
            return Admitted(request)
        allowed = tuple(item for item, error in zip(asked, problems, strict=True) if error is None)
        refused = tuple(refuse(item, error) for item, error in zip(asked, problems, strict=True) if error is not None)
        if not allowed:
            return Refused(response(**{answers: refused}))
        return Admitted(request._replace(**{items: allowed}), lambda answer: with_more(answer, answers, refused))

    return access


def with_more(response: Any, field: str, more: tuple[Any, ...]) -> Any:
    """The response with more answers in this field."""
    return response if response is None else response._replace(**{field: (*getattr(response, field), *more)})


def in_turn(*accesses: Access) -> Access:
    """Access by all of them; each gets what the one before has admitted."""

    def access(request: Any, context: RequestContext) -> Admitted | Refused:
        finishes: list[Finish] = []
        for each in accesses:
            found = each(request, context)
            if isinstance(found, Refused):
                return Refused(_finished(found.response, finishes))
            request = found.request
            if found.finish is not None:
                finishes.append(found.finish)
        return Admitted(request, (lambda response: _finished(response, finishes)) if finishes else None)

    return access


def _finished(response: Any, finishes: Sequence[Finish]) -> Any:
    for finish in finishes:
        response = finish(response)
    return response


def by_name(item: Any, _: RequestContext) -> str:
    """`NameOf`: its `name`."""
    return str(item.name)


def by_topic(item: Any, _: RequestContext) -> str:
    """`NameOf`: its `topic`."""
    return str(item.topic)


def by_name_or_id(item: Any, context: RequestContext) -> str | None:
    """`NameOf`: its `name`, or that of the topic with its `topic_id`."""
    if item.name:
        return str(item.name)
    found = context.image.topic_by_id(TopicId(item.topic_id))
    return None if found is None else found.name


def itself(item: Any, _: RequestContext) -> str:
    """`NameOf`: the item."""
    return str(item)


def config_problem(operation: AclOperation) -> Callable[[Any, RequestContext], ErrorCode | None]:
    """Return a function: the error for a client that may not do this to the configs of a resource."""

    def problem(resource: Any, context: RequestContext) -> ErrorCode | None:
        kind = _CONFIGURED.get(resource.resource_type, ResourceType.CLUSTER)
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
        return None if context.rights.may(operation, kind, name) else DENIED[kind]

    return problem


_CONFIGURED: Final = {ConfigResource.TOPIC: ResourceType.TOPIC, ConfigResource.GROUP: ResourceType.GROUP}
"""The kind of the rights on the configs of a resource. Those of brokers, and all others, are the cluster's."""
