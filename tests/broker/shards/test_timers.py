"""Alarms of groups, on the loop that brokers run on: what is due at once is one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from headrace.broker.shards.timers import Timers, elapsed_ms
from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process
from tests.loops import run

FAR_MS = 3_600_000


async def _woken(*asked: tuple[str, int], until: int, disarmed: Sequence[str] = ()) -> list[str]:
    """The groups that are woken where alarms are asked for, each so many milliseconds from now."""
    woken: list[str] = []
    enough = asyncio.Event()

    def wake(group_id: str) -> None:
        woken.append(group_id)
        if len(woken) >= until:
            enough.set()

    timers = Timers(wake)
    now_ms = elapsed_ms(asyncio.get_running_loop().time())
    for group_id, in_ms in asked:
        timers.arm(group_id, now_ms + in_ms)
    for group_id in disarmed:
        timers.disarm(group_id)
    await enough.wait()
    timers.close()
    return woken


def test_the_earliest_of_a_groups_alarms_rings_once() -> None:
    asked = (("g", FAR_MS), ("g", 30), ("g", 10), ("g", 20), ("other", 40))
    assert run(_woken(*asked, until=2)) == ["g", "other"]


def test_what_is_due_already_is_asked_for_again_and_earlier() -> None:
    asked = (("g", 0), ("g", 0), ("g", -5), ("g", FAR_MS), ("g", -2_000_000_000), ("other", 10))
    assert run(_woken(*asked, until=2)) == ["g", "other"]


def test_an_alarm_that_is_due_is_called_off() -> None:
    assert run(_woken(("g", 0), ("other", 10), until=1, disarmed=["g"])) == ["other"]


def test_nobody_is_woken_after_the_end() -> None:
    async def closed() -> list[str]:
        woken: list[str] = []
        timers = Timers(woken.append)
        now_ms = elapsed_ms(asyncio.get_running_loop().time())
        timers.arm("g", now_ms)
        timers.arm("h", now_ms + FAR_MS)
        timers.close()
        timers.arm("i", now_ms)
        for _ in range(3):
            await asyncio.sleep(0)
        return woken

    assert run(closed()) == []


@pytest.mark.parametrize(("still_s", "again_s"), [(1.9, 1.9), (3.0, 3.0 + 2.0), (10.0, 10.0 + 5.0)])
def test_a_broker_that_stood_still_reads_first_what_came_meanwhile(still_s: float, again_s: float) -> None:
    """An alarm is due a second after it began to stand still."""
    loop, broker, woken = VirtualLoop(Random(1)), Process("broker"), list[str]()
    times: list[float] = []

    def wake(name: str) -> None:
        woken.append(name)
        times.append(loop.time())

    async def armed() -> None:
        timers = Timers(wake)
        timers.arm("g", 1_000)

    async def play() -> None:
        await loop.spawn(broker, armed())
        loop.pause(broker)
        await asyncio.sleep(still_s)
        loop.resume(broker)
        await asyncio.sleep(20)

    try:
        loop.run_until_complete(play())
    finally:
        loop.workers.close()
        loop.close()
    assert woken == ["g"]
    assert times == [pytest.approx(again_s)]
