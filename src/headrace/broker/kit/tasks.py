"""Tasks that nobody awaits: what they raise is a mistake of ours, and is told to whoever stops the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

OnBug: TypeAlias = Callable[[BaseException], None]


def started(work: Coroutine[Any, Any, None], name: str, on_bug: OnBug) -> asyncio.Task[None]:
    """A task on the running loop; `on_bug` hears of what it raises."""

    def over(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            on_bug(error)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(over)
    return task
