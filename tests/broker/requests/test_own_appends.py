"""A client that got an acks=1 acknowledgement from a lone leader, and then asks for the end, is told of that record.

This is as in Kafka, although the leader's readers see only flushed records.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker.boot import Broker
from headrace.broker.partitions.partition import Partition
from tests.broker.data_path import LATEST, batch, create, delete_records, offset_at, produce
from tests.broker.group_broker import RawClient
from tests.promises.test_a_failed_disk_never_acknowledges import BrittleDisk, brittle_broker

MAX_TIMESTAMP = -3


class Held:
    """A broker whose disk syncs nothing but metadata until `release`."""

    def __init__(self, broker: Broker, disk: BrittleDisk, client: RawClient) -> None:
        self.broker = broker
        self.client = client
        self.address = f"{broker.host}:{broker.port}"
        self.release = threading.Event()
        self._disk = disk

    def hold(self) -> None:
        self._disk.sync_fails = lambda path: "metadata" not in path.parts and not self.release.wait(60)


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    async with brittle_broker(tmp_path / "data") as (broker, disk, client):
        await create(client, "t", 2)
        held = Held(broker, disk, client)
        yield held
        held.release.set()


@pytest.mark.parametrize(("timestamp", "offset"), [(LATEST, 2), (MAX_TIMESTAMP, 1), (1_600_000_000_000, 0)])
async def test_an_acknowledged_record_is_found_by_its_offset(held: Held, timestamp: int, offset: int) -> None:
    assert (await offset_at(held.client, "t", LATEST)).offset == 0
    held.hold()
    assert (await produce(held.client, "t", batch(b"a", b"b"), acks=1)).error_code == 0, "before the disk has it"
    async with RawClient(held.address) as other:
        asked = asyncio.create_task(offset_at(other, "t", timestamp))
        assert (await produce(held.client, "t", batch(b"c"), partition=1, acks=1)).error_code == 0
        held.release.set()
        assert (await asked).offset == offset


async def test_an_acknowledged_record_can_be_deleted(held: Held) -> None:
    held.hold()
    assert (await produce(held.client, "t", batch(b"a", b"b", b"c"), acks=1)).error_code == 0
    async with RawClient(held.address) as other:
        asked = asyncio.create_task(delete_records(other, "t", [2]))
        assert (await produce(held.client, "t", batch(b"d"), partition=1, acks=1)).error_code == 0
        held.release.set()
        (result,) = await asked
    assert (result.error_code, result.low_watermark) == (0, 2)


async def test_a_disk_that_does_not_answer_keeps_nobody_for_long(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.requests.visibility.OWN_FLUSH_WAIT_MS_MAX", 1)
    held.hold()
    assert (await produce(held.client, "t", batch(b"a"), acks=1)).error_code == 0
    assert (await offset_at(held.client, "t", LATEST)).offset == 0


async def test_many_who_ask_wait_for_one_thing(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still is no way to fill the broker's memory."""
    monkeypatch.setattr("headrace.broker.requests.visibility.OWN_FLUSH_WAIT_MS_MAX", 1)
    held.hold()
    assert (await produce(held.client, "t", batch(b"a"), acks=1)).error_code == 0
    (role,) = [each for each in held.broker.parts.partitions.replicas if each.topic == "t" and each.log.log_end_offset]
    assert isinstance(role, Partition)
    for _ in range(20):
        assert (await offset_at(held.client, "t", LATEST)).offset == 0
    assert role.parked_commits == 1
