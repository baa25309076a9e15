"""Acknowledgements while appends are held for a round that does not end: nothing that a kill could lose."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import FullDisk, StorageFailure
from headrace.base.ids import Offset
from headrace.base.limits import REPACK_WAITING_BYTES_MAX, WALKED_ON_LOOP_RECORDS_MAX
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.handlers import plain_produce
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.system import SystemClock, system_random
from headrace.storage.disk import LocalDisk
from headrace.storage.log.contents import Contents
from headrace.storage.log.engine import Done, LocalRound
from headrace.storage.log.flush import Ticket
from headrace.storage.log.journal.journal import JournalSettings
from headrace.wire.batches import check_batches, encode_batch
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.data_path import batch, create, fetch, offset_at, produce
from tests.broker.group_broker import QUICK, RawClient, until

MAX_TIMESTAMP = -3
THEN_MS = 1_700_000_000_000
"""The time of all other records."""
SMALL = JournalSettings(file_bytes=256 * 1024, files_max=3, after_rounds=1)


@asynccontextmanager
async def journaling(directory: Path) -> AsyncIterator[str]:
    """A broker whose journal takes part from the first rounds on, with a topic `t`."""
    config = BrokerConfig(data=directory, port=0, configs=QUICK, journal=SMALL)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        bootstrap = f"{broker.host}:{broker.port}"
        async with RawClient(bootstrap) as client:
            await create(client, "t")
            for _ in range(6):
                assert (await produce(client, "t", batch(b"first"))).error_code == 0
        assert broker._parts is not None
        [partition] = [each for each in broker._parts.partitions if each.topic == "t"]
        journal = partition.log.journal  # type: ignore[attr-defined]
        await until(lambda: journal.is_ready)
        PARTITIONS[bootstrap] = partition
        SERVED[bootstrap] = broker._parts.partitions
        yield bootstrap


PARTITIONS: dict[str, Partition] = {}
"""Of `journaling`, by the broker's address."""
SERVED: dict[str, Partitions] = {}
"""The partitions of all topics."""


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Rounds do not begin, until told to go on."""
    begun: list[Callable[[], None]] = []
    begin = LocalRound.begin

    def later(self: LocalRound, done: Done) -> None:
        begun.append(lambda: begin(self, done))

    def go_on() -> None:
        LocalRound.begin = begin  # type: ignore[method-assign]
        while begun:
            begun.pop(0)()

    LocalRound.begin = later  # type: ignore[method-assign]
    try:
        yield go_on
    finally:
        go_on()


def stored(directory: Path) -> list[int]:
    """Base offsets of the batches that a kill would leave."""
    data = b"".join(path.read_bytes() for path in sorted((directory / "logs" / "t-0").glob("*.log")))
    return [header.base_offset for _, header in check_batches(data)] if data else []


def idempotent(sequence: int) -> bytes:
    record = Record(0, 1_700_000_000_000, None, b"v%d" % sequence, ())
    return encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)


def request(records: bytes, *, acks: int = -1, timeout_ms: int = 30_000, topic: str = "t") -> ProduceRequest:
    data = (PartitionProduceData(0, memoryview(records)),)
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=(TopicProduceData(topic, partition_data=data),))


@pytest.mark.parametrize("version", [3, 9])
async def test_what_is_acknowledged_by_the_leader_alone_is_not_held(version: int, tmp_path: Path) -> None:
    """Not even where it was held before, for another who asked for more."""
    async with (
        asyncio.timeout(150),
        journaling(tmp_path) as bootstrap,
        RawClient(bootstrap) as first,
        RawClient(bootstrap) as second,
    ):
        with held_back():
            first.send(version, request(batch(b"the round that does not end")))
            first.send(version, request(idempotent(0)))
            await until(lambda: PARTITIONS[bootstrap].log.log_end_offset == 8)
            assert stored(tmp_path) == list(range(6)), "held"
            answer = (await second.ask(version, request(idempotent(0), acks=1))).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, 7)
            assert stored(tmp_path) == list(range(8)), "acknowledged, and so not to be lost by a kill"
            answer = (await second.ask(version, request(batch(b"x"), acks=1))).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, 8)
            assert stored(tmp_path) == list(range(9))
            assert not (await fetch(second, "t", 6)).records, "none of it is committed"


@pytest.mark.parametrize("version", [3, 9])
async def test_pipelined_requests_of_all_kinds_keep_their_order(version: int, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(150),
        journaling(tmp_path) as bootstrap,
        RawClient(bootstrap) as client,
        RawClient(bootstrap) as other,
    ):
        with held_back() as go_on:
            acks = [-1, 0, 1, 0, -1, 1, -1]
            for number, each in enumerate(acks):
                client.send(version, request(batch(b"%d" % number), acks=each))
            async with RawClient(bootstrap) as gone:
                gone.send(version, request(batch(b"of one that goes away")))
                await until(lambda: PARTITIONS[bootstrap].log.log_end_offset == 6 + len(acks) + 1)
            go_on()
            got: list[tuple[int, int]] = []
            for number, each in enumerate(acks, 1):
                if each:
                    size = int.from_bytes(await client._reader.readexactly(4), "big")
                    body = await client._reader.readexactly(size)
                    assert int.from_bytes(body[:4], "big") == number
                    got.append((number, size))
            assert len(got) == 5
            answer = await produce(other, "t", batch(b"last"))
            assert answer.base_offset == 6 + len(acks) + 1
            values = bytes((await fetch(other, "t", 6)).records)
            assert [header.base_offset for _, header in check_batches(values)] == list(range(6, 15))
            order = [values.index(batch(b"%d" % number)[61:]) for number in range(len(acks))]
            assert order == sorted(order)
            assert b"of one that goes away" in values


@pytest.mark.parametrize("version", [3, 9])
async def test_a_round_that_takes_too_long_is_told_in_time(version: int, tmp_path: Path) -> None:
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        with held_back() as go_on:
            late = request(batch(b"late"), timeout_ms=50)
            answer = (await client.ask(version, late)).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
            go_on()
            assert (await produce(client, "t", batch(b"next"))).base_offset == 7


@pytest.mark.parametrize("version", [3, 9])
async def test_what_only_the_journal_could_take_is_there_after_a_restart(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged before its log's own file failed, which takes the partition offline."""
    async with asyncio.timeout(150):
        async with journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
            partition = PARTITIONS[bootstrap]
            with monkeypatch.context() as patch:
                patch.setattr(Contents, "write_out", _failing(errno.EIO))
                answer = (await client.ask(version, request(batch(b"x")))).responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, 6)
                await until(lambda: partition.availability is ErrorCode.KAFKA_STORAGE_ERROR)
            answer = (await client.ask(version, request(batch(b"y")))).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert (await fetch(client, "t", 6)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert stored(tmp_path) == list(range(6))
        config = BrokerConfig(data=tmp_path, port=0, configs=QUICK, journal=SMALL)
        async with (
            Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
            RawClient(f"{broker.host}:{broker.port}") as client,
        ):
            assert b"x" in bytes((await fetch(client, "t", 6)).records or b"")
            assert (await produce(client, "t", batch(b"z"))).base_offset == 7
        assert stored(tmp_path) == list(range(8))


@pytest.mark.parametrize("ends_with", ["room", "a restart"])
async def test_what_only_the_journal_had_room_for_is_served_and_goes_to_its_file_once_there_is_room(
    ends_with: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150):
        async with journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
            partition = PARTITIONS[bootstrap]
            with monkeypatch.context() as patch:
                patch.setattr(Contents, "write_out", _failing(errno.ENOSPC))
                assert (await produce(client, "t", batch(b"x"))).base_offset == 6
                await until(lambda: partition.lacks_room)
                for _ in range(3):
                    answer = await produce(client, "t", batch(b"y"))
                    assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
                    found = await fetch(client, "t", 6)
                    assert (found.error_code, b"x" in bytes(found.records or b"")) == (0, True)
                    await partition._room.look()
            if ends_with == "room":
                await partition._room.look()
                assert (await produce(client, "t", batch(b"z"))).base_offset == 7
        expected = list(range(8 if ends_with == "room" else 7))
        assert stored(tmp_path) == expected
        config = BrokerConfig(data=tmp_path, port=0, configs=QUICK, journal=SMALL)
        async with (
            Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
            RawClient(f"{broker.host}:{broker.port}") as client,
        ):
            assert b"x" in bytes((await fetch(client, "t", 6)).records or b"")
            assert (await produce(client, "t", batch(b"z"))).base_offset == len(expected)


async def test_whoever_waits_for_a_flush_that_finds_no_room_is_acknowledged_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers may have it by then: it may not be taken back."""
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        partition = PARTITIONS[bootstrap]
        log: Any = partition.log
        log.journal.is_ready = False
        with monkeypatch.context() as patch:
            patch.setattr(Ticket, "_write_small_files", _full)
            partition.roll()
            waits = asyncio.create_task(produce(client, "t", batch(b"x")))
            await until(lambda: partition.lacks_room)
            assert not waits.done()
        await partition._room.look()
        assert (await waits).base_offset == 6


def _full(self: Ticket) -> bool:
    raise FullDisk(errno.ENOSPC, "planted")


async def test_what_only_the_journal_has_is_found_by_whoever_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        log: Any = PARTITIONS[bootstrap].log
        with monkeypatch.context() as patch:
            patch.setattr(Flusher, "_tidy_up", lambda self: None)
            for asked_ms, time_ms in ((THEN_MS + 1, THEN_MS + 1), (MAX_TIMESTAMP, THEN_MS + 2), (None, THEN_MS + 3)):
                sought = encode_batch([Record(0, time_ms, None, b"sought", ())])
                last = (await produce(client, "t", sought)).base_offset
                assert log.flushed_end == log.log_end_offset == last + 1
                assert log.contents.held_size
                assert log.examining.begin_examination(Offset(0)) is None, "it would miss what is there"
                if asked_ms is None:
                    assert b"sought" in bytes((await fetch(client, "t", last)).records)
                else:
                    assert (await offset_at(client, "t", asked_ms)).offset == last
                assert not log.contents.held_size
            assert log.examining.begin_examination(Offset(0)) is not None


@pytest.mark.parametrize("look", ["fetch", "by time"])
async def test_whoever_looks_for_what_its_own_file_cannot_take_is_told_that_the_disk_failed(
    look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not, ever, that it is damaged or not there: the journal has it."""
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        partition = PARTITIONS[bootstrap]
        with monkeypatch.context() as patch:
            patch.setattr(Flusher, "_tidy_up", lambda self: None)
            last = (await produce(client, "t", batch(b"sought"))).base_offset
            patch.setattr(Contents, "write_out", _failing(errno.EIO))
            for _ in range(3):
                found = await (fetch(client, "t", last) if look == "fetch" else offset_at(client, "t", THEN_MS))
                assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert partition.availability is ErrorCode.KAFKA_STORAGE_ERROR


async def test_the_short_road_is_found_again_for_a_name_that_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Any, bool]] = []
    serve = plain_produce._Road.serve

    def counted(self: Any, frame: memoryview, connection: Any) -> Any:
        answer = serve(self, frame, connection)
        served.append((self, answer is not None))
        return answer

    monkeypatch.setattr(plain_produce._Road, "serve", counted)
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        await produce(client, "t", batch(b"of the old one"))
        await client.ask(4, DeleteTopicsRequest(topic_names=("t",), timeout_ms=9_000))
        await create(client, "t")
        await until(lambda: PARTITIONS[bootstrap] not in list(SERVED[bootstrap]) and len(SERVED[bootstrap]) == 1)
        assert (await produce(client, "t", batch(b"of the new one"))).base_offset == 0
        road, was_short = served[-1]
        assert was_short
        assert [each.availability for each in road._known.values()] == [ErrorCode.NONE], "the old one is let go of"


