"""Compaction in a running broker: by a child process, beside clients, through a restart and a deletion."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.limits import PRODUCER_BATCHES_CACHED
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.broker.upkeep import cleaner
from headrace.cli.work.dumping import dump_logs
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.log.compaction.child import decode_cleaned, pacer
from headrace.storage.log.compaction.cleaning import Cleaned, CleaningJob, SourceSegment
from headrace.storage.log.compaction.runners import CleaningRunner, run_in_child, thread_runner
from headrace.wire.batches import decode_records, encode_batch, iterate_headers
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker import data_path
from tests.broker.group_broker import RawClient
from tools import kafka_jars
from tools.engine_under_test import is_redis

RECORDS = 120
KEYS = 5
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}


class Ear:
    """In the place of the cleaner's logger: remembers, and wakes who waits for an offset."""

    def __init__(self) -> None:
        self.clean_to = 0
        self.errors: list[dict[str, Any]] = []
        self._heard = asyncio.Condition()

    def info(self, event: str, **fields: Any) -> None:
        self.clean_to = fields["clean_to"]
        self._telling = asyncio.ensure_future(self._tell())

    def error(self, event: str, **fields: Any) -> None:
        self.errors.append(fields)
        self._telling = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        async with self._heard:
            self._heard.notify_all()

    async def compacted(self, to: int) -> None:
        async with self._heard:
            await self._heard.wait_for(lambda: self.clean_to >= to)

    async def failed(self) -> None:
        async with self._heard:
            await self._heard.wait_for(lambda: bool(self.errors))


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    found = Ear()
    monkeypatch.setattr(cleaner, "log", found)
    return found


@asynccontextmanager
async def running(data: Path, run: CleaningRunner, **configs: str) -> AsyncIterator[RawClient]:
    started_with = {"log.cleaner.backoff.ms": "20"} | configs
    config = BrokerConfig(data=data, port=0, configs=started_with)
    broker = Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk(), cleaning=run)
    async with asyncio.timeout(150), broker, RawClient(f"{broker.host}:{broker.port}") as client:
        yield client


async def create(client: RawClient, **more: str) -> None:
    wanted = CONFIGS | {name.replace("_", "."): value for name, value in more.items()}
    configs = tuple(CreatableTopicConfig(name=name, value=value) for name, value in wanted.items())
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    (made,) = (await client.ask(7, CreateTopicsRequest(topics=(topic,)))).topics
    assert made.error_code == 0, made.error_message


async def produce(client: RawClient, key: bytes | None, value: bytes) -> int:
    batch = encode_batch([Record(0, 1_000, key, value)])
    data = (TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=batch),)),)
    answer = await client.ask(9, ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=data))
    return int(answer.responses[0].partition_responses[0].error_code)


async def read(client: RawClient, offset: int = 0) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    while True:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100_000)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic="t", partitions=(wanted,)),))
        (partition,) = (await client.ask(11, request)).responses[0].partitions
        assert partition.error_code == 0
        data = bytes(partition.records or b"")
        if not data:
            return found
        for at, header in iterate_headers(data):
            found.update({each.offset: (each.key, each.value) for each in decode_records(data[at:])})
            offset = header.next_offset


async def fill(client: RawClient) -> None:
    for number in range(RECORDS):
        assert await produce(client, b"k%d" % (number % KEYS), b"%d" % number + b"." * 50) == 0


async def test_a_child_process_compacts_beside_clients(
    tmp_path: Path, ear: Ear, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, run_in_child) as client:
        await create(client)
        await fill(client)
        await ear.compacted(RECORDS - 15)
        found = await read(client)
        assert len(found) < RECORDS / 2
        assert {key: offset for offset, (key, _) in found.items()} == {
            b"k%d" % (number % KEYS): number for number in range(RECORDS - KEYS, RECORDS)
        }
        assert await read(client, 2) == found, "a reader in the gap goes on"
        assert await produce(client, None, b"") == ErrorCode.INVALID_RECORD
    async with running(tmp_path, run_in_child) as client:
        again = await read(client)
        assert list(again.items())[-KEYS:] == list(found.items())[-KEYS:]
    assert not ear.errors
    if is_redis():
        return
    dump_logs(tmp_path / "logs" / "t-0", records=True, json=False)
    assert "DAMAGED" not in capsys.readouterr().out


async def test_producers_are_known_where_batches_are_recompressed_stamped_and_compacted(
    tmp_path: Path, ear: Ear
) -> None:
    def batch(number: int) -> bytes:
        records = [Record(0, 1_000, b"k%d" % (number % KEYS), b"%d" % number + b"." * 50)]
        return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=number)

    def check(data: bytes) -> None:
        for at, header in iterate_headers(data):
            assert header.compression is Compression.ZSTD
            assert header.is_log_append_time
            assert all(record.timestamp == header.max_timestamp > 1_000 for record in decode_records(data[at:]))

    async with running(tmp_path, run_in_child) as client:
        await create(client, compression_type="zstd", message_timestamp_type="LogAppendTime")
        for number in range(RECORDS):
            assert (await data_path.produce(client, "t", batch(number))).base_offset == number
        await ear.compacted(RECORDS - 15)
    async with running(tmp_path, run_in_child) as client:
        for number in range(RECORDS - PRODUCER_BATCHES_CACHED, RECORDS):
            assert (await data_path.produce(client, "t", batch(number))).base_offset == number, "a duplicate"
        found = await read(client)
        assert {key: offset for offset, (key, _) in found.items()} == {
            b"k%d" % (number % KEYS): number for number in range(RECORDS - KEYS, RECORDS)
        }
        for offset in range(RECORDS - KEYS, RECORDS):
            check(bytes((await data_path.fetch(client, "t", offset)).records))
    assert not ear.errors


@pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")
async def test_kafkas_own_tool_reads_what_was_compacted(tmp_path: Path, ear: Ear) -> None:
    async with running(tmp_path, run_in_child) as client:
        await create(client)
        await fill(client)
        await ear.compacted(RECORDS - 15)
    files = sorted((tmp_path / "logs" / "t-0").glob("*.log"))
    command = [
        *kafka_jars.QUICK_JAVA,
        "-cp",
        kafka_jars.class_path(),
        "kafka.tools.DumpLogSegments",
        "--deep-iteration",
    ]
    command += ["--files", ",".join(str(file.with_suffix(kind)) for file in files for kind in (".log", ".index"))]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=150, check=True)
    assert "isvalid: true" in done.stdout
    assert not [word for word in ("isvalid: false", "Mismatches", "Non-consecutive", "Found") if word in done.stdout]


async def test_a_topic_is_deleted_and_a_broker_stopped_in_the_middle(tmp_path: Path, ear: Ear) -> None:
    begun = asyncio.Event()
    jobs: list[CleaningJob] = []

    async def never(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        jobs.append(job)
        (job.directory / f"{0:020d}-{1:020d}-{job.token}.cleaned").write_bytes(b"half")
        begun.set()
        await stopping.wait()
        assert job.directory.is_dir(), "nothing is deleted under it"
        raise Stopped

    async with running(tmp_path, never) as client:
        for _ in range(2):
            await create(client)
            await fill(client)
            await begun.wait()
            begun.clear()
            await client.ask(6, DeleteTopicsRequest(topics=(DeleteTopicState(name="t"),), timeout_ms=1000))
        await create(client)
        await fill(client)
        await begun.wait()
    assert len(jobs) >= 3
    assert not list((tmp_path / "logs").rglob("*.cleaned"))


async def test_a_job_that_fails_leaves_the_log_as_it_was(tmp_path: Path, ear: Ear) -> None:
    async def broken(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        for source in job.sources:
            with (job.directory / f"{source.base:020d}.log").open("r+b") as file:
                file.seek(65)
                file.write(b"\xff")
            break
        return await run_in_child(job, stopping, bytes_per_second)

    async with running(tmp_path, broken) as client:
        await create(client)
        await fill(client)
        await ear.failed()
        assert await produce(client, b"k", b"") == 0
        assert len(await read(client, 30)) == RECORDS + 1 - 30
    assert len(ear.errors) == 1
    assert "CRC32C" in ear.errors[0]["reason"]


async def test_the_child_reports_what_it_met_and_ends_when_told(tmp_path: Path) -> None:
    job = CleaningJob(
        directory=tmp_path,
        sources=(SourceSegment(base=0, end=1, size=100),),
        dirty_from=0,
        now_ms=0,
        delete_retention_ms=0,
        segment_bytes=1000,
        remembered=frozenset({3}),
        token="t",
    )
    with pytest.raises(FileNotFoundError):
        await run_in_child(job, asyncio.Event(), 1e9)
    stopping = asyncio.Event()
    stopping.set()
    with pytest.raises(Stopped):
        await run_in_child(job, stopping, 1e9)


def test_the_pace_is_kept() -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = pacer(1_000_000, now=lambda: now, sleep=sleep)
    for _ in range(1_000):
        pace(10_000)
    assert 9.5 < now - 100.0 <= 10.0


@pytest.mark.parametrize("said", [b"", b'{"clean_to": 5, "fi', b'{"clean_to": 5, "files": []}'])
def test_a_child_that_ends_before_it_has_said_all_has_said_nothing(said: bytes) -> None:
    with pytest.raises(OSError, match="ended before it had said"):
        decode_cleaned(said)


async def alter_brokers(client: RawClient, name: str, key: str, value: str) -> None:
    change = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name=name, configs=(change,))
    (answer,) = (await client.ask(1, IncrementalAlterConfigsRequest(resources=(resource,)))).responses
    assert answer.error_code == 0, answer.error_message


@pytest.mark.parametrize("broker", ["", "1"])
async def test_the_cleaner_follows_what_is_configured_while_it_runs(tmp_path: Path, ear: Ear, broker: str) -> None:
    """It wakes for a shorter pause, and does not go on at a rate at which it would never end."""
    rates, under_way, real = [], asyncio.Event(), thread_runner(LocalDisk())

    async def run(job: CleaningJob, stopping: asyncio.Event, bytes_per_second: float) -> Cleaned:
        rates.append(bytes_per_second)
        if bytes_per_second == 1:
            under_way.set()
            await stopping.wait()
            raise Stopped
        return await real(job, stopping, bytes_per_second)

    configs = {"log.cleaner.backoff.ms": "9000000", "log.cleaner.io.max.bytes.per.second": "1"}
    async with running(tmp_path, run, **configs) as client:
        await create(client)
        await fill(client)
        assert not under_way.is_set()
        await alter_brokers(client, broker, "log.cleaner.backoff.ms", "0")
        await under_way.wait()
        await alter_brokers(client, broker, "log.cleaner.io.max.bytes.per.second", "1e9")
        await ear.compacted(RECORDS - 15)
    assert rates[0] == 1
    assert rates[-1] == 1e9
