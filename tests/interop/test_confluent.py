"""confluent-kafka (librdkafka): what goes in comes out, and administration means what Kafka means by it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.interop.support.samples import CODECS, DEADLINE_S, MEBIBYTE, Message, messages, odd_messages, topic_name


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of three partitions, gone after the test."""
    name = topic_name("confluent")
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)])[name].result(DEADLINE_S)
    yield name
    admin.delete_topics([name])[name].result(DEADLINE_S)


def produce(bootstrap: str, topic: str, sent: Sequence[Message], *, partition: int = 0, **options: Any) -> list[int]:
    """Send all and wait; the offset that each was acknowledged at."""
    offsets: dict[int, int] = {}
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20, **options}
    producer = confluent_kafka.Producer({key.replace("_", "."): value for key, value in settings.items()})
    for index, message in enumerate(sent):

        def delivered(
            error: confluent_kafka.KafkaError | None, report: confluent_kafka.Message, at: int = index
        ) -> None:
            assert error is None, error
            offsets[at] = report.offset() or 0

        producer.produce(
            topic,
            key=message.key,
            value=message.value,
            partition=partition,
            timestamp=message.timestamp,
            headers=list(message.headers),
            on_delivery=delivered,
        )
    assert producer.flush(DEADLINE_S) == 0
    return [offsets[index] for index in range(len(sent))]


def consumer(bootstrap: str, **options: Any) -> confluent_kafka.Consumer:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "interop", "auto.offset.reset": "earliest"}
    settings |= {"enable.auto.commit": False} | {key.replace("_", "."): value for key, value in options.items()}
    return confluent_kafka.Consumer(settings)


def consume(bootstrap: str, topic: str, count: int, *, partition: int = 0) -> tuple[list[int], list[Message]]:
    """The first `count` messages of a partition, with their offsets."""
    reader = consumer(bootstrap)
    reader.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    offsets: list[int] = []
    read: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(read) < count and time.monotonic() < deadline:
        for item in reader.consume(count - len(read), timeout=1.0):
            assert item.error() is None, item.error()
            offsets.append(item.offset())
            headers = tuple(item.headers() or ())
            read.append(Message(item.key(), item.value(), item.timestamp()[1], headers))
    reader.close()
    return offsets, read


def code(failure: pytest.ExceptionInfo[confluent_kafka.KafkaException]) -> Any:
    return failure.value.args[0].code()


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(bootstrap: str, topic: str, codec: str) -> None:
    sent = messages(500)
    acknowledged = produce(bootstrap, topic, sent, compression_type=codec)
    assert acknowledged == list(range(500))
    assert consume(bootstrap, topic, 500) == (acknowledged, sent)


@pytest.mark.parametrize("codec", CODECS)
def test_nulls_and_headers_survive(bootstrap: str, topic: str, codec: str) -> None:
    sent = odd_messages()
    produce(bootstrap, topic, sent, compression_type=codec)
    assert consume(bootstrap, topic, len(sent))[1] == sent


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_each_kind_of_acknowledgement(bootstrap: str, topic: str, acks: str) -> None:
    sent = messages(50)
    produce(bootstrap, topic, sent, acks=acks)
    assert consume(bootstrap, topic, 50)[1] == sent


def test_an_idempotent_producer_writes_each_once_and_in_order(bootstrap: str, topic: str) -> None:
    for partition in range(3):
        sent = messages(2000)
        produce(bootstrap, topic, sent, partition=partition, enable_idempotence=True, batch_num_messages=50)
        assert consume(bootstrap, topic, 2000, partition=partition) == (list(range(2000)), sent)


def test_a_message_of_a_mebibyte(bootstrap: str, admin: AdminClient) -> None:
    name = topic_name("large")
    large = NewTopic(name, num_partitions=1, replication_factor=1, config={"max.message.bytes": str(2 * MEBIBYTE)})
    admin.create_topics([large])[name].result(DEADLINE_S)
    sent = [message._replace(value=b"\x00\xff" * (MEBIBYTE // 2)) for message in messages(3)]
    produce(bootstrap, name, sent, message_max_bytes=4 * MEBIBYTE)
    assert consume(bootstrap, name, 3) == ([0, 1, 2], sent)


def test_a_message_beyond_the_limit_of_the_topic_is_refused(bootstrap: str, topic: str) -> None:
    refused: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 4 * MEBIBYTE})
    producer.produce(topic, b"\xff" * 2 * MEBIBYTE, on_delivery=lambda error, _: refused.append(error.code()))
    assert producer.flush(DEADLINE_S) == 0
    assert refused == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_offsets_are_found_by_time(bootstrap: str, topic: str, admin: AdminClient) -> None:
    sent = messages(10)
    produce(bootstrap, topic, sent)
    partition = confluent_kafka.TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({partition: spec})[partition].result(DEADLINE_S)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 10
    assert offset(OffsetSpec.max_timestamp()) == (9, sent[9].timestamp)
    assert offset(OffsetSpec.for_timestamp(sent[4].timestamp)) == (4, sent[4].timestamp)
    assert offset(OffsetSpec.for_timestamp(sent[4].timestamp + 1)) == (5, sent[5].timestamp)
    assert offset(OffsetSpec.for_timestamp(sent[9].timestamp + 1))[0] == -1


def test_a_consumer_seeks_by_time(bootstrap: str, topic: str) -> None:
    sent = messages(10)
    produce(bootstrap, topic, sent)
    reader = consumer(bootstrap)
    asked = [confluent_kafka.TopicPartition(topic, 0, sent[7].timestamp)]
    assert [found.offset for found in reader.offsets_for_times(asked, timeout=DEADLINE_S)] == [7]
    assert reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=DEADLINE_S) == (0, 10)
    reader.close()


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str) -> None:
    sent = {partition: messages(20) for partition in range(3)}
    for partition, batch in sent.items():
        produce(bootstrap, topic, batch, partition=partition)
    group = topic_name("group")
    first = _read_as_member(bootstrap, topic, group, 25)
    second = _read_as_member(bootstrap, topic, group, 35)
    read = sorted(first + second)
    assert read == sorted((p, o, m.value) for p, batch in sent.items() for o, m in enumerate(batch))


