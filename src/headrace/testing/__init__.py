"""Real brokers for tests: in this process, in a directory of their own, on a free port, gone when the test is.

On the test's own event loop::

    async with headrace.testing.broker() as b:
        producer = AIOKafkaProducer(bootstrap_servers=b.bootstrap)

Clients that block (confluent-kafka, kafka-python) use a broker in a thread with an event loop of its own. The pytest
plugin `pytest-headrace` provides it::

    def test_orders(headrace_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": headrace_broker.bootstrap})

`headrace_broker` is a new broker for each test, `headrace_session_broker` one for the whole run. `BrokerThread` makes
others, with configs of their own. `cluster`, `ClusterThread` and the fixture `headrace_cluster` make several brokers
that are one cluster. A test may stop each of them and start it again::

    def test_orders_while_brokers_come_and_go(headrace_cluster):
        producer = confluent_kafka.Producer({"bootstrap.servers": headrace_cluster.bootstrap})
        headrace_cluster.stop_brokers(1)

`faults` of a broker has it refuse requests, lose answers or take its time, and `MovableClock` moves its time. Brokers
of a `ProcessCluster` are killed, stand still and are cut off.

A broker is secured by one argument, `secure=True` here or `@pytest.mark.headrace(secure=True)` at a test. Its
`clients` has the settings by which clients of others log in.

The broker is the one that `headrace up` runs, on a real disk: nothing is faked. A broker serves after some 30 ms, the
first one after another 0.4 s for its import. A cluster of three serves after 0.3 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.clocks import MovableClock
    from headrace.testing.containers import HeadraceContainer
    from headrace.testing.faults import Faults
    from headrace.testing.processes import ProcessCluster
    from headrace.testing.running import RunningBroker, RunningCluster, broker, cluster
    from headrace.testing.thread import BrokerThread, ClusterThread

_MODULES = {
    "BrokerThread": "thread",
    "ClusterThread": "thread",
    "Faults": "faults",
    "HeadraceContainer": "containers",
    "MovableClock": "clocks",
    "ProcessCluster": "processes",
    "RunningBroker": "running",
    "RunningCluster": "running",
    "broker": "running",
    "cluster": "running",
}
__all__ = [
    "BrokerThread",
    "ClusterThread",
    "Faults",
    "HeadraceContainer",
    "MovableClock",
    "ProcessCluster",
    "RunningBroker",
    "RunningCluster",
    "broker",
    "cluster",
]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that the plugin costs nothing in runs that need no broker (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.testing.{_MODULES[name]}"), name)
