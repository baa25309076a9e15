"""AlterConfigs: sets all configs of a resource at once; a config that is not named goes back to its default (KIP-133).

IncrementalAlterConfigs supersedes it; it is kept for the clients that have only this one. v2 flexible.
"""

from __future__ import annotations

from headrace.broker.requests.access import config_problem, on_items
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.configs import AlterConfigs
from headrace.controller.configs import Alteration, AlterOp, ResourceAlteration
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    """Return one result for each resource, in the order of the request."""
    wanted = tuple(await in_turns(map(_alteration, request.resources)))
    ask = AlterConfigs(resources=wanted, replace_all=True, validate_only=request.validate_only)
    answers = await submitted(context, ask)
    refusals = (answers,) * len(wanted) if isinstance(answers, Refusal) else answers
    return AlterConfigsResponse(responses=tuple(await in_turns(map(_result, wanted, refusals))))


def _alteration(resource: AlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource.resource_type,
        resource.resource_name,
        tuple(Alteration(config.name, int(AlterOp.SET), config.value) for config in resource.configs),
    )


def _result(resource: ResourceAlteration, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    code, message = error_of(refusal)
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message, resource_type=resource.kind, resource_name=resource.name
    )


HANDLER = Handler(
    int(ApiKey.ALTER_CONFIGS),
    (0, 2),
    handle,
    on_items(
        AlterConfigsResponse,
        config_problem(AclOperation.ALTER_CONFIGS),
        lambda resource, error: AlterConfigsResourceResponse(
            error_code=error,
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        ),
        items="resources",
        answers="responses",
    ),
)
