"""ApiVersions: lists the APIs of this broker, and the cluster's features (KIP-584).

v0-v2 plain. v3 flexible, features, and the client's software name and version: INVALID_REQUEST where they are not of
Kafka's form (KIP-511). v4 has features that may be at level 0, too: Java 3.x does not read these (KAFKA-17492). A
request of an unknown version is answered in v0 with UNSUPPORTED_VERSION and the versions of ApiVersions alone. So the
client can step down.

Produce is advertised from version 0 on, as by Apache Kafka 4: librdkafka derives its features from that range
(KAFKA-18659). Versions below 3 are not served.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headrace.broker.requests.access import anyone
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.features import FEATURES, HEADRACE
from headrace.metadata.levels import METADATA_LEVEL, METADATA_LEVEL_MIN
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

ADVERTISED_FROM = {int(ApiKey.PRODUCE): 0}
SOFTWARE_VERSION: Final = 3
LEVEL_0_VERSION: Final = 4
SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """Return the list; ApiVersions alone, under UNSUPPORTED_VERSION, where the request's own version is not known."""
    served = context.services.api_versions
    if context.version < 0:
        own = int(ApiKey.API_VERSIONS)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(_advertised(own, served[own]),))
    if context.version >= SOFTWARE_VERSION and not _is_well_formed(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=tuple(_advertised(key, versions) for key, versions in sorted(served.items())),
        supported_features=tuple(_supported(context)),
        finalized_features_epoch=context.image.index,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in (*FEATURES.items(), (HEADRACE, context.image.level))
            if level > 0
        ),
    )


def _supported(context: RequestContext) -> Iterator[SupportedFeatureKey]:
    """Yield the features of Kafka's own, which have one level each, and the levels that this broker has registered."""
    for name, level in FEATURES.items():
        yield SupportedFeatureKey(name=name, min_version=level, max_version=level)
    known = context.image.brokers.get(context.services.node_id)
    lowest, highest = (METADATA_LEVEL_MIN, METADATA_LEVEL) if known is None else (known.level_min, known.level)
    if highest > 0 and (lowest > 0 or context.version >= LEVEL_0_VERSION):
        yield SupportedFeatureKey(name=HEADRACE, min_version=lowest, max_version=highest)


def _advertised(key: int, versions: tuple[int, int]) -> ApiVersion:
    lowest, highest = versions
    return ApiVersion(api_key=key, min_version=ADVERTISED_FROM.get(key, lowest), max_version=highest)


def _is_well_formed(request: ApiVersionsRequest) -> bool:
    software = (request.client_software_name, request.client_software_version)
    return all(SOFTWARE.fullmatch(text) is not None for text in software)


HANDLER = Handler(int(ApiKey.API_VERSIONS), (0, 4), handle, anyone)
