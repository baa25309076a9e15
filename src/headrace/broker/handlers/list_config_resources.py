"""ListConfigResources: lists the resources that have configs, by type (KIP-1142).

These are topics, brokers, and groups that have configs of their own. There are no subscriptions to client metrics and
no configs of loggers, so none is listed. An unknown type is UNSUPPORTED_VERSION, as on Kafka.

- v0: asks for client metrics alone (KIP-714).
- v1: names the types; an empty list means all.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.configs import ResourceType
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
    """List each type once, by its number; names are sorted."""
    if context.version == 0:
        return ListConfigResourcesResponse()
    known = set(ResourceType)
    wanted = set(request.resource_types) or known
    if not wanted <= known:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=int(kind))
            for kind in ResourceType
            if kind in wanted
            for name in _names(kind, context)
        )
    )


def _names(kind: ResourceType, context: RequestContext) -> Iterable[str]:
    match kind:
        case ResourceType.TOPIC:
            return context.image.topic_names()
        case ResourceType.BROKER:
            return map(str, sorted(context.image.brokers))
        case ResourceType.GROUP:
            return sorted(context.image.group_configs)
        case _:
            return ()


HANDLER = Handler(
    int(ApiKey.LIST_CONFIG_RESOURCES),
    (0, 1),
    handle,
    on_cluster(lambda _, error: ListConfigResourcesResponse(error_code=error), AclOperation.DESCRIBE_CONFIGS),
)
