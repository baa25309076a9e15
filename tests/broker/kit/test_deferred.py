"""Deadlines in virtual time, and how much of them is kept whatever clients ask for."""

from __future__ import annotations

import asyncio
import random

from headrace.base.limits import DEADLINES_SETTLED_MIN
from headrace.broker.kit.deferred import Deadlines, Deferred
from headrace.sim.loop import VirtualLoop


class Waiter:
    """Remembers when it was timed out."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.is_settled = False
        self.timed_out_at: float | None = None
        self._loop = loop

    def time_out(self) -> None:
        assert not self.is_settled
        self.is_settled = True
        self.timed_out_at = self._loop.time()


async def _deadlines() -> Deadlines:
    return Deadlines()


def test_each_is_timed_out_in_its_time_and_no_other() -> None:
    loop = VirtualLoop(random.Random(1))
    deadlines = loop.run_until_complete(_deadlines())
    waiters = {timeout_ms: Waiter(loop) for timeout_ms in (0, 1, 31, 30_000, 29_999, 2**31 - 1)}
    settled = Waiter(loop)
    for timeout_ms, waiter in waiters.items():
        deadlines.add(waiter, timeout_ms)
    deadlines.add(settled, 30_000)
    settled.is_settled = True
    loop.run_until_complete(_sleep(2**31 / 1000 * 1.04))
    for timeout_ms, waiter in waiters.items():
        assert waiter.timed_out_at is not None
        assert timeout_ms <= round(waiter.timed_out_at * 1000, 3) <= timeout_ms * 31 / 30 + 1
    assert settled.timed_out_at is None
    assert len(deadlines) == 0
    loop.close()


def test_what_is_settled_is_not_kept_whatever_lengths_clients_choose() -> None:
    loop = VirtualLoop(random.Random(1))
    deadlines = loop.run_until_complete(_deadlines())
    for timeout_ms in range(1_000_000, 1_100_000):
        waiter = Waiter(loop)
        deadlines.add(waiter, timeout_ms)
        waiter.is_settled = True
    assert len(deadlines) < 1_000
    deadlines.close()
    loop.close()


def test_what_is_settled_behind_one_that_waits_is_not_kept_either() -> None:
    loop = VirtualLoop(random.Random(1))
    deadlines = loop.run_until_complete(_deadlines())
    waiters = [Waiter(loop) for _ in range(3)]
    deadlines.add(waiters[0], 2**31 - 1)
    for at in range(100_000):
        settled = waiters[1 + at // 50_000] if at % 50_000 == 49_999 else Waiter(loop)
        deadlines.add(settled, 2**31 - 1)
        settled.is_settled = settled not in waiters
    assert len(deadlines) <= 2 * DEADLINES_SETTLED_MIN
    loop.run_until_complete(_sleep(2**31 / 1000 * 1.04))
    assert all(waiter.timed_out_at is not None for waiter in waiters), "those that wait are timed out all the same"
    loop.close()


async def _sleep(seconds: float) -> None:

    await asyncio.sleep(seconds)


def test_a_deferred_is_settled_once() -> None:
    deferred = Deferred("expected")
    told: list[object] = []
    deferred.add_done_callback(told.append)
    assert not deferred.done()
    deferred.set_result(1)
    deferred.set_result(2)
    assert not deferred.cancel()
    assert (deferred.result(), told) == (1, [deferred])
    deferred.add_done_callback(told.append)
    assert told == [deferred, deferred]


def test_nobody_hears_of_what_was_cancelled() -> None:
    deferred = Deferred(None)
    assert deferred.cancel()
    deferred.set_result(1)
    assert deferred.cancelled()
    assert deferred.exception() is None
