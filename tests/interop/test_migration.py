"""librdkafka consumers replaced one by one, from the classic protocol to the consumer protocol and back (KIP-848),
while records flow: nothing is lost, nothing but what could not be committed comes twice, and nobody finds it empty."""

from __future__ import annotations

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.interop.samples import DEADLINE_S, topic_name
from tests.interop.test_confluent import admin, topic
from tests.interop.test_consumer_groups import COUNT, fill, member

__all__ = ["admin", "topic"]

MEMBERS = 2


class Rolling:
    """A group that reads a topic, and what it has read."""

    def __init__(self, bootstrap: str, topic: str, admin: AdminClient, strategy: str) -> None:
        self.bootstrap, self.topic, self.admin, self.strategy = bootstrap, topic, admin, strategy
        self.group = topic_name("migrating")
        self.members: list[confluent_kafka.Consumer] = []
        self.sent: set[bytes] = set()
        self.read: set[bytes] = set()
        self.uncommitted: set[bytes] = set()

    def begin(self, protocol: str) -> None:
        classic = {
            "partition_assignment_strategy": self.strategy,
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 100,
        }
        options = classic if protocol == "classic" else {}
        one = member(self.bootstrap, self.group, group_protocol=protocol, **options)
        one.subscribe([self.topic])
        self.members.append(one)

    def poll(self) -> None:
        for each in self.members:
            message = each.poll(0.01)
            if message is None or message.error() is not None:
                continue
            value = message.value() or b""
            assert value not in self.read or value in self.uncommitted, f"{value!r} came twice"
            self.read.add(value)
            try:
                each.commit(message, asynchronous=False)
                self.uncommitted.discard(value)
            except confluent_kafka.KafkaException:
                self.uncommitted.add(value)

    def go_on(self, kind: str) -> None:
        """Records flow; everybody polls until each has its share, all was read, and the group is of this kind."""
        self.sent |= fill(self.bootstrap, self.topic, start=len(self.sent))
        deadline = time.monotonic() + DEADLINE_S
        while self.read != self.sent or not all(each.assignment() for each in self.members):
            assert time.monotonic() < deadline, (len(self.read), [each.assignment() for each in self.members])
            self.poll()
        listing = self.admin.list_consumer_groups().result(DEADLINE_S)
        (found,) = [one for one in listing.valid if one.group_id == self.group]
        assert (found.type.name, found.state.name != "EMPTY") == (kind, True)


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
