"""Producer and consumer against a scripted leader: what is sent again, what is given up, what is passed on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer
from headrace.net.client.errors import ClientError, GaveUpError, RefusedError
from headrace.net.client.producer import Producer
from headrace.net.client.retry import Backoff
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader
from headrace.wire.messages import fetch, metadata, produce
from headrace.wire.messages.init_producer_id import InitProducerIdResponse
from headrace.wire.records import Record
from tests.net.scripted_broker import Answer, ScriptedBroker, scripted_broker

TOPIC = "t"
TOPIC_ID = UUID(int=7)
NOBODY = -1
QUICK = Backoff(attempts_max=5, first_ms=1, longest_ms=1)


def led_by(broker: ScriptedBroker, *leaders: int) -> metadata.MetadataResponse:
    """One topic of so many partitions; the scripted broker is 1."""
    parts = tuple(
        metadata.MetadataResponsePartition(
            partition_index=index, leader_id=each, leader_epoch=0, replica_nodes=(1,), isr_nodes=(1,)
        )
        for index, each in enumerate(leaders)
    )
    return metadata.MetadataResponse(
        brokers=(metadata.MetadataResponseBroker(1, *broker.address, None),),
        controller_id=1,
        topics=(metadata.MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=parts),),
    )


def leader(broker: ScriptedBroker) -> Answer:
    """Metadata: one topic of one partition, led by the scripted broker."""
    return lambda *_: led_by(broker, 1)


def scripted(broker: ScriptedBroker, key: ApiKey, answers: Iterator[Any]) -> None:
    broker.answers |= {
        ApiKey.METADATA: leader(broker),
        ApiKey.INIT_PRODUCER_ID: lambda *_: InitProducerIdResponse(producer_id=42, producer_epoch=0),
        key: lambda *_: next(answers),
    }


def produced(code: int = 0, base_offset: int = 0) -> produce.ProduceResponse:
    part = produce.PartitionProduceResponse(index=0, error_code=code, base_offset=base_offset)
    return produce.ProduceResponse(
        responses=(produce.TopicProduceResponse(name=TOPIC, topic_id=TOPIC_ID, partition_responses=(part,)),)
    )


def fetched(code: int = 0, data: bytes = b"") -> fetch.FetchResponse:
    part = fetch.PartitionData(partition_index=0, error_code=code, high_watermark=100, records=data)
    return fetch.FetchResponse(
        responses=(fetch.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=(part,)),)
    )


def sent_batches(broker: ScriptedBroker) -> list[tuple[int, int, int]]:
    """Producer id, base sequence and count of each batch that the broker was sent."""
    found = []
    for header, request in broker.requests:
        if header.api_key == ApiKey.PRODUCE:
            batch = parse_header(request.topic_data[0].partition_data[0].records)
            found.append((batch.producer_id, batch.base_sequence, batch.count))
    return found


async def test_a_retried_batch_keeps_its_sequence_and_the_next_one_follows() -> None:
    async with scripted_broker({}) as broker:
        answers = [produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), produced(ErrorCode.NOT_ENOUGH_REPLICAS), produced(0, 5)]
        scripted(broker, ApiKey.PRODUCE, iter([*answers, produced(0, 8)]))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Producer(cluster, batch_bytes=90) as producer:
            places = [await producer.send(TOPIC, value=b"x", timestamp_ms=0) for _ in range(4)]
        assert [place.result().offset for place in places] == [5, 6, 7, 8]
        assert sent_batches(broker) == [(42, 0, 3), (42, 0, 3), (42, 0, 3), (42, 3, 1)]


async def test_a_refused_batch_gives_its_sequence_back() -> None:
    async with scripted_broker({}) as broker:
        scripted(broker, ApiKey.PRODUCE, iter([produced(ErrorCode.MESSAGE_TOO_LARGE), produced(0, 9)]))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Producer(cluster, batch_bytes=30) as producer:
            places = [await producer.send(TOPIC, value=b"x" * 9, timestamp_ms=0) for _ in range(2)]
        assert isinstance(places[0].exception(), RefusedError)
        assert places[1].result().offset == 9
        assert [sequence for _, sequence, _ in sent_batches(broker)] == [0, 0]


async def test_a_batch_that_is_refused_when_sent_again_does_not_give_its_sequence_to_another() -> None:
    """The first may be stored: the broker would take another batch under its sequence for a repeat."""
    async with scripted_broker({}) as broker:
        answers = [produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), produced(ErrorCode.MESSAGE_TOO_LARGE)]
        scripted(broker, ApiKey.PRODUCE, iter([*answers, produced(0, 9)]))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Producer(cluster, batch_bytes=30) as producer:
            places = [await producer.send(TOPIC, value=b"x" * 9, timestamp_ms=0) for _ in range(2)]
        assert [type(place.exception()) for place in places] == [RefusedError] * 2
        assert len(sent_batches(broker)) == 2


async def test_a_repeat_that_the_broker_dropped_counts_as_written() -> None:
    async with scripted_broker({}) as broker:
        scripted(broker, ApiKey.PRODUCE, iter([produced(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)]))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Producer(cluster) as producer:
            place = await producer.send(TOPIC, value=b"x", timestamp_ms=0)
        assert place.result().offset == -1


@pytest.mark.parametrize("nonsense", [produce.ProduceResponse(), b"\0\0\0\1\0"])
async def test_a_brokers_nonsense_fails_every_record_and_hangs_none(nonsense: Any) -> None:
    async with scripted_broker({}) as broker:
        scripted(broker, ApiKey.PRODUCE, iter([nonsense] * QUICK.attempts_max))
        async with Cluster([broker.address], backoff=QUICK) as cluster:
            producer = Producer(cluster, batch_bytes=60)
            places = [await producer.send(TOPIC, value=b"x" * 20, timestamp_ms=0) for _ in range(4)]
            await producer.flush()
            assert [type(place.exception()) for place in places] == [GaveUpError] * 4
            with pytest.raises(ClientError):
                await producer.send(TOPIC, value=b"x", timestamp_ms=0)
            await producer.abort()


async def test_acks_0_waits_for_nothing() -> None:
    async with scripted_broker({}) as broker:
        scripted(broker, ApiKey.PRODUCE, iter([None] * 3))
        async with (
            Cluster([broker.address], backoff=QUICK) as cluster,
            Producer(cluster, acks=0, idempotent=False) as producer,
        ):
            place = await producer.send(TOPIC, value=b"x", timestamp_ms=0)
            assert (await place).offset == -1


async def test_a_consumer_follows_the_leader_and_passes_on_what_is_whole() -> None:
    records = [Record(offset, 0, None, b"v%d" % offset) for offset in range(6)]
    whole = encode_batch(records[:3]) + encode_batch(records[3:5])
    cut = encode_batch(records[5:])
    async with scripted_broker({}) as broker:
        script = [
            fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER),
            fetched(0, whole + cut[:-1]),
            fetched(ErrorCode.FENCED_LEADER_EPOCH),
            fetched(0, cut),
        ]
        scripted(broker, ApiKey.FETCH, iter([*script, *[fetched()] * 3]))
        found: list[Record] = []
        async with Cluster([broker.address], backoff=QUICK) as cluster, Consumer(cluster) as consumer:
            consumer.assign(TOPIC, 0, 1)
            while len(found) < 5:
                found += [record for one in await consumer.poll() for record in one.records]
        assert found == records[1:]


async def for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.poll()


async def test_a_consumer_finds_who_leads_once_somebody_does() -> None:
    async with scripted_broker({}) as broker:
        data = encode_batch([Record(0, 0, None, b"value")])
        scripted(broker, ApiKey.FETCH, iter([fetched(0, data), *[fetched()] * 3]))
        told = iter([NOBODY, NOBODY, 1])
        broker.answers[ApiKey.METADATA] = lambda *_: led_by(broker, next(told))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Consumer(cluster) as consumer:
            consumer.assign(TOPIC, 0, 0)
            assert [await consumer.poll() for _ in range(2)] == [[], []]
            assert [record.value for one in await consumer.poll() for record in one.records] == [b"value"]


async def test_a_partition_without_a_leader_holds_up_no_other() -> None:
    """It is read as well, as soon as somebody leads it."""
    async with scripted_broker({}) as broker:
        offsets, asked = {0: 0, 1: 0}, []

        def answer(_: RequestHeader, request: fetch.FetchRequest) -> fetch.FetchResponse:
            parts = []
            for part in request.topics[0].partitions:
                asked.append(part.partition)
                at = part.fetch_offset
                offsets[part.partition] = at
                parts.append(
                    fetch.PartitionData(
                        partition_index=part.partition,
                        high_watermark=at + 1,
                        records=encode_batch([Record(at, 0, None, b"%d" % part.partition)]),
                    )
                )
            topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=tuple(parts))
            return fetch.FetchResponse(responses=(topic,))

        second = NOBODY
        scripted(broker, ApiKey.FETCH, iter(()))
        broker.answers |= {ApiKey.METADATA: lambda *_: led_by(broker, 1, second), ApiKey.FETCH: answer}
        patient = Backoff(attempts_max=10_000, first_ms=1, longest_ms=1)
        async with Cluster([broker.address], backoff=patient) as cluster, Consumer(cluster) as consumer:
            for index in offsets:
                consumer.assign(TOPIC, index, 0)
            while offsets[0] < 3:
                assert {one.partition for one in await consumer.poll()} <= {0}
            assert set(asked) == {0}
            second = 1
            while not offsets[1]:
                await consumer.poll()
            second = NOBODY
        async with Cluster([broker.address], backoff=QUICK) as cluster, Consumer(cluster) as consumer:
            for index in offsets:
                consumer.assign(TOPIC, index, 0)
            with pytest.raises(GaveUpError, match=r"Partition 1 of topic 't': .* gave up after \d tries"):
                await for_ever(consumer)


async def test_damage_on_the_way_is_found() -> None:
    data = bytearray(encode_batch([Record(0, 0, None, b"value")]))
    data[-3] ^= 1
    async with scripted_broker({}) as broker:
        scripted(broker, ApiKey.FETCH, iter([fetched(0, bytes(data)), *[fetched()] * 3]))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Consumer(cluster) as consumer:
            consumer.assign(TOPIC, 0, 0)
            with pytest.raises(Exception, match=r"Partition 0 of topic 't': the batch at offset 0 fails its CRC32C\."):
                await consumer.poll()


async def test_a_consumer_gives_up_after_too_many_failures_in_a_row() -> None:
    async with scripted_broker({}) as broker:
        scripted(broker, ApiKey.FETCH, iter([fetched(ErrorCode.LEADER_NOT_AVAILABLE)] * 20))
        async with Cluster([broker.address], backoff=QUICK) as cluster, Consumer(cluster) as consumer:
            consumer.assign(TOPIC, 0, 0)
            for _ in range(QUICK.attempts_max - 1):
                assert await consumer.poll() == []
            with pytest.raises(GaveUpError, match="gave up after 5 tries"):
                await consumer.poll()
