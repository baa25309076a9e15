"""The floor of `make bench-redis` checks what a broker has to check; otherwise it would be no honest one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TypeAlias

import pytest

from benchmarks.redis_engine.checking import NO_OFFSET, CheckingRelay, state_of
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from headrace.wire.batches import HEADER_BYTES, encode_batch, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from tests.storage.redis.conftest import Start
from tests.storage.redis.redis_world import SAFE
from tools.servers.redis_servers import RedisServer

Outcome: TypeAlias = tuple[int, ErrorCode]


def batch(sequence: int, *, epoch: int = 0, count: int = 2, producer: int = 7) -> bytes:
    records = [Record(at, 0, None, b"value") for at in range(count)]
    return encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def refused(error: ErrorCode) -> Outcome:
    return NO_OFFSET, error


def told(to: asyncio.Future[Outcome], base: int, error: ErrorCode) -> None:
    to.set_result((base, error))


async def sent(relay: CheckingRelay, *batches: bytes) -> list[Outcome]:
    """Their outcomes. All are sent before any is answered."""
    answers: list[asyncio.Future[Outcome]] = []
    for data in batches:
        answers.append(answer := asyncio.get_running_loop().create_future())
        relay.append("t", 0, memoryview(data), partial(told, answer))
    return await asyncio.gather(*answers)


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Connection]:
    opened = await connect(Place(path=str(server.socket)), Credentials())
    yield opened
    await opened.close()


@pytest.fixture
async def relay(redis: Connection) -> CheckingRelay:
    made = CheckingRelay(1, redis)
    await made.start()
    return made


async def test_batches_are_kept_in_order_and_read_as_they_were_sent(relay: CheckingRelay) -> None:
    batches = [batch(0), batch(2), batch(4, count=3), batch(-1, epoch=-1, producer=-1)]
    assert await sent(relay, *batches) == [(base, ErrorCode.NONE) for base in (0, 2, 4, 7)]
    found = await relay.read("t", 0, 0)
    assert [parse_header(each).base_offset for each in found] == [0, 2, 4, 7]
    assert [bytes(each[HEADER_BYTES:]) for each in found] == [each[HEADER_BYTES:] for each in batches]


async def test_a_batch_that_comes_again_is_answered_as_the_first_one(relay: CheckingRelay) -> None:
    assert await sent(relay, *(batch(2 * at) for at in range(6)), batch(2)) == [
        *((2 * at, ErrorCode.NONE) for at in range(6)),
        (2, ErrorCode.NONE),
    ]
    assert await sent(relay, batch(0)) == [refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], "five are remembered"
    assert len(await relay.read("t", 0, 0)) == 6


async def test_a_gap_and_an_old_epoch_are_refused(relay: CheckingRelay) -> None:
    assert await sent(relay, batch(0), batch(3), batch(0, epoch=1), batch(2), batch(1, epoch=2)) == [
        (0, ErrorCode.NONE),
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, ErrorCode.NONE),
        refused(ErrorCode.INVALID_PRODUCER_EPOCH),
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ]


async def test_damage_is_refused(relay: CheckingRelay) -> None:
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    assert await sent(relay, bytes(damaged), batch(0)) == [refused(ErrorCode.CORRUPT_MESSAGE), (0, ErrorCode.NONE)]


@pytest.mark.parametrize(("field", "value"), [("epoch", 2), ("end", 1)])
async def test_nothing_is_acknowledged_once_another_leads_or_has_written(
    relay: CheckingRelay, redis: Connection, field: str, value: int
) -> None:
    assert await sent(relay, batch(0)) == [(0, ErrorCode.NONE)]
    await redis.call("HSET", state_of("t", 0), field, value)
    assert await sent(relay, batch(2), batch(2)) == [refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 2
    assert len(await relay.read("t", 0, 0)) == 1


@pytest.mark.usefixtures("engines")
async def test_it_does_not_start_on_a_redis_that_answers_before_the_disk_has_it(start: Start) -> None:
    server = start(*SAFE[:2], "--appendfsync", "everysec")
    opened = await connect(Place(path=str(server.socket)), Credentials())
    with pytest.raises(AssertionError, match="on the disk"):
        await CheckingRelay(1, opened).start()
    await opened.close()
