"""Three brokers for each file, and the Java programs that use them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.interop.frameworks.support.brokers import OPTIONS, Brokers
from tools.servers.broker_cluster import BrokerCluster


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    cluster = BrokerCluster(tmp_path_factory.mktemp("frameworks"), 3, *OPTIONS)
    with asyncio.Runner() as runner:
        try:
            runner.run(cluster.start(*cluster.nodes))
            yield Brokers(cluster, runner)
            assert runner.run(cluster.stop(*cluster.nodes)) == [0, 0, 0]
        finally:
            runner.run(cluster.__aexit__())
