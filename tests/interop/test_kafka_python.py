"""kafka-python (pure Python): what goes in comes out, and administration means what Kafka means by it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import kafka
import pytest
from kafka import errors
from kafka.admin import ConfigResource, KafkaAdminClient

from tests.interop.support.samples import CODECS, DEADLINE_S, MEBIBYTE, Message, messages, odd_messages, topic_name

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def topic(admin: Any) -> Iterator[str]:
    """A topic of three partitions, gone after the test."""
    name = topic_name("kafka-python")
    admin.create_topics({name: {"num_partitions": 3}}, wait_for_metadata=True)
    yield name
    admin.delete_topics([name])


def produce(bootstrap: str, topic: str, sent: Sequence[Message], *, partition: int = 0, **options: Any) -> list[int]:
    """Send all and wait; the offset that each was acknowledged at."""
    settings = {"acks": "all", "linger_ms": 20, "enable_idempotence": False, **options}
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **settings)
    pending = [
        producer.send(topic, m.value, m.key, list(m.headers), partition=partition, timestamp_ms=m.timestamp)
        for m in sent
    ]
    producer.flush(DEADLINE_S)
    offsets = [future.get(DEADLINE_S).offset for future in pending]
    producer.close()
    return offsets


def consume(bootstrap: str, topic: str, count: int, *, partition: int = 0) -> tuple[list[int], list[Message]]:
    """The first `count` messages of a partition, with their offsets."""
    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None)
    reader.assign([kafka.TopicPartition(topic, partition)])
    items = _poll(reader, count)
    reader.close()
    read = [Message(item.key, item.value, item.timestamp, tuple(map(tuple, item.headers))) for item in items]
    return [item.offset for item in items], read


def _poll(reader: Any, count: int) -> list[Any]:
    items: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(items) < count and time.monotonic() < deadline:
        for found in reader.poll(timeout_ms=1000, max_records=count - len(items)).values():
            items.extend(found)
    return items


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(bootstrap: str, topic: str, codec: str) -> None:
    sent = messages(500)
    acknowledged = produce(bootstrap, topic, sent, compression_type=None if codec == "none" else codec)
    assert acknowledged == list(range(500))
    assert consume(bootstrap, topic, 500) == (acknowledged, sent)


@pytest.mark.parametrize("codec", CODECS)
def test_nulls_and_headers_survive(bootstrap: str, topic: str, codec: str) -> None:
    """This client itself refuses a message without key and value, and a null header."""
    sent = [m for m in odd_messages() if (m.key, m.value) != (None, None) and ("null", None) not in m.headers]
    produce(bootstrap, topic, sent, compression_type=None if codec == "none" else codec)
    assert consume(bootstrap, topic, len(sent))[1] == sent


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_each_kind_of_acknowledgement(bootstrap: str, topic: str, acks: int | str) -> None:
    sent = messages(50)
    produce(bootstrap, topic, sent, acks=acks)
    assert consume(bootstrap, topic, 50)[1] == sent


def test_an_idempotent_producer_writes_each_once_and_in_order(bootstrap: str, topic: str) -> None:
    for partition in range(3):
        sent = messages(500)
        produce(bootstrap, topic, sent, partition=partition, enable_idempotence=True, batch_size=2048)
        assert consume(bootstrap, topic, 500, partition=partition) == (list(range(500)), sent)


def test_a_message_of_a_mebibyte(bootstrap: str, admin: Any) -> None:
    name = topic_name("large")
    admin.create_topics({name: {"configs": {"max.message.bytes": str(2 * MEBIBYTE)}}}, wait_for_metadata=True)
    sent = [message._replace(value=b"\x00\xff" * (MEBIBYTE // 2)) for message in messages(3)]
    produce(bootstrap, name, sent, max_request_size=4 * MEBIBYTE)
    assert consume(bootstrap, name, 3) == ([0, 1, 2], sent)


def test_a_message_beyond_the_limit_of_the_topic_is_refused(bootstrap: str, topic: str) -> None:
    with pytest.raises(errors.MessageSizeTooLargeError):
        produce(bootstrap, topic, [Message(b"k", b"\xff" * 2 * MEBIBYTE, 1)], max_request_size=4 * MEBIBYTE)


def test_offsets_are_found_by_time(bootstrap: str, topic: str, admin: Any) -> None:
    sent = messages(10)
    produce(bootstrap, topic, sent)
    partition = kafka.TopicPartition(topic, 0)

    def offset(spec: int) -> tuple[int, int]:
        found = admin.list_partition_offsets({partition: spec})[partition]
        return found.offset, found.timestamp

    assert offset(EARLIEST)[0] == 0
    assert offset(LATEST)[0] == 10
    assert offset(MAX_TIMESTAMP) == (9, sent[9].timestamp)
    assert offset(sent[4].timestamp) == (4, sent[4].timestamp)
    assert offset(sent[4].timestamp + 1) == (5, sent[5].timestamp)
    assert offset(sent[9].timestamp + 1)[0] == -1


def test_a_consumer_seeks_by_time(bootstrap: str, topic: str) -> None:
    sent = messages(10)
    produce(bootstrap, topic, sent)
    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    found = reader.offsets_for_times({partition: sent[7].timestamp})[partition]
    assert (found.offset, found.timestamp) == (7, sent[7].timestamp)
    assert reader.beginning_offsets([partition]) == {partition: 0}
    assert reader.end_offsets([partition]) == {partition: 10}
    reader.close()


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str) -> None:
    sent = {partition: messages(20) for partition in range(3)}
    for partition, batch in sent.items():
        produce(bootstrap, topic, batch, partition=partition)
    group = topic_name("group")
    first = _read_as_member(bootstrap, topic, group, 25)
    second = _read_as_member(bootstrap, topic, group, 35)
    assert sorted(first + second) == sorted((p, o, m.value) for p, batch in sent.items() for o, m in enumerate(batch))


def _read_as_member(bootstrap: str, topic: str, group: str, count: int) -> list[tuple[int, int, bytes]]:
    member = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    items = _poll(member, count)
    member.commit()
    member.close()
    assert len(items) == count
    return [(item.partition, item.offset, item.value) for item in items]


def test_a_group_commits_and_fetches_offsets(bootstrap: str, topic: str) -> None:
    member = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=topic_name("group"), enable_auto_commit=False)
    partitions = [kafka.TopicPartition(topic, partition) for partition in range(3)]
    member.assign(partitions)
    assert [member.committed(partition) for partition in partitions] == [None, None, None]
    member.commit({partitions[1]: kafka.OffsetAndMetadata(7, "note", -1)})
    assert [member.committed(partition) for partition in partitions] == [None, 7, None]
    assert member.committed(partitions[1], metadata=True).metadata == "note"
    member.close()


def test_a_topic_is_created_described_altered_and_deleted(admin: Any) -> None:
    name = topic_name("admin")
    admin.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "3600000"}}}, wait_for_metadata=True)
    assert [entry["partition_index"] for entry in _partitions(admin, name)] == [0, 1]

    admin.create_partitions({name: 5})
    assert [entry["partition_index"] for entry in _partitions(admin, name)] == [0, 1, 2, 3, 4]

    assert _configs(admin, name)["retention.ms"] == "3600000"
    changes = {"segment.bytes": ("SET", "1048576"), "retention.ms": ("DELETE", None)}
    admin.alter_configs([ConfigResource("TOPIC", name, changes)])
    found = _configs(admin, name)
    assert (found["segment.bytes"], found["retention.ms"]) == ("1048576", "604800000")

    admin.delete_topics([name])
    assert name not in admin.list_topics()


def _partitions(admin: Any, topic: str) -> list[dict[str, Any]]:
    (described,) = admin.describe_topics([topic])
    return sorted(described["partitions"], key=lambda entry: int(entry["partition_index"]))


def _configs(admin: Any, topic: str) -> dict[str, str]:
    found = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")["topic"][topic]
    return {key: entry["value"] for key, entry in found.items()}


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("bad name!", {}, errors.InvalidTopicError),
        ("..", {}, errors.InvalidTopicError),
        ("n" * 250, {}, errors.InvalidTopicError),
        ("count", {"num_partitions": 0}, errors.InvalidPartitionsError),
        ("factor", {"replication_factor": 7}, errors.InvalidReplicationFactorError),
        ("assigned", {"assignments": {0: [99]}}, errors.InvalidReplicationAssignmentError),
        ("config", {"configs": {"retention.ms": "soon"}}, errors.InvalidConfigurationError),
    ],
    ids=["space", "dots", "long", "count", "factor", "assigned", "config"],
)
def test_a_bad_topic_is_refused(admin: Any, name: str, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        admin.create_topics({name: options})
    assert name not in admin.list_topics()


def test_a_topic_is_created_once_and_an_unknown_one_not_deleted(admin: Any, topic: str) -> None:
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([topic])
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics(["no-such-topic"])
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic: 2})


def test_a_dry_run_creates_nothing(admin: Any) -> None:
    name = topic_name("dry")
    admin.create_topics([name], validate_only=True)
    assert name not in admin.list_topics()


def test_the_cluster_describes_itself(admin: Any, bootstrap: str) -> None:
    cluster = admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [bootstrap]
    assert cluster["cluster_id"]


def test_a_partition_tells_its_producers_its_size_and_loses_records(bootstrap: str, admin: Any, topic: str) -> None:
    produce(bootstrap, topic, messages(20), enable_idempotence=True)
    partition = kafka.TopicPartition(topic, 0)
    (producer,) = admin.describe_producers([partition])[partition].active_producers
    assert (producer.last_sequence, producer.producer_epoch) == (19, 0)
    (broker,) = admin.describe_log_dirs({topic: [0, 1]})
    (directory,) = broker["log_dirs"]
    sizes = {part["partition_index"]: part["partition_size"] for part in directory["topics"][0]["partitions"]}
    assert sizes[0] > 0 == sizes[1]
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    assert admin.delete_records({partition: 12})[partition]["low_watermark"] == 12
