"""The pytest plugin: fixtures that give a test a real broker.

pytest imports it in every project that has it installed, so it imports nothing heavy until a fixture is used. It is a
distribution of its own, because pytest rewrites the asserts of all that lies in the distribution of a plugin.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from headrace.testing.clocks import MovableClock
    from headrace.testing.processes import ProcessCluster
    from headrace.testing.running import RunningBroker
    from headrace.testing.thread import ClusterThread

__version__ = "0.1.0"
NAME_LENGTH_MAX: Final = 80
"""Of what a topic's name has of its test's. Kafka allows 249 letters in all."""
_NUMBERS = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for projects that are strict about them."""
    config.addinivalue_line(
        "markers",
        "headrace(secure=False, configs=None): how `headrace_broker` and `headrace_cluster` are for this test; secure: "
        "users log in by SCRAM over TLS, and ACLs say what they may.",
    )


@pytest.fixture(scope="session")
def headrace_configs() -> Mapping[str, str]:
    """Broker configs, by Kafka's names, of all brokers that the fixtures make. A project overrides it in its conftest;
    the marker's configs come on top."""
    return {}


@pytest.fixture
def headrace_clock() -> MovableClock:
    """The clock of this test's `headrace_broker`: `headrace_clock.advance(hours=25)`."""
    from headrace.testing.clocks import MovableClock

    return MovableClock()


@pytest.fixture
def headrace_broker(request: pytest.FixtureRequest, headrace_configs: Mapping[str, str]) -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for this test alone. Its address is `headrace_broker.bootstrap`.

    `@pytest.mark.headrace(secure=True)` at the test makes it as `headrace up --secure` does. Its `.clients` has the
    settings by which clients of others reach it, and its `.faults` what is to go wrong.
    """
    from headrace.testing.thread import BrokerThread

    clock = request.getfixturevalue("headrace_clock") if "headrace_clock" in request.fixturenames else None
    with BrokerThread(**_wanted(request, headrace_configs), clock=clock) as running:
        yield running


@pytest.fixture(scope="session")
def headrace_session_broker(headrace_configs: Mapping[str, str]) -> Iterator[RunningBroker]:
    """A Kafka-compatible broker for the whole run. It is quick, but topics of other tests are there too:
    `headrace_topic` gives each test a name of its own."""
    from headrace.testing.thread import BrokerThread

    with BrokerThread(configs=headrace_configs) as running:
        yield running


@pytest.fixture
def headrace_cluster(request: pytest.FixtureRequest, headrace_configs: Mapping[str, str]) -> Iterator[ClusterThread]:
    """Three Kafka-compatible brokers, for this test alone, that are one cluster: `headrace_cluster.bootstrap`,
    `.stop_brokers(1)`, `.start_brokers(1)`. The marker `headrace` is as for `headrace_broker`.
    """
    from headrace.testing.thread import ClusterThread

    with ClusterThread(**_wanted(request, headrace_configs)) as running:
        yield running


@pytest.fixture
def headrace_processes(headrace_configs: Mapping[str, str]) -> Iterator[ProcessCluster]:
    """Three Kafka-compatible brokers, for this test alone. Each is a process: `.kill(1)`, `.pause(2)`, `.cut(3)`. They
    take a second or two to start."""
    from headrace.testing.processes import ProcessCluster

    with ProcessCluster(configs=headrace_configs) as running:
        yield running


@pytest.fixture
def headrace_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test of this run has. It is made when a client first writes to it."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:NAME_LENGTH_MAX].strip("-")
    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    return f"{test}-{worker}-{next(_NUMBERS)}"


def _wanted(request: pytest.FixtureRequest, configs: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of the nearest marker."""
    marker = request.node.get_closest_marker("headrace")
    given = {} if marker is None else marker.kwargs
    if marker is not None and (marker.args or not marker.kwargs.keys() <= {"secure", "configs"}):
        raise pytest.UsageError("pytest.mark.headrace takes secure=True or False, and configs={...}.")
    return {**given, "configs": {**configs, **(given.get("configs") or {})}}
