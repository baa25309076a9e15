"""Batches that were sealed before, against a scripted leader: what is sent again, in which order, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from headrace.base.ids import TopicId
from headrace.base.limits import CLIENT_PRODUCES_IN_FLIGHT_MAX
from headrace.net.client import delivery as delivering
from headrace.net.client.cluster import Cluster
from headrace.net.client.delivery import Delivery, SealedBatch, UndeliveredError
from headrace.net.client.errors import GaveUpError
from headrace.net.client.retry import Backoff
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader
from headrace.wire.messages import metadata, produce
from headrace.wire.messages.init_producer_id import InitProducerIdResponse
from headrace.wire.records import Record
from tests.net.scripted_broker import ScriptedBroker, scripted_broker, versions_response

TOPIC = "t"
TOPIC_ID = TopicId(UUID(int=7))
QUICK = Backoff(first_ms=1, longest_ms=1)


class Leader:
    """Of every partition. Codes are taken in the order of requests; each is for all partitions of one, or silence."""

    def __init__(self, broker: ScriptedBroker, codes: Sequence[int | None], partitions: int = 1) -> None:
        self.codes = list(codes)
        self.topic_id = TOPIC_ID
        self.partitions = partitions
        self.sent: list[dict[int, tuple[int, int]]] = []
        """Of each request, by partition: base sequence and count."""
        self.waiting: list[asyncio.Future[None]] | None = None
        """Requests that are not answered yet, where a test wants to answer them itself."""
        self.elsewhere: dict[int, ScriptedBroker] = {}
        """Partitions that broker 2 leads."""
        self._address = broker
        broker.answers |= {
            ApiKey.METADATA: self.metadata,
            ApiKey.INIT_PRODUCER_ID: lambda *_: InitProducerIdResponse(producer_id=42, producer_epoch=0),
            ApiKey.PRODUCE: self.produce,
        }

    def metadata(self, _: RequestHeader, __: Any) -> metadata.MetadataResponse:
        parts = tuple(
            metadata.MetadataResponsePartition(
                partition_index=at,
                leader_id=2 if at in self.elsewhere else 1,
                leader_epoch=0,
                replica_nodes=(1,),
                isr_nodes=(1,),
            )
            for at in range(self.partitions)
        )
        brokers = [(1, self._address), *((2, each) for each in self.elsewhere.values())]
        return metadata.MetadataResponse(
            brokers=tuple(metadata.MetadataResponseBroker(at, *each.address, None) for at, each in brokers),
            controller_id=1,
            topics=(metadata.MetadataResponseTopic(name=TOPIC, topic_id=self.topic_id, partitions=parts),),
        )

    async def produce(self, _: RequestHeader, request: Any) -> Any:
        (topic,) = request.topic_data
        assert request.acks == -1
        headers = {part.index: parse_header(part.records) for part in topic.partition_data}
        self.sent.append({at: (header.base_sequence, header.count) for at, header in headers.items()})
        code = self.codes.pop(0) if self.codes else 0
        if topic.topic_id != self.topic_id:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if self.waiting is not None:
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
        if code is None:
            return b""
        parts = tuple(produce.PartitionProduceResponse(index=at, error_code=code, base_offset=0) for at in headers)
        answer = produce.TopicProduceResponse(name=TOPIC, topic_id=topic.topic_id, partition_responses=parts)
        return produce.ProduceResponse(responses=(answer,))


def sealed(delivery: Delivery, partition: int, count: int, topic_id: TopicId = TOPIC_ID) -> SealedBatch:
    producer_id, epoch = delivery.producer
    sequence = delivery.next_sequence(topic_id, partition, count)
    records = [Record(at, 0, None, b"v") for at in range(count)]
    data = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return SealedBatch(TOPIC, topic_id, partition, data)


async def opened(broker: ScriptedBroker, timeout_ms: int = 60_000, **options: Any) -> tuple[Cluster, Delivery]:
    cluster = Cluster([broker.address], backoff=QUICK, **options)
    delivery = Delivery(cluster, timeout_ms=timeout_ms)
    await delivery.open()
    return cluster, delivery


@pytest.mark.parametrize(
    "codes",
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    ],
)
async def test_what_a_pause_may_heal_is_sent_again_the_same_before_what_follows(codes: tuple[int, ...]) -> None:
    async with scripted_broker({}) as broker:
        leader = Leader(broker, codes)
        cluster, delivery = await opened(broker)
        async with cluster:
            await delivery.deliver([sealed(delivery, 0, 3), sealed(delivery, 0, 2)])
            await delivery.close()
        again = len(codes) - (ErrorCode.DUPLICATE_SEQUENCE_NUMBER in codes)
        assert leader.sent == [{0: (0, 3)}] * (again + 1) + [{0: (3, 2)}]


async def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_sequence() -> None:
    async with scripted_broker({}) as broker:
        leader = Leader(broker, [])
        cluster, delivery = await opened(broker)
        cut = broker.answers[ApiKey.PRODUCE]

        async def nonsense(header: RequestHeader, request: Any) -> Any:
            await cut(header, request)
            broker.answers[ApiKey.PRODUCE] = cut
            return b"\0\0\0\1\0"

        broker.answers[ApiKey.PRODUCE] = nonsense
        async with cluster:
            await delivery.deliver([sealed(delivery, 0, 3)])
            await delivery.close()
        assert leader.sent == [{0: (0, 3)}] * 2


async def test_never_two_of_one_partition_nor_too_many_requests_are_under_way() -> None:
    async with scripted_broker({}) as broker:
        leader = Leader(broker, [], partitions=20)
        leader.waiting = []
        cluster, delivery = await opened(broker)
        async with cluster:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(delivering, "CLIENT_PRODUCE_PARTITIONS_MAX", 2)
                calls = [[sealed(delivery, partition, 1) for partition in range(20)] for _ in range(3)]
                works = [asyncio.ensure_future(delivery.deliver(calls.pop(0)))]
                answered = 0
                while calls or not all(work.done() for work in works):
                    await asyncio.sleep(0)
                    if calls and leader.sent:  # while the call before is under way
                        works.append(asyncio.ensure_future(delivery.deliver(calls.pop(0))))
                    open_ = leader.sent[answered:]
                    assert len(open_) <= CLIENT_PRODUCES_IN_FLIGHT_MAX
                    under_way = [partition for request in open_ for partition in request]
                    assert len(set(under_way)) == len(under_way)
                    if len(leader.waiting) > answered:
                        leader.waiting[answered].set_result(None)
                        answered += 1
                await asyncio.gather(*works)
                await delivery.close()
        for partition in range(20):
            assert [request[partition][0] for request in leader.sent if partition in request] == [0, 1, 2]


async def test_a_refusal_ends_the_delivery_and_names_the_partition() -> None:
    async with scripted_broker({}) as broker:
        Leader(broker, [0, ErrorCode.MESSAGE_TOO_LARGE])
        cluster, delivery = await opened(broker)
        async with cluster:
            await delivery.deliver([sealed(delivery, 0, 1)])
            with pytest.raises(UndeliveredError, match=r"Partition 0 of topic 't': .*MESSAGE_TOO_LARGE") as caught:
                await delivery.deliver([sealed(delivery, 0, 1), sealed(delivery, 0, 1)])
            assert (caught.value.topic, caught.value.partition) == (TOPIC, 0)
            with pytest.raises(UndeliveredError):
                await delivery.deliver([sealed(delivery, 0, 1)])
            await delivery.close()


async def test_a_batch_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is nearly over when it is refused first; to connect there is enough of it on any machine."""
    monkeypatch.setattr(delivering, "CLOCK_SLACK_S", 59.97)
    async with scripted_broker({}) as broker:
        Leader(broker, [ErrorCode.NOT_ENOUGH_REPLICAS] * 10_000)
        cluster, delivery = await opened(broker, timeout_ms=60_000)
        async with cluster:
            with pytest.raises(UndeliveredError, match=r"too few replicas .*gave up after") as caught:
                await delivery.deliver([sealed(delivery, 0, 1)])
            assert isinstance(caught.value.reason, GaveUpError)
            await delivery.close()


