"""Tasks that nobody awaits, and work in threads.

An exception from such a task is a bug of Headrace, and goes to the callback that stops the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

OnBug: TypeAlias = Callable[[BaseException], None]
T = TypeVar("T")


def started(work: Coroutine[Any, Any, None], name: str, on_bug: OnBug) -> asyncio.Task[None]:
    """Start a task on the running loop; `on_bug` is called with any exception that it raises."""

    def over(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            on_bug(error)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(over)
    return task


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set, at most for so many seconds; None: for ever.

    Raises CancelledError also where the cancellation comes with the event. Before Python 3.12, `asyncio.wait_for` loses
    it then, and a loop that ends by nothing else goes on.
    """
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a worker thread of the loop, and returns or raises what it does."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