def _read_as_member(bootstrap: str, topic: str, group: str, count: int) -> list[tuple[int, int, bytes]]:
    member = consumer(bootstrap, group_id=group)
    member.subscribe([topic])
    read: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(read) < count and time.monotonic() < deadline:
        for item in member.consume(count - len(read), timeout=1.0):
            assert item.error() is None, item.error()
            read.append((item.partition(), item.offset(), item.value()))
            member.commit(item, asynchronous=False)
    member.close()
    assert len(read) == count
    return read


def test_a_group_commits_and_fetches_offsets(bootstrap: str, topic: str) -> None:
    member = consumer(bootstrap, group_id=topic_name("group"))
    asked = [confluent_kafka.TopicPartition(topic, partition) for partition in range(3)]
    assert [found.offset for found in member.committed(asked, DEADLINE_S)] == [confluent_kafka.OFFSET_INVALID] * 3
    wanted = [confluent_kafka.TopicPartition(topic, 1, 7, metadata="note")]
    member.commit(offsets=wanted, asynchronous=False)
    found = member.committed(asked, DEADLINE_S)
    assert [item.offset for item in found] == [confluent_kafka.OFFSET_INVALID, 7, confluent_kafka.OFFSET_INVALID]
    assert found[1].metadata == "note"
    member.close()


def test_a_topic_is_created_described_altered_and_deleted(admin: AdminClient) -> None:
    name = topic_name("admin")
    wanted = NewTopic(name, num_partitions=2, replication_factor=1, config={"retention.ms": "3600000"})
    admin.create_topics([wanted])[name].result(DEADLINE_S)
    assert len(admin.list_topics(name, DEADLINE_S).topics[name].partitions) == 2

    admin.create_partitions([NewPartitions(name, 5)])[name].result(DEADLINE_S)
    assert sorted(admin.list_topics(name, DEADLINE_S).topics[name].partitions) == [0, 1, 2, 3, 4]

    assert _config(admin, name, "retention.ms") == ("3600000", False)
    assert _config(admin, name, "segment.bytes") == ("1073741824", True)
    change = ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
    drop = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change, drop])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    assert _config(admin, name, "segment.bytes") == ("1048576", False)
    assert _config(admin, name, "retention.ms") == ("604800000", True)

    admin.delete_topics([name])[name].result(DEADLINE_S)
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


def _config(admin: AdminClient, topic: str, key: str) -> tuple[str, bool]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = admin.describe_configs([resource])[resource].result(DEADLINE_S)[key]
    return entry.value, entry.is_default


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (NewTopic("bad name!", 1, 1), confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        (NewTopic("n" * 250, 1, 1), confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        (NewTopic("factor", 1, 7), confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("config", 1, 1, config={"retention.ms": "soon"}), confluent_kafka.KafkaError.INVALID_CONFIG),
        (NewTopic("unknown", 1, 1, config={"no.such.key": "1"}), confluent_kafka.KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic[:10] if isinstance(value, NewTopic) else "",
)
def test_a_bad_topic_is_refused(admin: AdminClient, wanted: NewTopic, expected: int) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        admin.create_topics([wanted])[wanted.topic].result(DEADLINE_S)
    assert code(failure) == expected
    assert wanted.topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_a_topic_is_created_once_and_an_unknown_one_not_deleted(admin: AdminClient, topic: str) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    assert code(failure) == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        admin.delete_topics(["no-such-topic"])["no-such-topic"].result(DEADLINE_S)
    assert code(failure) == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)
    assert code(failure) == confluent_kafka.KafkaError.INVALID_PARTITIONS


def test_a_dry_run_creates_nothing(admin: AdminClient) -> None:
    name = topic_name("dry")
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(DEADLINE_S)
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics


def test_the_cluster_describes_itself(admin: AdminClient, bootstrap: str, topic: str) -> None:
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.cluster_id
    described = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(DEADLINE_S)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert all([node.id for node in partition.isr] == [partition.leader.id] for partition in described.partitions)


def test_records_are_deleted_up_to_an_offset(bootstrap: str, topic: str, admin: AdminClient) -> None:
    produce(bootstrap, topic, messages(20))
    wanted = confluent_kafka.TopicPartition(topic, 0, 12)
    assert admin.delete_records([wanted])[wanted].result(DEADLINE_S).low_watermark == 12
    asked = confluent_kafka.TopicPartition(topic, 0)
    assert admin.list_offsets({asked: OffsetSpec.earliest()})[asked].result(DEADLINE_S).offset == 12
    beyond = confluent_kafka.TopicPartition(topic, 0, 21)
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        admin.delete_records([beyond])[beyond].result(DEADLINE_S)
    assert code(failure) == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE
