"""A cluster of processes: brokers are killed, stand still and are cut off, and what was acknowledged is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.errors import HeadraceError, UsageError
from headrace.testing import ProcessCluster
from headrace.testing.relays import owner_of
from tests.tiers import IS_LONG


@pytest.fixture(scope="module")
def three() -> Iterator[ProcessCluster]:
    with ProcessCluster(3) as running:
        admin = AdminClient(running.clients.confluent)
        config = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic("orders", 1, 3, config=config)])["orders"].result(60)
        yield running


def write(three: ProcessCluster, value: bytes) -> None:
    told: list[object] = []
    impatient = {"request.timeout.ms": 5_000, "socket.timeout.ms": 6_000}  # a broker that is cut off cannot answer
    producer = Producer({**three.clients.confluent, "enable.idempotence": True, "log_level": 0, **impatient})
    producer.produce("orders", value, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(300) == 0
    assert told == [None]


def leader(three: ProcessCluster) -> int:
    admin = AdminClient(three.clients.confluent)
    return int(admin.list_topics("orders", timeout=60).topics["orders"].partitions[0].leader)


def values(three: ProcessCluster, count: int) -> list[bytes | None]:
    consumer = Consumer({**three.clients.confluent, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0})
    consumer.subscribe(["orders"])
    found = [consumer.poll(150) for _ in range(count)]
    consumer.close()
    return [each.value() if each is not None else None for each in found]


def test_what_was_acknowledged_outlives_a_kill_and_a_cut(three: ProcessCluster) -> None:
    write(three, b"first")
    killed = leader(three)
    three.kill(killed)
    assert killed not in three.running
    write(three, b"while it is dead")
    three.start_brokers(killed)
    three.cut(leader(three))
    write(three, b"while it is cut off")
    three.mend()
    assert values(three, 3) == [b"first", b"while it is dead", b"while it is cut off"]
    assert three.running == (1, 2, 3)


@pytest.mark.skipif(not IS_LONG, reason="a client waits long for a broker that stands still")
def test_a_broker_that_stands_still_goes_on(three: ProcessCluster) -> None:
    paused = leader(three)
    three.pause(paused)
    write(three, b"while it stands still")
    three.resume()
    assert three.running == (1, 2, 3)


def test_what_cannot_be_is_said(three: ProcessCluster) -> None:
    with pytest.raises(UsageError, match="no broker 4"):
        three.kill(4)
    three.stop_brokers(2)
    with pytest.raises(UsageError, match="Broker 2 does not run"):
        three.pause(2)
    three.start_brokers()
    assert three.running == (1, 2, 3)
    with pytest.raises(HeadraceError, match=r"(?s)did not serve.*no\.such\.config"):
        ProcessCluster(1, configs={"no.such.config": "1"}).start()


def test_brokers_keep_their_data_where_they_are_told_and_nothing_elsewhere(tmp_path: Path) -> None:
    """A directory that was made and not used is warned of, which is an error here."""
    with ProcessCluster(1, data=tmp_path) as running:
        assert running.running == (1,)
        assert list(tmp_path.rglob("metadata"))


def test_a_port_of_nobody_has_no_owner() -> None:
    assert owner_of(0, [1]) is None
