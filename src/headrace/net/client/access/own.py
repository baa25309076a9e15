"""The rights that this client's own user has on the cluster, as a broker tells them."""

from __future__ import annotations

from headrace.metadata.access.acls import AclOperation
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.messages.describe_cluster import DescribeClusterRequest


async def operations(cluster: Cluster) -> frozenset[AclOperation]:
    """The operations on the cluster that it may do. Where nobody decides by ACLs, all. Raises ClientError."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)

    async def ask() -> frozenset[AclOperation]:
        response = await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, request)
        check(response.error_code, "The cluster", response.error_message)
        bits = response.cluster_authorized_operations & 0xFFFFFFFF
        return frozenset(each for each in AclOperation if bits >> each & 1)

    return await cluster.retried(ask)
