"""Consumer groups with clients and tools that nobody here wrote: static members (KIP-345) of three clients, and Kafka's
own ConsumerGroupCommand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AIOKafkaRange
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor as KafkaPythonRange

from tests.interop.kafka_tools import KafkaTools
from tests.interop.support.samples import DEADLINE_S, topic_name
from tests.threads import joined
from tools import kafka_jars

PARTITIONS = 4
SESSION_MS = 240_000
LOOK_EVERY_S = 0.02


@pytest.fixture
def topic(bootstrap: str) -> Iterator[str]:
    name = topic_name("groups")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(DEADLINE_S)
    yield name
    admin.delete_topics([name])[name].result(DEADLINE_S)


def until(true: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not true():
        assert time.monotonic() < deadline
        pause.wait(LOOK_EVERY_S)


class Member:
    """librdkafka's, in a thread of its own: which partitions it has, and how often that changed."""

    def __init__(self, bootstrap: str, topic: str, group: str, instance: str) -> None:
        self.partitions: set[int] = set()
        self.changes = 0
        self.fatal: str | None = None
        self._client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.instance.id": instance,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": "range",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._client.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member {instance}", daemon=True)

    def _on_assign(self, client: Any, partitions: list[Any]) -> None:
        self.changes += 1
        client.assign(partitions)
        self.partitions = {one.partition for one in partitions}

    def _on_revoke(self, client: Any, _: list[Any]) -> None:
        self.changes += 1
        client.unassign()
        self.partitions = set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._client.poll(0.05)
            if message is not None and message.error() is not None:
                self.fatal = str(message.error())
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        joined(self._thread)
        self._client.close()


def with_librdkafka(bootstrap: str, topic: str, group: str) -> set[int]:
    with Member(bootstrap, topic, group, "comes and goes") as member:
        until(lambda: 0 < len(member.partitions) < PARTITIONS)
        return set(member.partitions)


def with_kafka_python(bootstrap: str, topic: str, group: str) -> set[int]:
    reader = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id="comes-and-goes",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=200,
        partition_assignment_strategy=[KafkaPythonRange],
        enable_auto_commit=False,
    )
    try:
        until(lambda: reader.poll(timeout_ms=100) is not None and 0 < len(reader.assignment()) < PARTITIONS)
        return {one.partition for one in reader.assignment()}
    finally:
        reader.close()


def with_aiokafka(bootstrap: str, topic: str, group: str) -> set[int]:
    async def work() -> set[int]:
        reader = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id="comes-and-goes",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=(AIOKafkaRange,),
            enable_auto_commit=False,
        )
        async with asyncio.timeout(DEADLINE_S):
            await reader.start()
            try:
                while not 0 < len(reader.assignment()) < PARTITIONS:
                    await reader.getmany(timeout_ms=50)
                return {one.partition for one in reader.assignment()}
            finally:
                await reader.stop()

    return asyncio.run(work())


@pytest.mark.parametrize("take_part", [with_librdkafka, with_kafka_python, with_aiokafka])
def test_a_static_member_that_comes_back_has_its_partitions_and_disturbs_nobody(
    bootstrap: str, topic: str, take_part: Callable[[str, str, str], set[int]]
) -> None:
    group = f"group of {topic}"
    with Member(bootstrap, topic, group, "stays") as stays:
        until(lambda: len(stays.partitions) == PARTITIONS)
        first = take_part(bootstrap, topic, group)
        until(lambda: len(stays.partitions) == PARTITIONS - len(first))
        before, mine = stays.changes, set(stays.partitions)
        for _ in range(2):
            assert take_part(bootstrap, topic, group) == first
        assert stays.changes == before
        assert stays.partitions == mine == set(range(PARTITIONS)) - first


def test_of_two_with_one_name_the_earlier_is_fenced(bootstrap: str, topic: str) -> None:
    group = f"group of {topic}"
    with Member(bootstrap, topic, group, "one") as first:
        until(lambda: len(first.partitions) == PARTITIONS)
        with Member(bootstrap, topic, group, "one") as second:
            until(lambda: len(second.partitions) == PARTITIONS)
            until(lambda: first.fatal)
            assert "fenced" in str(first.fatal)
            assert second.fatal is None


@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
def test_kafkas_own_tool_lists_describes_resets_and_deletes(bootstrap: str, topic: str) -> None:
    with KafkaTools(bootstrap) as tools:
        use_the_tool(tools, topic)


def use_the_tool(tools: KafkaTools, topic: str) -> None:
    bootstrap, group = tools.bootstrap, f"group-of-{topic}"

    def command(*arguments: str) -> list[list[str]]:
        """The words of each line that the tool prints."""
        return [words for text in tools.did("ConsumerGroupCommand", *arguments).lines if (words := text.split())]

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(PARTITIONS * 5):
        producer.produce(topic, b"v", partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0
    client = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    client.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 2)], asynchronous=False)
    client.close()
    assert [group, "Classic", "Empty"] in [[w[0], w[1], w[-1]] for w in command("--list", "--state", "--type")]
    described = command("--describe", "--group", group, "--offsets")
    assert [group, topic, "0", "2", "5", "3"] in [words[:6] for words in described]
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert {tuple(words) for words in command(*reset)} >= {
        (group, topic, str(partition), "0") for partition in range(PARTITIONS)
    }
    gone = command("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert [topic, "0", "Successful"] in gone
    with Member(bootstrap, topic, group, "one") as member:
        until(lambda: len(member.partitions) == PARTITIONS)
        described = command("--describe", "--group", group, "--members", "--verbose")
        assert [group, "one", str(PARTITIONS)] in [
            [words[0], words[2], words[5]] for words in described if len(words) > 5
        ]
        state = command("--describe", "--group", group, "--state")
        assert ["range", "Stable", "1"] in [words[-3:] for words in state]
