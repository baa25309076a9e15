"""ApiVersions: what this broker serves.

v0-v2 plain, v3 flexible and with the client's software name; v4 fixes feature encoding for Java 3.x. A version that is
not known here is answered in v0 with UNSUPPORTED_VERSION and the list (KIP-511), so that the client can step down.

Produce is advertised from version 0 on, as Apache Kafka 4 does, since librdkafka decides by that range what it may
do (KAFKA-18659); versions below 3 are not served.
"""

from __future__ import annotations

from headrace.broker.context import Handler, RequestContext
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

ADVERTISED_FROM = {int(ApiKey.PRODUCE): 0}


def handle(_: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """The list, under UNSUPPORTED_VERSION where the request's own version was not known."""
    served = context.services.api_versions
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION if context.version < 0 else ErrorCode.NONE,
        api_keys=tuple(
            ApiVersion(api_key=key, min_version=ADVERTISED_FROM.get(key, lowest), max_version=highest)
            for key, (lowest, highest) in sorted(served.items())
        ),
    )


HANDLER = Handler(int(ApiKey.API_VERSIONS), (0, 4), handle)