async def test_a_topic_made_anew_gets_nothing_that_was_meant_for_the_old_one() -> None:
    async with scripted_broker({}) as broker:
        leader = Leader(broker, [ErrorCode.UNKNOWN_TOPIC_ID])
        cluster, delivery = await opened(broker)
        async with cluster:
            await cluster.topic(TOPIC)
            leader.topic_id = TopicId(UUID(int=8))
            with pytest.raises(UndeliveredError, match="deleted since, and made anew"):
                await delivery.deliver([sealed(delivery, 0, 1)])
            await delivery.close()
        assert len(leader.sent) == 1


async def test_who_waits_is_told_that_the_delivery_was_closed() -> None:
    async with scripted_broker({}) as broker:
        leader = Leader(broker, [])
        leader.waiting = []
        cluster, delivery = await opened(broker)
        async with cluster:
            work = asyncio.ensure_future(delivery.deliver([sealed(delivery, 0, 1)]))
            while not leader.sent:  # noqa: ASYNC110 - what comes is a request
                await asyncio.sleep(0)
            await delivery.close()
            with pytest.raises(UndeliveredError, match="The delivery was closed"):
                await work


async def test_what_is_meant_for_a_topic_made_anew_gets_there() -> None:
    async with scripted_broker({}) as broker:
        leader, anew = Leader(broker, []), TopicId(UUID(int=8))
        cluster, delivery = await opened(broker)
        async with cluster:
            await delivery.deliver([sealed(delivery, 0, 3)])
            leader.topic_id = anew
            await delivery.deliver([sealed(delivery, 0, 2, anew), sealed(delivery, 0, 4, anew)])
            await delivery.close()
        assert leader.sent == [{0: (0, 3)}, {0: (0, 2)}, {0: (2, 4)}]


