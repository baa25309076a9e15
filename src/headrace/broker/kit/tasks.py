"""Tasks that nobody awaits, and work in threads.

An exception from such a task is a bug of Headrace, and goes to the callback that stops the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
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


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a worker thread of the loop, and returns or raises what it does."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
