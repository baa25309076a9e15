"""A client that goes on at once after it has ended a transaction waits for the markers, and need not ask again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.broker.transactions import gate
from headrace.broker.transactions.shard import TransactionShard
from headrace.storage.disk import LocalDisk
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.group_broker import QUICK, RawClient, until
from tests.broker.transactions.test_wire import ID, Client


class Held(NamedTuple):
    """A client, the coordinator's shard of its id, and markers that are held back."""

    client: Client
    shard: Callable[[], TransactionShard]
    markers: list[Callable[[], None]]


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    config = BrokerConfig(data=tmp_path / "data", port=0, configs=QUICK)
    async with (
        asyncio.timeout(150),
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(str(broker.address)) as raw,
    ):
        await raw.create_topic("t")
        await raw.ask(1, FindCoordinatorRequest(key=ID, key_type=1))
        coordinator = broker.parts.requests.services.transactions
        sender: Any = broker.parts.requests.transactions.sender
        send, markers = sender.send, []
        sender.send = lambda *order: markers.append(lambda: send(*order))

        def shard() -> TransactionShard:
            found = coordinator.shard(ID)
            assert isinstance(found, TransactionShard)
            return found

        yield Held(Client(raw), shard, markers)


async def test_it_is_answered_once_the_transaction_before_has_ended(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "TRANSACTION_GATE_WAIT_MS_MAX", 60_000)  # else a machine that stalls ends the wait
    producer = await held.client.init()
    assert await held.client.add(producer) == 0
    for _ in range(3):
        assert (await held.client.end(producer, commit=True)).error_code == 0
        await until(lambda: bool(held.markers))
        next_one = asyncio.ensure_future(held.client.add(producer))
        await until(lambda: ID in held.shard()._wait_for_rest)
        held.markers.pop()()
        assert await next_one == 0
    assert not held.shard()._wait_for_rest


async def test_one_that_ends_too_late_is_to_be_asked_for_again(held: Held) -> None:
    producer = await held.client.init()
    assert await held.client.add(producer) == 0
    assert (await held.client.end(producer, commit=True)).error_code == 0
    assert await held.client.add(producer) == ErrorCode.CONCURRENT_TRANSACTIONS
    held.markers.pop()()
    await held.client.until("CompleteCommit")
    assert await held.client.add(producer) == 0


async def test_who_waits_hears_of_a_coordinator_that_is_lost(held: Held) -> None:
    producer = await held.client.init()
    assert await held.client.add(producer) == 0
    assert (await held.client.end(producer, commit=True)).error_code == 0
    next_one = asyncio.ensure_future(held.client.add(producer))
    await until(lambda: ID in held.shard()._wait_for_rest)
    held.shard().lose()
    assert await next_one != 0