async def test_a_partition_whose_leader_is_looked_for_keeps_no_other_waiting() -> None:
    async with scripted_broker({}) as broker:
        leader = Leader(broker, [ErrorCode.NOT_LEADER_OR_FOLLOWER], partitions=2)
        cluster, delivery = await opened(broker)
        async with cluster:
            await cluster.topic(TOPIC)
            asked, told = asyncio.Event(), asyncio.Event()

            async def slow(header: RequestHeader, request: Any) -> Any:
                asked.set()
                await told.wait()
                return leader.metadata(header, request)

            broker.answers[ApiKey.METADATA] = slow
            refused = asyncio.ensure_future(delivery.deliver([sealed(delivery, 0, 1)]))
            await asked.wait()
            await delivery.deliver([sealed(delivery, 1, 1)])
            assert not refused.done()
            told.set()
            await refused
            await delivery.close()
        assert leader.sent == [{0: (0, 1)}, {1: (0, 1)}, {0: (0, 1)}]


@pytest.mark.parametrize("hanging", [ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS])
async def test_a_broker_that_hangs_is_not_waited_for_longer_than_a_batch_is_tried(hanging: ApiKey) -> None:
    async with scripted_broker({}) as broker, scripted_broker({}) as other:
        leader = Leader(broker, [])
        leader.elsewhere = {0: other}
        never = 10**9
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delivering, "PRODUCE_TIMEOUT_MS", never)
            limits = {"request_timeout_ms": never, "connect_timeout_ms": never}
            cluster, delivery = await opened(broker, timeout_ms=30, **limits)
            async with cluster:
                for each in (broker, other):
                    each.answers[hanging] = lambda *_: None
                with pytest.raises(UndeliveredError, match=r"gave up after"):
                    await delivery.deliver([sealed(delivery, 0, 1)])
                await delivery.close()


async def test_after_a_failure_nothing_more_is_sent() -> None:
    """Not by a request either that waits for its connection meanwhile."""
    async with scripted_broker({}) as broker, scripted_broker({}) as other:
        leader, connecting, connected = (
            Leader(broker, [ErrorCode.MESSAGE_TOO_LARGE], 2),
            asyncio.Event(),
            asyncio.Event(),
        )
        leader.elsewhere = {1: other}

        async def slow(_: RequestHeader, __: Any) -> Any:
            connecting.set()
            await connected.wait()
            return versions_response()

        other.answers |= {ApiKey.API_VERSIONS: slow, ApiKey.PRODUCE: leader.produce}
        cluster, delivery = await opened(broker)
        async with cluster:
            later = asyncio.ensure_future(delivery.deliver([sealed(delivery, 1, 1)]))
            await connecting.wait()
            with pytest.raises(UndeliveredError):
                await delivery.deliver([sealed(delivery, 0, 1)])
            connected.set()
            with pytest.raises(UndeliveredError):
                await later
            await asyncio.gather(*delivery._tasks)
            await delivery.close()
        assert leader.sent == [{0: (0, 1)}]


@pytest.mark.parametrize("nonsense", [produce.ProduceResponse(), None])
async def test_a_brokers_nonsense_hangs_nobody(nonsense: Any) -> None:
    async with scripted_broker({}) as broker:
        Leader(broker, [])
        broker.answers[ApiKey.PRODUCE] = lambda *_: b"\0\0\0\1\0" if nonsense is None else nonsense
        cluster, delivery = await opened(broker, timeout_ms=30)
        async with cluster:
            with pytest.raises(UndeliveredError):
                await delivery.deliver([sealed(delivery, 0, 1)])
            await delivery.close()


async def test_metadata_is_not_asked_for_behind_batches_that_wait() -> None:
    """Answers come in the order of requests: a leader that waits for replicas would keep who leads from being told."""
    async with scripted_broker({}) as broker:
        leader = Leader(broker, [])
        leader.waiting = []
        answer, came = leader.produce, asyncio.Event()

        async def produce(header: RequestHeader, request: Any) -> Any:
            came.set()
            return await answer(header, request)

        broker.answers[ApiKey.PRODUCE] = produce
        cluster, delivery = await opened(broker)
        async with cluster:
            work = asyncio.ensure_future(delivery.deliver([sealed(delivery, 0, 1)]))
            await came.wait()
            (await cluster.any_connection()).abort()  # as where it led to a broker that died
            assert (await cluster.topic(TOPIC, fresh=True)).id == TOPIC_ID
            assert not work.done()
            leader.waiting[0].set_result(None)
            await work
            await delivery.close()
