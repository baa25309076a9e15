"""`headrace group` against a real broker. The oracle is librdkafka: it writes, commits and says what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace, headrace

__all__ = ["headrace"]

FIRST_MS = 1_700_000_000_000
RECORDS = 10
"""In each partition of `orders`, one a second."""
DEADLINE_S = 150.0


def consumer(broker: RunningBroker, group: str = "g", **more: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False, **more}
    )


def commit(broker: RunningBroker, *offsets: tuple[str, int, int], group: str = "g") -> None:
    client = consumer(broker, group)
    client.commit(offsets=[TopicPartition(*one) for one in offsets], asynchronous=False)
    client.close()


def committed(broker: RunningBroker, *partitions: tuple[str, int], group: str = "g") -> list[int]:
    client = consumer(broker, group)
    found = client.committed([TopicPartition(*one) for one in partitions], DEADLINE_S)
    client.close()
    return [one.offset for one in found]


@contextmanager
def member(broker: RunningBroker, group: str = "g", protocol: str = "classic") -> Iterator[None]:
    """Somebody is in the group, and has all partitions."""
    client = consumer(broker, group, **{"group.instance.id": "one", "client.id": "me", "group.protocol": protocol})
    client.subscribe(["orders"])
    while len(client.assignment()) < 2:
        client.poll(0.1)
    yield
    client.unsubscribe()
    client.close()


@pytest.fixture
def broker(headrace_broker: RunningBroker, headrace: Headrace) -> RunningBroker:
    """With `orders` of two partitions, 10 records in each, and no group."""
    headrace.ok("topic", "create", "orders", "--partitions", 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": headrace_broker.bootstrap})
    for number in range(2 * RECORDS):
        producer.produce("orders", b"v", partition=number % 2, timestamp=FIRST_MS + number // 2 * 1_000)
    assert producer.flush(DEADLINE_S) == 0
    committed(headrace_broker, ("orders", 0))  # makes the topic that groups are kept in
    return headrace_broker


def reset(headrace: Headrace, *arguments: object) -> dict[tuple[str, int], int]:
    lines = headrace.json("group", "reset-offsets", "g", *arguments)
    return {(line["topic"], line["partition"]): line["new_offset"] for line in lines}


def test_groups_are_listed(headrace: Headrace, broker: RunningBroker) -> None:
    assert headrace.json("group", "list") == []
    commit(broker, ("orders", 0, 4))
    assert headrace.json("group", "list") == [
        {"group": "g", "state": "Empty", "type": "classic", "protocol_type": "", "coordinator": 1}
    ]
    assert headrace.json("group", "list", "--state", "stable") == []
    assert headrace.ok("group", "list").splitlines()[1].split() == ["g", "Empty", "classic", "-", "1"]


def test_a_group_is_described_with_its_lag(headrace: Headrace, broker: RunningBroker) -> None:
    commit(broker, ("orders", 0, 4), ("orders", 1, 10))
    (found,) = headrace.json("group", "describe", "g")
    assert (found["state"], found["members"]) == ("Empty", [])
    told = [
        (part["partition"], part["committed_offset"], part["end_offset"], part["lag"]) for part in found["partitions"]
    ]
    assert told == [(0, 4, 10, 6), (1, 10, 10, 0)]
    assert "lag 6" in headrace.ok("group", "describe", "g")


@pytest.mark.parametrize(("protocol", "assignor"), [("classic", "range"), ("consumer", "uniform")])
def test_who_reads_what_is_told(headrace: Headrace, broker: RunningBroker, protocol: str, assignor: str) -> None:
    commit(broker, ("orders", 0, 4))
    with member(broker, protocol=protocol):
        (found,) = headrace.json("group", "describe", "g")
        printed = headrace.ok("group", "describe", "g")
    assert (found["state"], found["protocol"], len(found["members"])) == ("Stable", assignor, 1)
    told = [
        (part["partition"], part["lag"], part["instance"], part["client"], part["host"]) for part in found["partitions"]
    ]
    assert told == [(0, 6, "one", "me", "127.0.0.1"), (1, None, "one", "me", "127.0.0.1")]
    assert "members 1" in printed


def test_top_tells_how_far_groups_are(headrace: Headrace, broker: RunningBroker) -> None:
    commit(broker, ("orders", 0, 7), ("orders", 1, 4))
    commit(broker, ("orders", 1, 10), group="h")
    (told,) = headrace.json("top", "--interval", "0.1")
    assert [(group["group"], group["state"], group["lag"]) for group in told["groups"]] == [
        ("g", "Empty", 9),
        ("h", "Empty", 0),
    ]


def test_a_plan_changes_nothing_until_it_is_executed(headrace: Headrace, broker: RunningBroker) -> None:
    commit(broker, ("orders", 0, 4))
    plan = ("group", "reset-offsets", "g", "--to-earliest", "--topic", "orders")
    assert reset(headrace, *plan[3:]) == {("orders", 0): 0, ("orders", 1): 0}
    _, out, err = headrace(*plan)
    assert out.decode().splitlines()[1].split() == ["orders", "0", "4", "0"]
    assert "nothing was changed" in err
    assert committed(broker, ("orders", 0), ("orders", 1)) == [4, confluent_kafka.OFFSET_INVALID]
    assert reset(headrace, *plan[3:], "--execute") == {("orders", 0): 0, ("orders", 1): 0}
    assert committed(broker, ("orders", 0), ("orders", 1)) == [0, 0]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-current",), 4),
        (("--to-offset", 7), 7),
        (("--to-offset", 99), 10),
        (("--shift-by", 3), 7),
        (("--shift-by", -3), 1),
        (("--shift-by", -30), 0),
        (("--to-datetime", datetime.fromtimestamp(FIRST_MS / 1000 + 4.5, UTC).isoformat()), 5),
        (("--to-datetime", datetime.fromtimestamp(FIRST_MS / 1000 + 2, UTC).isoformat()[:19]), 2),
        (("--to-datetime", "2099-01-01T00:00:00"), 10),
        (("--by-duration", "PT1H"), 10),
        (("--by-duration", "P36500D"), 0),
    ],
)
def test_where_to(headrace: Headrace, broker: RunningBroker, where: tuple[object, ...], expected: int) -> None:
    commit(broker, ("orders", 0, 4))
    assert reset(headrace, *where, "--all-topics", "--execute") == {("orders", 0): expected}
    assert committed(broker, ("orders", 0)) == [expected]


def test_a_group_that_there_is_not_is_made_by_its_reset(headrace: Headrace, broker: RunningBroker) -> None:
    assert reset(headrace, "--to-current", "--topic", "orders:1", "--execute") == {("orders", 1): 10}
    assert committed(broker, ("orders", 1)) == [10]


def test_positions_come_from_a_file(headrace: Headrace, broker: RunningBroker, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("orders,0,3\norders,1,50\n")
    assert reset(headrace, "--from-file", plan, "--execute") == {("orders", 0): 3, ("orders", 1): 10}
    plan.write_text("orders,0\n")
    assert "Line 1" in headrace.refused("group", "reset-offsets", "g", "--from-file", plan, code=2)
    assert "cannot be read" in headrace.refused("group", "reset-offsets", "g", "--from-file", tmp_path / "x", code=2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_is_reset_under_a_group_that_is_active(
    headrace: Headrace, broker: RunningBroker, protocol: str
) -> None:
    commit(broker, ("orders", 0, 4))
    with member(broker, protocol=protocol):
        refused = headrace.refused("group", "reset-offsets", "g", "--to-latest", "--all-topics", "--execute")
        assert "'g' is active (Stable): stop its members (1)" in refused
        assert "'g' is active" in headrace.refused("group", "delete", "g")
    assert committed(broker, ("orders", 0)) == [4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--topic", "orders"), "Say where to"),
        (("--to-latest", "--to-earliest", "--topic", "orders"), "Say where to"),
        (("--to-latest",), "Say of which topics"),
        (("--to-latest", "--topic", "orders", "--all-topics"), "Say of which topics"),
        (("--to-latest", "--topic", "orders:7"), "no partition 7"),
        (("--to-latest", "--topic", "orders:x"), "partitions are numbers"),
        (("--by-duration", "1h", "--topic", "orders"), "write it like"),
        (("--to-datetime", "noon", "--topic", "orders"), "write it like"),
    ],
)
def test_what_is_not_to_be_understood(
    headrace: Headrace, broker: RunningBroker, arguments: tuple[str, ...], sentence: str
) -> None:
    assert broker.bootstrap
    assert sentence in headrace.refused("group", "reset-offsets", "g", *arguments, code=2)


def test_what_cannot_be_done(headrace: Headrace, broker: RunningBroker) -> None:
    assert broker.bootstrap
    assert "There is no group 'x'" in headrace.refused("group", "describe", "x")
    assert "There is no group 'x'" in headrace.refused("group", "delete", "x")
    assert "does not exist" in headrace.refused("group", "reset-offsets", "g", "--to-latest", "--topic", "nowhere")
    nothing = headrace.refused("group", "reset-offsets", "g", "--shift-by", "1", "--topic", "orders")
    assert "Nothing is committed for partition 0" in nothing


def test_a_group_is_deleted_with_what_it_committed(headrace: Headrace, broker: RunningBroker) -> None:
    commit(broker, ("orders", 0, 4))
    assert headrace.json("group", "delete", "g") == [{"group": "g", "deleted": True}]
    assert headrace.json("group", "list") == []
    assert committed(broker, ("orders", 0)) == [confluent_kafka.OFFSET_INVALID]
