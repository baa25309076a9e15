"""A shard of an internal topic: what becomes of it where its partition takes no records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from headrace.base.ids import Offset
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.broker.transactions.shard import Told, TransactionShard
from headrace.coordinators.transactions.events import InitProducer, InitReply
from headrace.storage.disk import LocalDisk
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.group_broker import QUICK, RawClient

DEADLINE_S = 150
TRANSACTIONS = 1


@asynccontextmanager
async def found(directory: Path) -> AsyncIterator[TransactionShard]:
    """The shard of a broker that keeps one transactional id."""
    config = BrokerConfig(data=directory, port=0, configs={**QUICK, "transaction.state.log.num.partitions": "1"})
    async with (
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await client.ask(4, FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=("mine",)))
        assert broker._parts is not None
        (shard,) = broker._parts.requests.services.transactions.shards
        assert epoch_in(await asked(shard)) == 0
        yield shard


def asked(shard: TransactionShard) -> asyncio.Future[Told]:
    """Let a client begin."""
    return shard.ask("mine", lambda waiter: InitProducer(waiter=waiter, timeout_ms=60_000))


def epoch_in(told: Told) -> int:
    assert isinstance(told, InitReply)
    assert told.error is ErrorCode.NONE
    return told.producer.epoch


async def test_a_doubted_leadership_refuses_writes_and_keeps_what_is_loaded(tmp_path: Path) -> None:
    """It would be loaded again at once, and refused at once, without end."""
    async with found(tmp_path) as shard:
        settings = shard.partition.settings
        shard.partition.settings = replace(settings, min_insync_replicas=2)
        shard.partition._doubted_at = Offset(0)
        refused = asked(shard)
        shard.partition.trust()
        shard.partition.settings = settings
        assert await refused == InitReply(ErrorCode.NOT_COORDINATOR)
        assert not shard.lost
        assert epoch_in(await asked(shard)) == 1


async def test_a_refused_record_is_logged_once_until_one_is_written(tmp_path: Path) -> None:
    """A coordinator tries its own records again and again, as long as replicas are missing."""
    async with found(tmp_path) as shard:
        sound = shard.partition.settings
        lacking = replace(sound, min_insync_replicas=2)
        for epoch in (1, 2):
            shard.partition.settings = lacking
            with structlog.testing.capture_logs() as logs:
                told = [await asked(shard) for _ in range(3)]
            assert {each.error for each in told if isinstance(each, InitReply)} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
            assert [each["event"] for each in logs] == ["a transactional id's record was refused"]
            shard.partition.settings = sound
            assert epoch_in(await asked(shard)) == epoch
