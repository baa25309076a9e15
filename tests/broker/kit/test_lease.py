"""A broker's lease: for how long what it knows is all there is to know."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.kit import lease as module
from headrace.broker.kit.lease import Lease
from headrace.controller.decision import Refusal
from headrace.sim.loop import VirtualLoop
from headrace.wire.errors import ErrorCode
from tests.broker.alone import membership


async def test_it_is_held_from_when_the_heartbeat_left_that_was_taken() -> None:
    now = asyncio.get_running_loop().time()
    leases = [Lease(1_000.0, _in_vain) for _ in range(3)]
    leases[0].extend(now - 1_001.0)
    leases[1].extend(now - 999.0)
    leases[1].extend(now - 1_001.0)  # a late answer takes nothing away
    assert [lease.is_held for lease in leases] == [False, True, False]


async def test_whoever_asks_while_it_is_asked_for_waits_for_the_same() -> None:
    asked, go = [], asyncio.Event()

    async def ask() -> None:
        asked.append(asyncio.get_running_loop().time())
        await go.wait()
        lease.extend(asked[-1])

    lease = Lease(1_000.0, ask)
    waiting = [asyncio.ensure_future(lease.renew()) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*waiting)
    assert len(asked) == 1
    assert lease.is_held


async def test_who_takes_its_leave_holds_it_no_more_and_asks_for_none() -> None:
    lease = Lease(1_000.0, _never)
    lease.extend(asyncio.get_running_loop().time())
    waiting = asyncio.ensure_future(lease.renew())
    await asyncio.sleep(0)
    lease.end()
    await waiting
    lease.extend(asyncio.get_running_loop().time())
    assert not lease.is_held
    await lease.renew()


async def _in_vain() -> None:
    """Nobody takes it."""


async def _never() -> None:
    await asyncio.Event().wait()


async def test_who_asks_for_it_waits_for_a_little_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later requests on the connection wait too."""
    monkeypatch.setattr(module, "LEASE_WAIT_MS_MAX", 1)
    lease = Lease(1_000.0, _never)
    async with asyncio.timeout(150):
        await lease.renew()
    lease.end()


async def test_for_how_long_it_was_not_held_is_told_once_it_is_again() -> None:
    told: list[float] = []
    lease = Lease(1_000.0, _in_vain)
    lease.on_regained(told.append)
    now = asyncio.get_running_loop().time()
    lease.extend(now)
    lease._from = now - 3_000.0
    lease.extend(now - 1_500.0)  # this is too old to count: the lease is not held since the first one was over
    assert not lease.is_held
    assert not told
    lease.extend(now)
    lease.extend(now)
    assert [round(lapse, -1) for lapse in told] == [2_000]
    first = Lease(1_000.0, _in_vain)
    first.on_regained(told.append)
    first.extend(now)
    assert len(told) == 1, "what was never held did not lapse"


def test_a_heartbeat_that_was_not_taken_is_soon_followed_by_another() -> None:
    """There is a lease to lose."""
    beats: list[float] = []

    class Refusing:
        async def submit(self, ask: Any, **options: Any) -> bool | Refusal:
            beats.append(round(loop.time(), 6))
            return True if len(beats) in (1, 4) else Refusal(ErrorCode.NOT_CONTROLLER, "Nobody is the controller.")

    async def work() -> None:
        nowhere: Any = SimpleNamespace(subscribe=lambda _: None)
        member = membership(nowhere, Refusing())
        with suppress(TimeoutError):
            await asyncio.wait_for(member._keep_beating(), 34.0)

    loop = VirtualLoop(random.Random(1))
    loop.run_until_complete(work())
    loop.workers.close()
    loop.close()
    assert beats == [10.0, 20.0, 21.0, 22.0, 32.0, 33.0]
