"""Records that a log has, but not at hand: readers wait for a fetch, and get what a log with all at hand gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.broker.partitions.partition import Partition
from headrace.storage.engine.faults import NotAtHand
from headrace.storage.engine.reading import Fetched, Fetching, read_or_fetch
from headrace.storage.log.partition import LocalLog
from headrace.storage.tier.blocks import Block
from headrace.wire.batches import iterate_headers
from headrace.wire.errors import ErrorCode
from tests.broker import replicas
from tests.broker.clusters import running
from tests.broker.data_path import batch, fetch, produce
from tests.broker.group_broker import RawClient, until
from tests.broker.local_logs import local

AT_HAND_FROM = 6
END = 10


class Elsewhere:
    """A log whose records below AT_HAND_FROM are elsewhere, and come when the test brings them."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._read = log.read
        self.fetches: list[tuple[Offset, Fetching]] = []
        self.may_fetch = True

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        if start < AT_HAND_FROM:
            raise NotAtHand(partial(self._fetch, start))
        return self._read(start, max_bytes, end, at_least_one=at_least_one)

    def _fetch(self, start: Offset) -> Fetching | None:
        if not self.may_fetch:
            self.may_fetch = True
            return None
        future: Fetching = asyncio.get_running_loop().create_future()
        self.fetches.append((start, future))
        return future

    def is_asked_or(self, reading: asyncio.Future[Buffer]) -> bool:
        """Whether a fetch waits, or the reader needs none."""
        return reading.done() or any(not future.done() for _, future in self.fetches)

    def bring(self) -> None:
        """Bring the records of the last fetch, of two batches at most."""
        start, future = self.fetches[-1]
        end = Offset(min(start + 2, AT_HAND_FROM))
        future.set_result(self._block(self._read(start, 1 << 20, end, at_least_one=True)))

    @staticmethod
    def _block(data: Buffer) -> Fetched:
        headers = list(iterate_headers(data))
        marks = [(header.base_offset, at) for at, header in headers]
        return Block(headers[0][1].base_offset, headers[-1][1].next_offset, bytes(data), marks)


Far = tuple[RawClient, Partition, Elsewhere]


@asynccontextmanager
async def far(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Far]:
    """A broker that leads 't', with ten batches of one record each."""
    async with asyncio.timeout(150), running(directory, 1) as cluster, RawClient(cluster.bootstrap) as client:
        key = await replicas.make_topic(cluster, "t", 1)
        for number in range(END):
            assert (await produce(client, "t", batch(b"%d" % number))).error_code == 0
        partition = replicas.leader(cluster, 1, key)
        elsewhere = Elsewhere(local(partition.log))
        monkeypatch.setattr(partition.log, "read", elsewhere.read)
        yield client, partition, elsewhere
        monkeypatch.undo()


async def test_a_fetch_waits_until_the_records_are_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with far(tmp_path, monkeypatch) as (client, partition, elsewhere):
        waiting = asyncio.ensure_future(fetch(client, "t", 3, wait_ms=30_000))
        await until(lambda: len(elsewhere.fetches) == 1)
        assert not waiting.done()
        elsewhere.bring()
        found = await waiting
        assert found.error_code == 0
        offsets = [header.base_offset for _, header in iterate_headers(found.records)]
        assert offsets == [3, 4]
        assert found.high_watermark == END
        assert [start for start, _ in elsewhere.fetches] == [3]
        near = await fetch(client, "t", AT_HAND_FROM, wait_ms=30_000)
        assert [header.base_offset for _, header in iterate_headers(near.records)] == [6, 7, 8, 9]
        assert partition.availability is ErrorCode.NONE


async def test_a_fetch_that_waits_for_no_new_records_waits_for_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody keeps them for a later request, so that it would wait for ever."""
    async with far(tmp_path, monkeypatch) as (client, _, elsewhere):
        waiting = asyncio.ensure_future(fetch(client, "t", 3))
        await until(lambda: len(elsewhere.fetches) == 1)
        elsewhere.bring()
        found = await waiting
        assert [header.base_offset for _, header in iterate_headers(found.records)] == [3, 4]
        assert len(elsewhere.fetches) == 1


@pytest.mark.parametrize("error", [StorageFailure("away"), CorruptData("changed")])
async def test_a_fetch_that_fails_is_told_and_the_partition_goes_on(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with far(tmp_path, monkeypatch) as (client, partition, elsewhere):
        waiting = asyncio.ensure_future(fetch(client, "t", 3, wait_ms=30_000))
        await until(lambda: len(elsewhere.fetches) == 1)
        elsewhere.fetches[0][1].set_exception(error)
        assert (await waiting).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.availability is ErrorCode.NONE
        assert (await produce(client, "t", batch(b"more"))).error_code == 0


async def test_a_reader_in_the_background_waits_and_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with far(tmp_path, monkeypatch) as (_, partition, elsewhere):
        elsewhere.may_fetch = False
        at, read = Offset(0), list[int]()
        while at < END:
            reading = asyncio.ensure_future(
                read_or_fetch(partition.log, at, 1 << 20, partition.visible_end, at_least_one=True)
            )
            await until(partial(elsewhere.is_asked_or, reading))
            if not reading.done():
                elsewhere.bring()
            data = await reading
            read += [header.base_offset for _, header in iterate_headers(data)]
            at = Offset(read[-1] + 1)
        assert read == list(range(END))
        assert [start for start, _ in elsewhere.fetches] == [0, 2, 4]
