"""States of transactions on a scripted leader: what is asked for them, how far is looked, and what goes wrong.

`tests/interop/transactions/test_states.py` holds them beside what librdkafka reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from headrace.base.errors import CorruptData
from headrace.net.client import consumer as module
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer
from headrace.net.client.states import State
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader
from headrace.wire.messages import fetch
from headrace.wire.records import Record
from headrace.wire.transactions import EndMarker, encode_marker
from tests.net.scripted_broker import ScriptedBroker, scripted_broker
from tests.net.test_client_on_a_script import QUICK, TOPIC, TOPIC_ID, leader

LONG, SHORT = 1, 2
"""Producers: the transaction of the first is open."""


def placed(offset: int, batch: bytes) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def record(offset: int, producer: int | None = None) -> bytes:
    """A batch of one record: of a transaction of that producer, or of none."""
    records = [Record(offset, 0, None, b"%d" % offset)]
    if producer is None:
        return encode_batch(records)
    return encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker(offset: int, producer: int, *, committed: bool) -> bytes:
    return placed(offset, encode_marker(producer, 0, EndMarker(committed, 0), timestamp=0))


@dataclass
class Log:
    """The batches of a partition, and how they are asked for."""

    batches: list[bytes]
    stable: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    """Producer, first offset and marker of each."""
    asked: list[tuple[int, int]] = field(default_factory=list)
    """Isolation level and offset of each fetch."""
    errors: Iterator[int] = field(default_factory=lambda: iter(()))
    """Of fetches under read_committed."""

    @property
    def end(self) -> int:
        return len(self.batches)

    def listed(self, offset: int) -> tuple[fetch.AbortedTransaction, ...]:
        """Brokers name those that reach into what is read."""
        return tuple(fetch.AbortedTransaction(*each[:2]) for each in self.aborted if each[2] >= offset)

    def answer(self, _: RequestHeader, request: fetch.FetchRequest) -> fetch.FetchResponse:
        (part,) = request.topics[0].partitions
        is_committed = request.isolation_level == 1
        self.asked.append((request.isolation_level, part.fetch_offset))
        error = next(self.errors, 0) if is_committed else 0
        end, data = self.stable if is_committed else self.end, b""
        for batch in self.batches[part.fetch_offset : end]:
            if error or (data and len(data) + len(batch) > part.partition_max_bytes):
                break
            data += batch
        told = fetch.PartitionData(
            partition_index=0,
            error_code=error,
            high_watermark=self.end,
            last_stable_offset=self.stable,
            aborted_transactions=self.listed(part.fetch_offset) if is_committed else None,
            records=data,
        )
        topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=(told,))
        return fetch.FetchResponse(responses=(topic,))


@asynccontextmanager
async def serving(log: Log) -> AsyncIterator[Cluster]:
    async with scripted_broker({}) as broker:
        script(broker, log)
        async with Cluster([broker.address], backoff=QUICK) as cluster:
            yield cluster


def script(broker: ScriptedBroker, log: Log) -> None:
    broker.answers |= {ApiKey.METADATA: leader(broker), ApiKey.FETCH: log.answer}


async def states_of(log: Log, *, size: int = 1, first: int = 0, **more: bool) -> list[tuple[int, State]]:
    """Offsets and states of all records that are visible."""
    found: list[tuple[int, State]] = []
    settings = {"tells_states": True} | more
    async with serving(log) as cluster, Consumer(cluster, partition_bytes_max=size, **settings) as consumer:
        consumer.assign(TOPIC, 0, first)
        while min(consumer.positions.values()) < (log.stable if settings.get("committed_only") else log.end):
            for one in await consumer.poll():
                offsets = [each.offset for each in one.records]
                found += zip(offsets, one.states or [None] * len(offsets), strict=True)
    return found


def behind_an_open_one(between: int) -> Log:
    """So many plain records are between the records of the transaction that has ended and its marker."""
    batches = [record(0, LONG), record(1, SHORT)]
    batches += [record(offset) for offset in range(2, 2 + between)]
    return Log([*batches, marker(2 + between, SHORT, committed=True)], stable=0)


async def test_a_marker_is_looked_for_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    log = behind_an_open_one(20)
    assert (await states_of(log))[:3] == [(0, "open"), (1, "committed"), (2, None)]
    assert len(log.asked) <= 2 * log.end, "nothing is looked at twice, but for what was looked at ahead"
    for limit in ("STATES_AHEAD_BYTES_MAX", "STATES_AHEAD_MARKERS_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 0)
            assert (await states_of(behind_an_open_one(20)))[:3] == [(0, "open"), (1, "open"), (2, None)]


async def test_those_who_do_not_ask_for_states_send_no_more_than_before() -> None:
    log = behind_an_open_one(5)
    log.batches.append(marker(log.end, LONG, committed=False))
    log.stable = log.end
    assert await states_of(log, tells_states=False) == [(offset, None) for offset in range(7)]
    asked = [each for each in log.asked if each[1] < log.end]
    assert asked == [(0, offset) for offset in range(log.end)]


async def test_a_log_without_transactions_is_asked_once() -> None:
    log = Log([record(offset) for offset in range(6)], stable=6)
    assert await states_of(log) == [(offset, None) for offset in range(6)]
    assert [each for each in log.asked if each[1] < log.end] == [(0, offset) for offset in range(6)]


async def test_what_is_cut_off_from_its_marker_is_asked_for_under_read_committed() -> None:
    """An answer ends before it; one that would have nothing is asked for again, and may fail meanwhile."""
    batches = [record(0), record(1, LONG), record(2, SHORT), record(3, LONG), marker(4, SHORT, committed=True)]
    log = Log([*batches, marker(5, LONG, committed=False)], stable=6, aborted=((LONG, 1, 5),))
    wanted = [(0, None), (1, "aborted"), (2, "committed"), (3, "aborted")]
    assert await states_of(log, size=sum(map(len, log.batches[1:]))) == wanted
    assert (1, 1) not in log.asked, "the marker is in the answer that begins with it"
    assert await states_of(log) == wanted
    assert {offset for isolation, offset in log.asked if isolation} == {1, 2, 3}
    log.errors = iter([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE])
    assert await states_of(log) == wanted


async def test_a_marker_that_came_damaged_decides_nothing() -> None:
    log = behind_an_open_one(3)
    damaged = bytearray(log.batches[-1])
    damaged[-1] ^= 1
    log.batches[-1] = bytes(damaged)
    with pytest.raises(CorruptData, match="The marker at offset 5 fails its CRC32C"):
        await states_of(log)


async def test_of_one_producers_transactions_each_has_its_state() -> None:
    """The list names one by its first offset; it ends with its marker."""
    batches = [record(0, SHORT), marker(1, SHORT, committed=False), record(2, SHORT), marker(3, SHORT, committed=True)]
    log = Log([*batches, record(4, SHORT), record(5, LONG)], stable=4, aborted=((SHORT, 0, 1),))
    wanted = [(0, "aborted"), (2, "committed"), (4, "open"), (5, "open")]
    for size in (1, 200, 1 << 20):
        assert await states_of(log, size=size) == wanted
        assert await states_of(log, size=size, first=2) == wanted[1:]
        assert await states_of(log, size=size, committed_only=True) == wanted[1:2]
