"""Real brokers for tests: in this process, in a directory of their own, on a free port, gone when the test is.

On the test's own event loop::

    async with headrace.testing.broker() as b:
        producer = AIOKafkaProducer(bootstrap_servers=b.bootstrap)

For clients that block (confluent-kafka, kafka-python), in a thread with a loop of its own, through the pytest plugin,
which is there wherever Headrace is installed::

    def test_orders(headrace_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": headrace_broker.bootstrap})

`headrace_broker` is a new broker for each test, `headrace_session_broker` one for the whole run; `BrokerThread` makes
others, with configs of their own. The broker is the one that `headrace up` runs, on a real disk: nothing is faked. A
broker stands some 30 ms after it is asked for, the first one after the 0.4 s that importing it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.running import RunningBroker, broker
    from headrace.testing.thread import BrokerThread

__all__ = ["BrokerThread", "RunningBroker", "broker"]


def __getattr__(name: str) -> object:
    """Load what is asked for, so that the plugin costs nothing in runs that need no broker (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    from headrace.testing import running, thread

    return getattr(thread if name == "BrokerThread" else running, name)
