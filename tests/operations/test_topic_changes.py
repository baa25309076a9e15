"""Plans of topics: each is carried out on the topic that was seen."""

from __future__ import annotations

import pytest

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import RefusedError
from headrace.operations.changes.topics import deletion
from headrace.testing import RunningBroker
from headrace.wire.errors import ErrorCode


async def test_a_topic_that_was_made_again_stays(headrace_broker: RunningBroker) -> None:
    async with Cluster(headrace_broker.bootstrap) as cluster:
        admin = Admin(cluster)
        await admin.create_topic("orders", partitions=1, replication_factor=1)
        plan = await deletion(cluster, "orders")
        await admin.delete_topic("orders")
        with pytest.raises(RefusedError, match="'orders': it was deleted since"):
            await plan.carry_out()
        made = await admin.create_topic("orders", partitions=1, replication_factor=1)
        with pytest.raises(RefusedError) as refused:
            await plan.carry_out()
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        assert str((await cluster.existing_topic("orders")).id) == made.id
        await (await deletion(cluster, "orders")).carry_out()
        assert "orders" not in (await cluster.metadata(None)).topics
