"""One broker for all interop tests: Headrace as its users start it, or the one that HEADRACE_TEST_BOOTSTRAP names.

Naming an Apache Kafka there proves the tests themselves: they state what Kafka does, not what Headrace happens to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tools.servers.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[str]:
    """The address of the broker under test, on that engine."""
    named = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if named:
        yield named
        return
    quick = (
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.session.timeout.ms=6000",
        "group.consumer.heartbeat.interval.ms=200",
    )
    options = [part for setting in quick for part in ("--config", setting)]
    with BrokerProcess(tmp_path_factory.mktemp("interop"), *options) as broker:
        yield broker.bootstrap