async def test_whoever_waits_for_what_was_lost_while_it_was_held_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the round that is under way too, for the log's own file lacks what is in it."""
    syncs: list[Callable[[], None]] = []
    begin_sync = LocalDisk.begin_sync

    def later(self: LocalDisk, file: Any, done: Any) -> None:
        syncs.append(lambda: begin_sync(self, file, done))

    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        log: Any = PARTITIONS[bootstrap].log
        monkeypatch.setattr(LocalDisk, "begin_sync", later)
        async with RawClient(bootstrap) as first, RawClient(bootstrap) as second:
            under_way = asyncio.create_task(first.ask(9, request(batch(b"x"))))
            await until(lambda: bool(syncs))
            held = asyncio.create_task(second.ask(9, request(batch(b"y"))))
            await until(lambda: log.contents.held_size > 0)
            with monkeypatch.context() as patch:
                patch.setattr(Contents, "write_out", _failing(errno.EIO))
                with pytest.raises(StorageFailure):
                    log.write_out()
            monkeypatch.setattr(LocalDisk, "begin_sync", begin_sync)
            syncs.pop()()
            for asked in (under_way, held):
                [topic] = (await asked).responses
                assert topic.partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch(client, "t", 6)).error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)


def _failing(number: int) -> Callable[[Contents, int], None]:
    def write_out(self: Contents, interval: int) -> None:
        if self.held_size:
            raise OSError(number, "planted")

    return write_out


