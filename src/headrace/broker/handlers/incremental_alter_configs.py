"""IncrementalAlterConfigs: sets, removes, appends to or subtracts from single configs of topics and brokers (KIP-339).

The changes are in force when the answer is sent. Each resource changes whole or not at all. v1 flexible. The configs
that may be set are in `headrace.metadata.config_table`, the checks in `headrace.controller.configs`.
"""

from __future__ import annotations

from headrace.broker.requests.access import config_problem, on_items
from headrace.broker.requests.admin import error_of, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.configs import AlterConfigs
from headrace.controller.configs import Alteration, ResourceAlteration
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Return one result for each resource, in the order of the request."""
    wanted = tuple(await in_turns(map(_alteration, request.resources)))
    answers = await submitted(context, AlterConfigs(resources=wanted, validate_only=request.validate_only))
    refusals = (answers,) * len(wanted) if isinstance(answers, Refusal) else answers
    return IncrementalAlterConfigsResponse(responses=tuple(await in_turns(map(_result, wanted, refusals))))


def _alteration(resource: AlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource.resource_type,
        resource.resource_name,
        tuple(Alteration(config.name, config.config_operation, config.value) for config in resource.configs),
    )


def _result(resource: ResourceAlteration, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    code, message = error_of(refusal)
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message, resource_type=resource.kind, resource_name=resource.name
    )


HANDLER = Handler(
    int(ApiKey.INCREMENTAL_ALTER_CONFIGS),
    (0, 1),
    handle,
    on_items(
        IncrementalAlterConfigsResponse,
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
