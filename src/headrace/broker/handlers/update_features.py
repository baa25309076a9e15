"""UpdateFeatures: raises the cluster's feature level, `headrace.version` (KIP-584). Kafka's own features have one level
each: any other is INVALID_UPDATE_VERSION.

One refused feature refuses the request, as on Kafka. v1 upgrade types and `validate_only` (KIP-778); v2 has no results
for single features. A level is never lowered, whatever the type.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.brokers import FinalizeLevel
from headrace.controller.decision import Refusal
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.features import HEADRACE, UPDATE_FAILED, UPGRADE, update_problem
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE_TYPES_VERSION: Final = 1


async def handle(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    for update in request.feature_updates:
        if problem := update_problem(update.feature, update.max_version_level, _type(update, context)):
            return _refused(Refusal(ErrorCode.INVALID_UPDATE_VERSION, problem))
    for update in request.feature_updates:
        if update.feature == HEADRACE:
            ask = FinalizeLevel(
                level=update.max_version_level,
                may_fall=_type(update, context) != UPGRADE,
                validate_only=request.validate_only,
            )
            if (refusal := await submitted(context, ask, request.timeout_ms)) is not None:
                return _refused(refusal)
    results = (UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates)
    return UpdateFeaturesResponse(error_message=None, results=tuple(results))


def _type(update: FeatureUpdateKey, context: RequestContext) -> int:
    """Before v1 a flag says whether the level may fall; here the level alone decides."""
    return update.upgrade_type if context.version >= UPGRADE_TYPES_VERSION else UPGRADE


def _refused(refusal: Refusal) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=refusal.code, error_message=f"{UPDATE_FAILED}{refusal.message}")


HANDLER = Handler(
    int(ApiKey.UPDATE_FEATURES),
    (0, 2),
    handle,
    on_cluster(
        lambda _, error: UpdateFeaturesResponse(error_code=error, error_message=error.message), AclOperation.ALTER
    ),
)