async def test_nothing_overtakes_what_is_still_unpacked(tmp_path: Path) -> None:
    """A topic's codec may change while batches wait in line for another."""
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap:
        partition = PARTITIONS[bootstrap]
        assert partition.examine(batch(b"v")) is not None
        plain = partition.settings
        partition.settings = replace(plain, codec=Compression.GZIP)
        async with RawClient(bootstrap) as client:
            big = batch(random.randbytes(900_000))  # it takes longer than a request
            for version in (9, 3):
                told: list[Any] = []
                partition.settings = replace(plain, codec=Compression.GZIP)
                partition.take(big, needs_isr=True, done=told.append)
                await asyncio.sleep(0)
                partition.settings = plain
                assert not told, "a worker thread is at it"
                answer = (await client.ask(version, request(batch(b"2")))).responses[0].partition_responses[0]
                assert answer.error_code == 0
                assert told[0].base_offset + 1 == answer.base_offset


async def test_what_follows_a_batch_that_had_no_room_in_the_line_is_not_taken_before_it(tmp_path: Path) -> None:
    """Of a producer that is not known here, anything might be the first."""
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        partition = PARTITIONS[bootstrap]
        many = [Record(at, THEN_MS, None, b"v", ()) for at in range(WALKED_ON_LOOP_RECORDS_MAX + 1)]
        first = encode_batch(many, producer_id=9, producer_epoch=0, base_sequence=0)
        second = encode_batch(many[:1], producer_id=9, producer_epoch=0, base_sequence=len(many))
        repacker = partition.line._repacker
        repacker.waiting_bytes += REPACK_WAITING_BYTES_MAX
        assert (await produce(client, "t", first)).error_code == ErrorCode.REQUEST_TIMED_OUT
        repacker.waiting_bytes -= REPACK_WAITING_BYTES_MAX
        assert (await produce(client, "t", second)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await produce(client, "t", first)).base_offset == 6
        assert (await produce(client, "t", second)).base_offset == 6 + len(many)


@pytest.mark.parametrize("version", [3, 9])
async def test_what_the_leader_alone_was_to_take_is_not_there_where_it_was_told_so(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor later: its producer sends it again."""
    async with asyncio.timeout(150), journaling(tmp_path) as bootstrap, RawClient(bootstrap) as client:
        partition = PARTITIONS[bootstrap]
        with monkeypatch.context() as patch:
            patch.setattr(Contents, "write_out", _failing(errno.ENOSPC))
            answer = await client.ask(version, request(batch(b"x"), acks=1))
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert partition.log.log_end_offset == 6
        await partition._room.look()
        answer = await client.ask(version, request(batch(b"x"), acks=1))
        assert answer.responses[0].partition_responses[0].base_offset == 6
        assert (await produce(client, "t", batch(b"y"))).base_offset == 7
    assert stored(tmp_path) == list(range(8))
