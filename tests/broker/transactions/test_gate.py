"""The turns of a transactional id's requests."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.base.ids import BrokerId
from headrace.broker.transactions.gate import TransactionGate

UNUSED: Any = None
"""Turns need neither a coordinator nor groups."""


def gate() -> TransactionGate:
    return TransactionGate(
        node=BrokerId(1), service=UNUSED, groups=UNUSED, address_of=lambda _: None, verifies=lambda: True
    )


async def test_turns_are_given_in_the_order_of_the_requests() -> None:
    turns, order = gate(), []

    async def request(number: int, turn: asyncio.Lock) -> None:
        async with turn:
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(request(number, turns.queue("mine")) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]


async def test_a_request_that_is_dropped_before_its_turn_leaves_nothing_behind() -> None:
    turns = gate()

    async def request(turn: asyncio.Lock) -> None:
        async with turn:
            raise AssertionError("it was dropped")

    dropped = asyncio.ensure_future(request(turns.queue("mine")))
    assert turns.is_busy("mine")
    assert not turns.is_busy("another")
    dropped.cancel()
    await asyncio.wait([dropped])
    del dropped
    assert not turns.is_busy("mine")
