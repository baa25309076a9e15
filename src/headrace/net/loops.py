"""The event loop to run on: uvloop's where it is installed, asyncio's otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of event loops for `asyncio.Runner`; None for asyncio's default."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end and return the result. Remaining tasks and async generators are cleaned up."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
