"""The pytest plugin: fixtures that give a test a real broker.

pytest imports it in every project that has Headrace installed, so it imports nothing heavy until a fixture is used. It
is no part of the package `headrace`, because pytest rewrites the asserts of all that is in a plugin's package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.running import RunningBroker
    from headrace.testing.thread import ClusterThread


@pytest.fixture
def headrace_broker() -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for this test alone. Its address is `headrace_broker.bootstrap`."""
    from headrace.testing.thread import BrokerThread

    with BrokerThread() as running:
        yield running


@pytest.fixture(scope="session")
def headrace_session_broker() -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for the whole run. It is quick, but topics of other tests are there too."""
    from headrace.testing.thread import BrokerThread

    with BrokerThread() as running:
        yield running


@pytest.fixture
def headrace_cluster() -> Iterator[ClusterThread]:
    """Three Kafka-compatible brokers, for this test alone, that are one cluster: `headrace_cluster.bootstrap`,
    `.stop_brokers(1)`, `.start_brokers(1)`.
    """
    from headrace.testing.thread import ClusterThread

    with ClusterThread() as running:
        yield running
