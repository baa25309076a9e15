"""Where `headrace consume` starts and stops, and which records it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as Spec

from headrace.testing import RunningBroker
from tests.cli.test_commands import Headrace

BEGIN_MS = 1_700_000_000_000
MINUTE_MS = 60_000
PARTITIONS = 2
EACH = 10


@pytest.fixture
def topic(headrace: Headrace, tmp_path: Path) -> str:
    """Records `0` to `19` a minute apart, even ones in partition 0 and odd ones in partition 1."""
    headrace.ok("topic", "create", "span", "--partitions", PARTITIONS)
    for partition in range(PARTITIONS):
        file = tmp_path / f"{partition}.json"
        lines = [
            f'{{"key": "k{number}", "value": "v{number}", "timestamp": {BEGIN_MS + number * MINUTE_MS}}}'
            for number in range(partition, PARTITIONS * EACH, PARTITIONS)
        ]
        file.write_text("\n".join(lines))
        headrace.ok("produce", "span", file, "-f", "json", "-p", partition)
    return "span"


def numbers(text: str) -> list[int]:
    return sorted(int(line.removeprefix("v")) for line in text.splitlines())


def test_the_last_of_each_partition(headrace: Headrace, topic: str) -> None:
    for partition, last in ((0, [14, 16, 18]), (1, [15, 17, 19])):
        assert numbers(headrace.ok("consume", topic, "-o", -3, "-e", "-p", partition)) == last
    assert numbers(headrace.ok("consume", topic, "-o", "-3", "-e")) == list(range(14, 20))
    assert numbers(headrace.ok("consume", topic, "-o-99", "-e")) == list(range(20))


def test_an_offset_counts_in_each_partition(headrace: Headrace, topic: str, tmp_path: Path) -> None:
    assert numbers(headrace.ok("consume", topic, "-o", 8, "-e")) == [16, 17, 18, 19]
    assert headrace.ok("consume", topic, "-o", 100, "-e") == ""
    file = tmp_path / "more"
    file.write_text("v20\nv22\n")
    headrace.ok("produce", topic, file, "-p", 0)
    assert numbers(headrace.ok("consume", topic, "-o", 11, "-e")) == [22]
    assert numbers(headrace.ok("consume", topic, "-o", "beginning", "-e")) == [*range(21), 22]
    assert headrace.ok("consume", topic, "-o", "end", "-e") == ""
    assert "offset 100 is not there" in headrace.refused("consume", topic, "-o", 100, "-p", 0)


def test_an_offset_that_a_partition_has_not_reached_is_waited_for(
    headrace: Headrace, headrace_broker: RunningBroker, topic: str
) -> None:
    """Partition 0 has ten records: those that come behind offset 12 are printed, and not the ones before it."""
    from tests.cli.records.late import printed_while

    def write() -> None:
        for number in range(10, 14):
            headrace_broker_writes(headrace_broker, topic, f"v{number * 10}")

    assert printed_while(headrace_broker.bootstrap, ["consume", topic, "-o", "12", "-n", "2"], write) == "v120\nv130\n"


def headrace_broker_writes(broker: RunningBroker, topic: str, value: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def test_times_are_those_of_the_offsets_that_librdkafka_finds(
    headrace: Headrace, headrace_broker: RunningBroker, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap})
    start, stop = BEGIN_MS + 5 * MINUTE_MS, BEGIN_MS + 12 * MINUTE_MS
    for partition in range(PARTITIONS):
        place = TopicPartition(topic, partition)
        first, behind = (
            admin.list_offsets({place: Spec.for_timestamp(at)})[place].result(60).offset for at in (start, stop)
        )
        shown = headrace.ok("consume", topic, "--from", start, "--to", stop, "-p", partition, "-f", "%o\\n")
        assert list(map(int, shown.splitlines())) == list(range(first, behind))
    assert numbers(headrace.ok("consume", topic, "--from", start, "--to", stop)) == list(range(5, 12))
    times = "2023-11-14T22:18:20Z", "2023-11-14T22:25:20Z"
    assert numbers(headrace.ok("consume", topic, "--from", times[0], "--to", times[1])) == list(range(5, 12))
    assert numbers(headrace.ok("consume", topic, "--to", "PT1H")) == list(range(20))
    assert headrace.ok("consume", topic, "--from", "PT1H", "--end") == ""


def test_a_tail_is_the_last_records_of_the_whole_topic(headrace: Headrace, topic: str) -> None:
    assert headrace.ok("consume", topic, "--tail", 3) == "v17\nv18\nv19\n"
    assert headrace.ok("consume", topic, "--tail", 1, "-p", 0) == "v18\n"
    assert headrace.ok("consume", topic, "--tail", 0) == ""
    assert len(headrace.ok("consume", topic, "--tail", 99).splitlines()) == 20
    assert headrace.ok("consume", topic, "--tail", 2, "--to", BEGIN_MS + 9 * MINUTE_MS) == "v7\nv8\n"


def test_a_tail_reaches_back_as_far_as_it_must(headrace: Headrace, topic: str) -> None:
    """Its records are the last that match, not the matching ones of the last."""
    assert headrace.ok("consume", topic, "--tail", 2, "--grep", "^v[23]$") == "v2\nv3\n"


def test_a_tail_counts_records_and_not_offsets(headrace: Headrace, headrace_broker: RunningBroker, topic: str) -> None:
    """Markers of transactions take offsets, too."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for number in (20, 22, 24):
        producer.begin_transaction()
        producer.produce(topic, f"v{number}", partition=0)
        producer.commit_transaction(60)
    assert numbers(headrace.ok("consume", topic, "--tail", 3, "-p", 0)) == [20, 22, 24]
    consumer = Consumer({"bootstrap.servers": headrace_broker.bootstrap, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 60) == (0, EACH + 6)
    consumer.close()


def test_grep_looks_into_keys_and_values(headrace: Headrace, topic: str) -> None:
    assert numbers(headrace.ok("consume", topic, "-e", "--grep", "^(v1|k7)$")) == [1, 7]
    assert numbers(headrace.ok("consume", topic, "-n", 2, "-p", 0, "--grep", "v1[0-9]")) == [10, 12]
    assert "is no regular expression" in headrace.refused("consume", topic, "--grep", "(", code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--offset", "some"], "it is not beginning, end, or a whole number"),
        (["--offset", "3", "--from", "latest"], "give one of them"),
        (["--from", "yesterday"], "none of earliest, latest, a duration such as PT1H"),
        (["--to", "latest"], "none of a duration such as PT1H"),
        (["--tail", "-1"], "--tail is from 0"),
        (["--tail", "1000000"], "use --offset -1000000 --end"),
        (["--tail", "1", "--max", "2"], "leave --max and --offset out"),
    ],
)
def test_what_cannot_be_is_told(headrace: Headrace, arguments: list[str], said: str) -> None:
    assert said in headrace.refused("consume", "span", *arguments, code=2)
