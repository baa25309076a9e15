"""The check that each API states with its handler: which rights a request needs, and how the lack of one is answered.

Promises:
- A handler gets the part of a request that its client has the rights for. The rest is answered by the error of the
  resource's kind, as on Kafka.
- Where no authorizer is set, no check is made.
- A request that names very much is checked in slices, and others have their turn of the event loop between them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

from headrace.base.ids import TopicId
from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.requests.context import Access, Admitted, Checked, Refused, RequestContext, Slices
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
    in_slices: bool = True,
) -> Access:
    """Access to those topics of the request that the client may do this to. See `on_each`."""
    name_of = name_of or by_name
    return on_each(
        response,
        ResourceType.TOPIC,
        operation,
        refuse,
        items=items,
        answers=answers,
        name_of=name_of,
        in_slices=in_slices,
    )


def on_each(
    response: Respond,
    kind: ResourceType,
    operation: AclOperation,
    refuse: Refuse,
    *,
    items: str,
    answers: str,
    name_of: NameOf,
    in_slices: bool = True,
) -> Access:
    """Access to those of the request's `items` that the client may do this to. `items` and `answers` name fields of the
    request and of the response, which are tuples. `in_slices`: False where requests are handled in the order in which
    they came, while others are under way. Then only those of which that is not true (`is_long`) are cut."""

    def problem(item: Any, context: RequestContext) -> ErrorCode | None:
        name = name_of(item, context)
        return None if name is None or context.rights.may(operation, kind, name) else DENIED[kind]

    return on_items(response, problem, refuse, items=items, answers=answers, in_slices=in_slices)


def on_items(
    response: Respond,
    problem: Callable[[Any, RequestContext], ErrorCode | None],
    refuse: Refuse,
    *,
    items: str,
    answers: str,
    in_slices: bool = True,
) -> Access:
    """Access to those of the request's `items` that have no problem. The answers of the others come last. Where none is
    left, nothing is handled, and `response` makes the answer. `in_slices`: see `on_each`."""

    def checked(request: Any, context: RequestContext) -> Slices:
        allowed, refused = list[Any](), list[Any]()
        for number, item in enumerate(getattr(request, items) or (), 1):
            error = problem(item, context)
            if error is None:
                allowed.append(item)
            else:
                refused.append(refuse(item, error))
            if number % NAMES_PER_TURN_MAX == 0 and (in_slices or context.is_long):
                yield None
        answer = tuple(refused)
        if not answer:
            return Admitted(request)
        if not allowed:
            return Refused(response(**{answers: answer}))
        return Admitted(request._replace(**{items: tuple(allowed)}), lambda given: with_more(given, answers, answer))

    return lambda request, context: at_once_or(checked(request, context))


def at_once_or(slices: Slices) -> Checked:
    """The result, where there is but one slice; else the rest of them."""
    try:
        next(slices)
    except StopIteration as stop:
        found: Admitted | Refused = stop.value
        return found
    return slices


def with_more(response: Any, field: str, more: tuple[Any, ...]) -> Any:
    """The response with more answers in this field."""
    return response if response is None else response._replace(**{field: (*getattr(response, field), *more)})


def in_turn(*accesses: Access) -> Access:
    """Access by all of them; each gets what the one before has admitted."""

    def checked(request: Any, context: RequestContext) -> Slices:
        finishes: list[Finish] = []
        for each in accesses:
            found = each(request, context)
            if isinstance(found, Generator):
                found = yield from found
            if isinstance(found, Refused):
                return Refused(_finished(found.response, finishes))
            request = found.request
            if found.finish is not None:
                finishes.append(found.finish)
        return Admitted(request, (lambda response: _finished(response, finishes)) if finishes else None)

    return lambda request, context: at_once_or(checked(request, context))


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
