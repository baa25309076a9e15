"""DescribeCluster: the cluster's id, its controller (KIP-700), and its brokers that the client's listener reaches.

v1 endpoint types (KIP-919): a broker answers for brokers only; v2 fenced brokers where asked for (KIP-1073).
"""

from __future__ import annotations

from headrace.broker.requests.access import as_it_goes
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.topic_answers import cluster_operations, controller_id
from headrace.metadata.values import BrokerImage, Endpoint
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2


def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    """Answer from the image alone."""
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="This endpoint is a broker's: ask it for brokers, endpoint type 1.",
            endpoint_type=request.endpoint_type,
        )
    brokers = sorted(context.image.brokers.values(), key=lambda broker: broker.id)
    wanted = [broker for broker in brokers if request.include_fenced_brokers or not broker.fenced]
    told = ((broker, broker.endpoint(context.listener)) for broker in wanted)
    return DescribeClusterResponse(
        cluster_id=context.services.controller.cluster_id,
        controller_id=controller_id(context, context.image),
        brokers=tuple(_broker(broker, endpoint) for broker, endpoint in told if endpoint is not None),
        cluster_authorized_operations=cluster_operations(context, asked=request.include_cluster_authorized_operations),
    )


def _broker(broker: BrokerImage, endpoint: Endpoint) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=broker.fenced
    )


HANDLER = Handler(int(ApiKey.DESCRIBE_CLUSTER), (0, 2), handle, as_it_goes)
