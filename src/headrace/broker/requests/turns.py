"""Work on requests that name very much, in turns of the event loop: others have theirs between them.

Promises: what is answered, and its order, do not depend on the number of turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from headrace.base.limits import NAMES_PER_TURN_MAX, REQUEST_ELEMENTS_AT_ONCE_MAX

T = TypeVar("T")
R = TypeVar("R")


def names_very_much(request: Any) -> bool:
    """Whether all arrays of a request together have more than REQUEST_ELEMENTS_AT_ONCE_MAX elements."""
    return _left(request, REQUEST_ELEMENTS_AT_ONCE_MAX) < 0


def _left(message: Any, room: int) -> int:
    """Return `room` less the elements of the message; anything below 0 once there are too many."""
    for field in message:
        if type(field) is tuple and field:  # an array: a message within this one has a type of its own
            room -= len(field)
            if isinstance(field[0], tuple):
                for item in field:
                    if room < 0:
                        return room
                    room = _left(item, room)
    return room


async def in_turns(items: Iterable[T], at_a_time: int = NAMES_PER_TURN_MAX) -> list[T]:
    """Return all. Others have their turn of the event loop after each `at_a_time` of them."""
    found: list[T] = []
    for number, item in enumerate(items, 1):
        found.append(item)
        if number % at_a_time == 0:
            await asyncio.sleep(0)
    return found


async def take_turns(steps: Iterator[None]) -> None:
    """Take all steps. Others have their turn of the event loop after each."""
    for _ in steps:
        await asyncio.sleep(0)


def answered(
    items: Collection[T], answer: Callable[[T], R], response: Callable[[tuple[R, ...]], Any]
) -> Any | Awaitable[Any]:
    """Return the response with an answer for each item: at once, where there are few."""
    if len(items) <= NAMES_PER_TURN_MAX:
        return response(tuple(map(answer, items)))
    return _answered_in_turns(items, answer, response)


async def _answered_in_turns(
    items: Iterable[T], answer: Callable[[T], R], response: Callable[[tuple[R, ...]], Any]
) -> Any:
    return response(tuple(await in_turns(map(answer, items))))
