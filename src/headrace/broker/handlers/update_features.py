"""UpdateFeatures: accepts the level that a feature has; any other is INVALID_UPDATE_VERSION (KIP-584).

Nothing changes, so the answer comes at once, whatever `timeout_ms`. One refused feature refuses the request, as on
Kafka. v1 upgrade types and `validate_only` (KIP-778); v2 has no results for single features.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.metadata.features import update_problem
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE_TYPES_VERSION: Final = 1
UPGRADE: Final = 1


def handle(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    for update in request.feature_updates:
        if problem := _problem(update, context.version):
            message = f"The update failed for all features since the following feature had an error: {problem}"
            return UpdateFeaturesResponse(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=message)
    results = (UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates)
    return UpdateFeaturesResponse(error_message=None, results=tuple(results))


def _problem(update: FeatureUpdateKey, version: int) -> str | None:
    """Return why an update is refused; None: it is not. Before v1 a flag says whether the level may fall; here the
    level alone decides."""
    upgrade_type = update.upgrade_type if version >= UPGRADE_TYPES_VERSION else UPGRADE
    return update_problem(update.feature, update.max_version_level, upgrade_type)


HANDLER = Handler(
    int(ApiKey.UPDATE_FEATURES),
    (0, 2),
    handle,
    on_cluster(
        lambda _, error: UpdateFeaturesResponse(error_code=error, error_message=error.message), AclOperation.ALTER
    ),
)
