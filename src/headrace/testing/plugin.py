"""The pytest plugin: fixtures that give a test a real broker. Imported by pytest in every project that has Headrace
installed, so it imports nothing heavy until a fixture is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.running import RunningBroker
    from headrace.testing.thread import ClusterThread


@pytest.fixture
def headrace_broker() -> Iterator[RunningBroker]:
    """A Kafka-compatible broker of this test's own; its address is `headrace_broker.bootstrap`."""
    from headrace.testing.thread import BrokerThread

    with BrokerThread() as running:
        yield running


@pytest.fixture(scope="session")
def headrace_session_broker() -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for the whole run: quick, but topics of other tests are there too."""
    from headrace.testing.thread import BrokerThread

    with BrokerThread() as running:
        yield running


@pytest.fixture
def headrace_cluster() -> Iterator[ClusterThread]:
    """Three Kafka-compatible brokers of this test's own that are one cluster: `headrace_cluster.bootstrap`,
    `.stop_brokers(1)`, `.start_brokers(1)`."""
    from headrace.testing.thread import ClusterThread

    with ClusterThread() as running:
        yield running
