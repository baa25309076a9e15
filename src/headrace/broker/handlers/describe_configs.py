"""DescribeConfigs: lists the configs of topics, brokers and groups, with the source of each value.

- Topics: all of theirs, as this broker sees them.
- A broker: its own, only where it is this one, for no other knows its static configs. The empty name stands for the
  dynamic defaults of all brokers.
- A group: its configs, whether or not a group of that name exists.

A secret is told to be sensitive, and has no value here. v1 synonyms and sources (KIP-226); v3 types and documentation
(KIP-569); v4 flexible. An empty list of keys means all, as null does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence

from headrace.base.limits import RESOURCES_PER_TURN_MAX
from headrace.broker.requests.access import config_problem, on_items
from headrace.broker.requests.admin import error_of
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.configs import ResourceType, named_broker
from headrace.controller.decision import Refusal
from headrace.controller.topic_names import topic_name_problem
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.configs import (
    BROKER_DEFS,
    ConfigSource,
    ConfigValue,
    broker_values,
    group_values,
    topic_values,
)
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(
    request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    """Return one result for each resource, in the order of the request. A resource that is named again is not answered
    again: an answer may be a thousand times as large as the name."""
    wanted = list(dict.fromkeys(request.resources))
    if len(wanted) > RESOURCES_PER_TURN_MAX:
        return _in_turns(wanted, request, context)
    return DescribeConfigsResponse(results=tuple(_result(resource, request, context) for resource in wanted))


async def _in_turns(
    wanted: Sequence[DescribeConfigsResource], request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Answer a few at a time; others have the event loop between them."""
    results = []
    for number, resource in enumerate(wanted):
        results.append(_result(resource, request, context))
        if number % RESOURCES_PER_TURN_MAX == 0:
            await asyncio.sleep(0)
    return DescribeConfigsResponse(results=tuple(results))


def _result(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResult:
    values = _values(resource, context)
    code, message = error_of(values if isinstance(values, Refusal) else None)
    wanted = () if isinstance(values, Refusal) else _chosen(values, resource.configuration_keys)
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_config(value, request) for value in wanted),
    )


def _chosen(values: Iterable[ConfigValue], keys: Sequence[str] | None) -> Iterable[ConfigValue]:
    return values if not keys else (value for value in values if value.key in keys)


def _values(resource: DescribeConfigsResource, context: RequestContext) -> Iterable[ConfigValue] | Refusal:
    match resource.resource_type:
        case ResourceType.TOPIC:
            return _topic_values(resource.resource_name, context)
        case ResourceType.BROKER:
            return _broker_values(resource.resource_name, context)
        case ResourceType.GROUP:
            return _group_values(resource.resource_name, context)
        case other:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Resources of type {other} have no configs here.")


def _group_values(name: str, context: RequestContext) -> Iterable[ConfigValue] | Refusal:
    if not name:
        return Refusal(ErrorCode.INVALID_REQUEST, "Configs are of one group: name it.")
    services = context.services
    return group_values(context.image, name, services.configs, node=services.node_id).values()


def _topic_values(name: str, context: RequestContext) -> Iterable[ConfigValue] | Refusal:
    if problem := topic_name_problem(name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    topic = context.image.topic(name)
    if topic is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist")
    services, replicas = context.services, topic.settled_replicas
    return topic_values(
        context.image, topic.configs, services.configs, node=services.node_id, replicas=replicas
    ).values()


def _broker_values(name: str, context: RequestContext) -> Iterable[ConfigValue] | Refusal:
    services = context.services
    broker_id = named_broker(context.image, name)
    if isinstance(broker_id, Refusal):
        return broker_id
    if broker_id is None:
        defaults = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [value for value in broker_values(context.image, {}).values() if value.source is defaults]
    if broker_id != services.node_id:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"The configs of broker {broker_id} are known to it alone: ask it, not broker {services.node_id}.",
        )
    values = broker_values(context.image, services.configs, node=broker_id)
    return (values | _addresses(context)).values()


def _addresses(context: RequestContext) -> dict[str, ConfigValue]:
    """Return the addresses that this broker has registered, under Kafka's name. `--advertise` and free ports are known
    there."""
    broker = context.image.brokers.get(context.services.node_id)
    if broker is None:
        return {}
    addresses = ",".join(f"{each.listener}://{each.address}" for each in broker.endpoints)
    source, key = ConfigSource.STATIC_BROKER_CONFIG, "advertised.listeners"
    definition = BROKER_DEFS[key]
    synonyms = ((key, addresses, source),)
    return {key: ConfigValue(key=key, value=addresses, source=source, definition=definition, synonyms=synonyms)}


def _config(value: ConfigValue, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = value.synonyms if request.include_synonyms else ()
    is_secret = value.definition.is_secret
    return DescribeConfigsResourceResult(
        name=value.key,
        value=None if is_secret else value.value,
        is_sensitive=is_secret,
        read_only=value.read_only,
        config_source=int(value.source),
        synonyms=tuple(
            DescribeConfigsSynonym(name=name, value=None if is_secret else text, source=int(source))
            for name, text, source in synonyms
        ),
        config_type=int(value.definition.type),
        documentation=value.definition.doc if request.include_documentation else None,
    )


HANDLER = Handler(
    int(ApiKey.DESCRIBE_CONFIGS),
    (1, 4),
    handle,
    on_items(
        DescribeConfigsResponse,
        config_problem(AclOperation.DESCRIBE_CONFIGS),
        lambda resource, error: DescribeConfigsResult(
            error_code=error,
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        ),
        items="resources",
        answers="results",
    ),
)
