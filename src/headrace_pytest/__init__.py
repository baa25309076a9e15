"""The pytest plugin: fixtures that give a test a real broker.

pytest imports it in every project that has Headrace installed, so it imports nothing heavy until a fixture is used. It
is no part of the package `headrace`, because pytest rewrites the asserts of all that is in a plugin's package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.testing.running import RunningBroker
    from headrace.testing.thread import ClusterThread


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for projects that are strict about them."""
    config.addinivalue_line(
        "markers",
        "headrace(secure=False, configs=None): how `headrace_broker` and `headrace_cluster` are for this test; secure: "
        "users log in by SCRAM over TLS, and ACLs say what they may.",
    )


@pytest.fixture
def headrace_broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for this test alone. Its address is `headrace_broker.bootstrap`.

    `@pytest.mark.headrace(secure=True)` at the test makes it as `headrace up --secure` does. Its `.clients` has the
    settings by which clients of others reach it.
    """
    from headrace.testing.thread import BrokerThread

    with BrokerThread(**_wanted(request)) as running:
        yield running


@pytest.fixture(scope="session")
def headrace_session_broker() -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for the whole run. It is quick, but topics of other tests are there too."""
    from headrace.testing.thread import BrokerThread

    with BrokerThread() as running:
        yield running


@pytest.fixture
def headrace_cluster(request: pytest.FixtureRequest) -> Iterator[ClusterThread]:
    """Three Kafka-compatible brokers, for this test alone, that are one cluster: `headrace_cluster.bootstrap`,
    `.stop_brokers(1)`, `.start_brokers(1)`. The marker `headrace` is as for `headrace_broker`.
    """
    from headrace.testing.thread import ClusterThread

    with ClusterThread(**_wanted(request)) as running:
        yield running


def _wanted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of the nearest marker."""
    marker = request.node.get_closest_marker("headrace")
    if marker is None:
        return {}
    if marker.args or not marker.kwargs.keys() <= {"secure", "configs"}:
        raise pytest.UsageError("pytest.mark.headrace takes secure=True or False, and configs={...}.")
    return dict(marker.kwargs)
