"""librdkafka consumers replaced one by one, from the classic to the consumer protocol and back (KIP-848), under load.

Nothing is lost, only records that could not be committed come twice, and nobody finds the group empty.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.interop.support.samples import DEADLINE_S, topic_name
from tests.interop.test_confluent import admin, topic
from tests.interop.test_consumer_groups import COUNT, fill, member
from tests.threads import joined

__all__ = ["admin", "topic"]

MEMBERS = 2


class Rolling:
    """A group that reads a topic, and the records that it has read. Each member has a thread of its own, as in an
    application. One that commits while it joins waits for the others, which must be polled to join."""

    def __init__(self, bootstrap: str, topic: str, admin: AdminClient, strategy: str) -> None:
        self.bootstrap, self.topic, self.admin, self.strategy = bootstrap, topic, admin, strategy
        self.group = topic_name("migrating")
        self.members: list[Driven] = []
        self.sent: set[bytes] = set()
        self.read: set[bytes] = set()
        self.uncommitted: set[bytes] = set()
        self.problems: list[str] = []
        self.news = threading.Condition()
        """Something was read, or shares have changed."""

    def begin(self, protocol: str) -> None:
        classic = {
            "partition_assignment_strategy": self.strategy,
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 100,
        }
        options = classic if protocol == "classic" else {}
        one = member(self.bootstrap, self.group, group_protocol=protocol, **options)
        one.subscribe([self.topic])
        self.members.append(Driven(one, self))

    def take(self, value: bytes) -> None:
        with self.news:
            if value in self.read and value not in self.uncommitted:
                self.problems.append(f"{value!r} came twice")
            self.read.add(value)
            self.uncommitted.add(value)

    def committed(self, value: bytes) -> None:
        with self.news:
            self.uncommitted.discard(value)

    def go_on(self, kind: str) -> None:
        """Records flow, until each has its share, all was read, and the group is of this kind."""
        self.sent |= fill(self.bootstrap, self.topic, start=len(self.sent))
        with self.news:
            is_whole = self.news.wait_for(
                lambda: self.read == self.sent and all(each.share for each in self.members), DEADLINE_S
            )
            assert is_whole, (len(self.read), [each.share for each in self.members])
            assert not self.problems
        listing = self.admin.list_consumer_groups().result(DEADLINE_S)
        (found,) = [one for one in listing.valid if one.group_id == self.group]
        assert (found.type.name, found.state.name != "EMPTY") == (kind, True)


class Driven:
    """A member in its thread, which ends with it."""

    def __init__(self, consumer: confluent_kafka.Consumer, rolling: Rolling) -> None:
        self.share = 0
        """Partitions that it has."""
        self._consumer = consumer
        self._rolling = rolling
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        joined(self._thread)

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.01)
            if message is not None and message.error() is None:
                self._rolling.take(message.value() or b"")
                with suppress(confluent_kafka.KafkaException):  # records that could not be committed may come again
                    self._consumer.commit(message, asynchronous=False)
                    self._rolling.committed(message.value() or b"")
            with self._rolling.news:
                self.share = len(self._consumer.assignment())
                self._rolling.news.notify()
        self._consumer.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_are_replaced_one_by_one_and_back(
    bootstrap: str, topic: str, admin: AdminClient, strategy: str
) -> None:
    rolling = Rolling(bootstrap, topic, admin, strategy)
    for _ in range(MEMBERS):
        rolling.begin("classic")
    rolling.go_on("CLASSIC")
    for protocol in ("consumer", "classic"):
        for at in range(MEMBERS):
            rolling.members.pop(0).close()
            rolling.begin(protocol)
            back = protocol == "classic" and at == MEMBERS - 1
            rolling.go_on("CLASSIC" if back else "CONSUMER")
    assert len(rolling.read) == COUNT * (1 + 2 * MEMBERS)
    for each in rolling.members:
        each.close()
