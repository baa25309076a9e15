"""Waiters for a group's answers: each is told once, and of many at once a few in a turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from headrace.base.limits import GROUP_ANSWERS_PER_TURN_MAX
from headrace.broker.shards.waiters import Waiters
from headrace.coordinators.groups.events import HeartbeatReply
from headrace.wire.errors import ErrorCode

MANY = 3 * GROUP_ANSWERS_PER_TURN_MAX + 1
FORMED = HeartbeatReply(error=ErrorCode.NONE)


class Told:
    """`Waiter`."""

    def __init__(self, order: list[int], number: int) -> None:
        self.order = order
        self.number = number
        self.told: Any = None

    def done(self) -> bool:
        return self.told is not None

    def set_result(self, told: Any, /) -> None:
        assert self.told is None, "told once"
        self.told = told
        self.order.append(self.number)


def waiting(waiters: Waiters, *, parked: bool) -> tuple[list[Told], list[int]]:
    order: list[int] = []
    found = []
    for _ in range(MANY):
        number = waiters.number()
        found.append(Told(order, number))
        waiters.add(number, found[-1], parked=parked)
    return found, order


async def turn() -> None:
    await asyncio.sleep(0)


async def test_those_who_waited_for_each_other_are_told_a_few_in_each_turn_in_their_order() -> None:
    waiters = Waiters(5_000)
    found, order = waiting(waiters, parked=True)
    for one in found:
        waiters.answer(one.number, FORMED)
    seen = deque([len(order)])
    while len(order) < MANY:
        await turn()
        seen.append(len(order))
    most = GROUP_ANSWERS_PER_TURN_MAX
    assert [later - before for before, later in zip([0, *seen], seen, strict=False)] == [most, most, most, 1]
    assert order == [one.number for one in found]
    assert len(waiters) == 0


async def test_one_alone_is_told_at_once() -> None:
    waiters = Waiters(5_000)
    found, order = waiting(waiters, parked=True)
    for one in found[:GROUP_ANSWERS_PER_TURN_MAX]:
        waiters.answer(one.number, FORMED)
        assert order[-1] == one.number
        await turn()
    assert len(order) == GROUP_ANSWERS_PER_TURN_MAX


async def test_who_waits_for_the_disk_is_told_at_once_however_many() -> None:
    waiters = Waiters(5_000)
    found, order = waiting(waiters, parked=False)
    for one in found:
        waiters.answer(one.number, FORMED)
    assert len(order) == MANY


async def test_a_broker_that_stops_tells_those_whose_answer_is_known_that_answer() -> None:
    waiters = Waiters(5_000)
    found, order = waiting(waiters, parked=True)
    known = MANY - 2
    for one in found[:known]:
        waiters.answer(one.number, FORMED)
    waiters.answer_parked(ErrorCode.NOT_COORDINATOR)
    assert [one.told for one in found] == [FORMED] * known + [ErrorCode.NOT_COORDINATOR] * 2
    await turn()
    assert len(order) == MANY


async def test_a_coordinator_that_is_one_no_more_tells_nothing_of_what_it_decided() -> None:
    waiters = Waiters(5_000)
    found, _ = waiting(waiters, parked=True)
    for one in found:
        waiters.answer(one.number, FORMED)
    waiters.close(ErrorCode.NOT_COORDINATOR)
    await turn()
    most = GROUP_ANSWERS_PER_TURN_MAX
    assert [one.told for one in found] == [FORMED] * most + [ErrorCode.NOT_COORDINATOR] * (MANY - most)
