"""confluent-kafka's consumers of the new protocol (KIP-848): the broker shares out, and what was read is read once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.support.samples import DEADLINE_S, Message, topic_name
from tests.interop.test_confluent import admin, produce, topic

__all__ = ["admin", "topic"]

COUNT = 60
TIMESTAMP_MS = 1_700_000_000_000


def member(bootstrap: str, group: str, **options: Any) -> confluent_kafka.Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return confluent_kafka.Consumer(settings | {key.replace("_", "."): value for key, value in options.items()})


def fill(bootstrap: str, topic: str, *, start: int = 0) -> set[bytes]:
    values = [f"{start + number}".encode() for number in range(COUNT)]
    for partition in range(3):
        mine = [Message(None, value, TIMESTAMP_MS) for number, value in enumerate(values) if number % 3 == partition]
        produce(bootstrap, topic, mine, partition=partition)
    return set(values)


def read(members: list[confluent_kafka.Consumer], count: int) -> list[bytes]:
    """Poll all in turns until that many records came; each is committed."""
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for each in members:
            message = each.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value() or b"")
                each.commit(message, asynchronous=False)
    return found


def until_shared(members: list[confluent_kafka.Consumer], sizes: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while sorted(len(each.assignment()) for each in members) != sorted(sizes):
        assert time.monotonic() < deadline, [each.assignment() for each in members]
        for each in members:
            assert each.poll(0.05) is None


@pytest.mark.usefixtures("admin")
def test_two_members_share_a_topic_and_one_takes_over(bootstrap: str, topic: str) -> None:
    group = topic_name("consumers")
    sent = fill(bootstrap, topic)
    first = member(bootstrap, group)
    first.subscribe([topic])
    assert sorted(read([first], COUNT)) == sorted(sent)
    second = member(bootstrap, group)
    second.subscribe([topic])
    until_shared([first, second], [1, 2])
    assert not set(map(str, first.assignment())) & set(map(str, second.assignment()))
    more = fill(bootstrap, topic, start=COUNT)
    assert sorted(read([first, second], COUNT)) == sorted(more)
    second.close()
    until_shared([first], [3])
    last = fill(bootstrap, topic, start=2 * COUNT)
    assert sorted(read([first], COUNT)) == sorted(last)
    first.close()


def test_a_pattern_takes_in_a_topic_that_comes_later(bootstrap: str, topic: str, admin: AdminClient) -> None:
    """librdkafka matches names itself and subscribes to them; the broker's own matching is the Java client's case."""
    later = f"{topic}-later"
    one = member(bootstrap, topic_name("consumers"), topic_metadata_refresh_interval_ms=200)
    one.subscribe([f"^{topic}.*"])
    until_shared([one], [3])
    admin.create_topics([NewTopic(later, num_partitions=2, replication_factor=1)])[later].result(DEADLINE_S)
    until_shared([one], [5])
    one.close()
    admin.delete_topics([later])[later].result(DEADLINE_S)


def test_who_dies_is_replaced_and_nothing_is_lost(bootstrap: str, topic: str) -> None:
    """A member that falls silent is out after its session; what it had not committed comes again, and only that."""
    group = topic_name("consumers")
    sent = fill(bootstrap, topic)
    command = [sys.executable, "-m", "tests.interop.support.dying_member", bootstrap, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        committed = set[bytes]()
        for line in process.stdout:
            if line == "done\n":
                break
            committed.add(line.strip().encode())
        process.kill()
    assert len(committed) == COUNT // 2
    heir = member(bootstrap, group)
    heir.subscribe([topic])
    rest = read([heir], COUNT - len(committed))
    assert sorted(rest) == sorted(sent - committed)
    heir.close()
