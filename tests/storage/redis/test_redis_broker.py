"""A broker whose logs are in Redis, and what its clients hear when Redis does not answer, or has too few replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from structlog.testing import capture_logs

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.boot import Broker
from headrace.broker.cluster import membership
from headrace.broker.config import BrokerConfig
from headrace.broker.partitions.condition import states_of_disk
from headrace.broker.partitions.partition import Partition
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.faults import Unreachable
from headrace.storage.engine.medium import REDIS
from headrace.storage.engine.reading import Fetched
from headrace.storage.redis import engine as redis_engine
from headrace.storage.redis import flushing
from headrace.storage.redis import log as redis_log
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.links import watching
from headrace.storage.redis.links.address import parse_redis_address
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.wire.records import Record
from tests.broker.data_path import batch, create, fetch, produce
from tests.broker.group_broker import QUICK, RawClient, until
from tests.storage.redis.conftest import Start
from tests.storage.redis.redis_world import SAFE, follow, unstarted
from tools.servers.redis_servers import RedisServer


class Running:
    """One broker, a client, and a topic `t` of one partition."""

    def __init__(self, broker: Broker, client: RawClient) -> None:
        self.broker = broker
        self.client = client

    @property
    def partition(self) -> Partition:
        topic = self.broker.image.topic("t")
        assert topic is not None
        found = self.broker.parts.partitions.leader(TopicPartition(topic.id, PartitionIndex(0)))
        assert found is not None
        return found


@asynccontextmanager
async def running(
    server: RedisServer, directory: Path, of_broker: Mapping[str, str] | None = None, **configs: str
) -> AsyncIterator[Running]:
    config = BrokerConfig(
        data=directory, port=0, configs={**QUICK, **(of_broker or {})}, redis=parse_redis_address(server.url)
    )
    async with (
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        world = Running(broker, client)
        if broker.image.topic("t") is None:
            await create(client, "t", 1, **configs)
        else:  # a new leader takes nothing that it finds for durable until Redis has confirmed it
            await until(lambda: world.partition.high_watermark == world.partition.log.log_end_offset)
        yield world


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_write_is_answered_once_redis_has_it(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int, is_plain: bool
) -> None:
    codec = "producer" if is_plain else "gzip"
    async with running(server, tmp_path, compression_type=codec) as world:
        assert (await produce(world.client, "t", batch(b"first"), acks=acks)).error_code == 0
        server.pause()
        sent = asyncio.ensure_future(produce(world.client, "t", batch(b"second"), acks=acks))
        await until(lambda: world.partition.log.log_end_offset == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not sent.done()
        server.resume()
        assert (await sent).base_offset == 1


async def test_too_much_that_waits_for_redis_is_refused_for_a_moment_and_no_disk_is_called_full(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server, tmp_path) as world:
        assert (await produce(world.client, "t", batch(b"first"))).error_code == 0
        monkeypatch.setattr(redis_log, "REDIS_UNFLUSHED_BYTES_MAX", 0)
        with capture_logs() as lines:
            refused = await produce(world.client, "t", batch(b"second"))
            assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
            await world.broker.parts.logs.room.look()
        assert [line for line in lines if line["log_level"] in ("error", "warning")] == []
        monkeypatch.undo()
        assert (await produce(world.client, "t", batch(b"second"))).base_offset == 1


async def test_a_redis_without_memory_is_told_as_such(server: RedisServer, tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with running(server, tmp_path, {"log.disk.min.free.bytes": str(2**60)}) as world:
            await world.broker.parts.logs.room.look()
            refused = await produce(world.client, "t", batch(b"first"))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert refused.error_message == REDIS.full
            (state,) = states_of_disk(world.broker.parts.logs.room)
            assert state.text.startswith("its Redis has")
            assert "raise its maxmemory" in state.todo
    (told,) = [line["event"] for line in lines if line["log_level"] == "error"]
    assert told.startswith("the memory of Redis is full")
    assert not any(" disk" in line["event"] for line in lines)


async def test_fewer_replicas_of_redis_than_are_asked_for_are_no_acknowledgement(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server, tmp_path, min_insync_replicas="2") as world:
        refused = await produce(world.client, "t", batch(b"first"))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await produce(world.client, "t", batch(b"first"), acks=1)).error_code == 0


async def test_older_records_that_redis_does_not_give_are_asked_for_again(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server, tmp_path) as world:
        assert (await produce(world.client, "t", batch(b"first"))).error_code == 0
    async with running(server, tmp_path) as world:
        server.kill()
        refused = await fetch(world.client, "t", 0, wait_ms=30_000)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.to_thread(server.start)
        while not bytes((found := await fetch(world.client, "t", 0, wait_ms=30_000)).records or b""):
            # A Redis that was started again has another history: the leader epoch rises, and whoever waits is answered.
            assert found.error_code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert b"first" in bytes(found.records)


async def test_older_records_come_though_the_client_does_not_wait_or_others_are_at_hand(
    server: RedisServer, tmp_path: Path
) -> None:
    async with running(server, tmp_path) as world:
        await create(world.client, "u", 1)
        assert (await produce(world.client, "t", batch(b"older"))).error_code == 0
    async with running(server, tmp_path) as world:
        await until(lambda: world.partition.high_watermark == 1)
        assert b"older" in bytes((await fetch(world.client, "t", 0, wait_ms=0)).records)
        assert (await produce(world.client, "u", batch(b"newest"))).error_code == 0
        wanted = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),)
        topics = tuple(FetchTopic(topic=name, partitions=wanted) for name in ("u", "t", "gone"))
        answer = await world.client.ask(11, FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=topics))
        found = [bytes(topic.partitions[0].records or b"") for topic in answer.responses]
        assert b"newest" in found[0]
        assert b"older" in found[1]
        assert answer.responses[2].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_stops_though_redis_does_not_answer_and_acknowledges_nothing(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LEAVE_WAIT_MS_MAX", 100)
    monkeypatch.setattr(redis_engine, "REDIS_STOP_MS_MAX", 100)
    async with running(server, tmp_path) as world:
        assert (await produce(world.client, "t", batch(b"first"))).error_code == 0
        server.pause()
        sent = asyncio.ensure_future(produce(world.client, "t", batch(b"second")))
        await until(lambda: world.partition.log.log_end_offset == 2)
        await world.broker.stop()
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # then it was not told
            assert (await sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    server.resume()


async def test_groups_are_loaded_once_redis_gives_their_records(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, real, refused = AioPartition("t", 0), RedisEngine._fetched, list[str]()

    async def unreachable_at_first(self: RedisEngine, stream: str, start: int) -> Fetched:
        if "__consumer_offsets" in stream and len(refused) < 2:
            refused.append(stream)
            raise Unreachable("not yet")
        return await real(self, stream, start)

    async with running(server, tmp_path) as world:
        assert (await produce(world.client, "t", batch(b"first"))).error_code == 0
        async with AIOKafkaConsumer(bootstrap_servers=world.client.address, group_id="g") as reader:
            reader.assign([where])
            await reader.commit({where: 1})
    monkeypatch.setattr(RedisEngine, "_fetched", unreachable_at_first)
    asked = OffsetFetchRequestGroup(group_id="g", topics=None)
    async with running(server, tmp_path) as world:
        while (found := (await world.client.ask(8, OffsetFetchRequest(groups=(asked,)))).groups[0]).error_code:
            assert found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert found.topics[0].partitions[0].committed_offset == 1
    assert len(refused) == 2


async def test_the_offsets_topic_stays_small_however_often_is_committed(server: RedisServer, tmp_path: Path) -> None:
    configs = {
        "log.cleaner.backoff.ms": "10",
        "offsets.topic.segment.bytes": "1024",
        "offsets.topic.num.partitions": "1",
    }
    where = AioPartition("t", 0)
    async with running(server, tmp_path, configs) as world:
        assert (await produce(world.client, "t", batch(*[b"value"] * 2000))).error_code == 0
        async with AIOKafkaConsumer(
            bootstrap_servers=world.client.address, group_id="g", enable_auto_commit=False
        ) as reader:
            reader.assign([where])
            for offset in range(200):
                await reader.commit({where: offset})
        (log,) = [each.log for each in world.broker.parts.partitions if each.topic == "__consumer_offsets"]
        await until(lambda: log.gaps_below > 150 and log.size_bytes < 5_000)
        assert log.log_end_offset == 200
    asked = OffsetFetchRequestGroup(group_id="g", topics=None)
    async with running(server, tmp_path, configs) as world:
        while (found := (await world.client.ask(8, OffsetFetchRequest(groups=(asked,)))).groups[0]).error_code:
            assert found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert found.topics[0].partitions[0].committed_offset == 199


async def with_replica(start: Start) -> tuple[RedisServer, RedisServer]:
    server = start(*SAFE, "--repl-diskless-sync-delay", "0", tcp=True)
    replica = start(*SAFE, tcp=True)
    await follow(replica, server)
    return server, replica


async def acknowledged(client: RawClient, records: bytes) -> int:
    """The offset of a batch, sent again as long as too few replicas have it in time. On a busy machine one that lives
    may be late."""
    while (answer := await produce(client, "t", records)).error_code:
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return int(answer.base_offset)


@pytest.mark.usefixtures("engines")
async def test_a_topic_exists_once_a_replica_of_redis_has_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = await with_replica(start)
    asked = unstarted(server).blocking
    async with running(server, tmp_path, {"min.insync.replicas": "2"}) as world:
        monkeypatch.setattr(watching, "REDIS_WAIT_MS", 4_900)
        replica.pause()
        looked = MetadataRequest(topics=(MetadataRequestTopic(name="u"),), allow_auto_topic_creation=False)
        async with RawClient(world.client.address) as other:
            made = asyncio.ensure_future(create(world.client, "u", 1))
            await until(lambda: asked.call("EXISTS", "headrace:topic:u") == 1)
            for _ in range(3):  # few: it is made without the replica once Redis has waited for REDIS_WAIT_MS
                (found,) = (await other.ask(9, looked)).topics
                assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not made.done()
        replica.resume()
        await made
        asked_for = CreatableTopic(name="v", num_partitions=1, replication_factor=3)
        (answer,) = (await world.client.ask(7, CreateTopicsRequest(topics=(asked_for,)))).topics
        assert (answer.error_code, answer.replication_factor) == (0, 2), "the master's copy and the replica's"


@pytest.mark.usefixtures("engines")
async def test_a_replica_that_does_not_take_records_is_no_acknowledgement(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = await with_replica(start)
    async with running(server, tmp_path, min_insync_replicas="2") as world:
        await acknowledged(world.client, batch(b"first"))
        monkeypatch.setattr(flushing, "REDIS_WAIT_MS", 50)
        replica.pause()
        refused = await produce(world.client, "t", batch(b"second"))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        replica.resume()
        monkeypatch.undo()
        await acknowledged(world.client, batch(b"third"))


@pytest.mark.usefixtures("engines")
async def test_a_batch_that_comes_again_is_acknowledged_once_its_copies_are_there(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = await with_replica(start)
    once = encode_batch([Record(0, 0, None, b"once")], producer_id=7, producer_epoch=0, base_sequence=0)
    async with running(server, tmp_path, min_insync_replicas="2") as world:
        monkeypatch.setattr(flushing, "REDIS_WAIT_MS", 50)
        replica.pause()
        for _ in range(2):
            refused = await produce(world.client, "t", once)
            assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        replica.resume()
        monkeypatch.undo()
        assert await acknowledged(world.client, once) == 0
