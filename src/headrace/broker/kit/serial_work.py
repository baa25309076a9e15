"""Tasks one after the other, in the order in which they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.kit.tasks import OnBug, started


class SerialWork:
    """Tasks of which each begins once the one before it is over. Loop-only."""

    def __init__(self, on_bug: OnBug) -> None:
        self._on_bug = on_bug
        self._last: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Begin `work` after everything that was added before."""
        self._last = started(self._after(self._last, work), name, self._on_bug)

    async def _after(self, before: asyncio.Task[None] | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if before is not None:
            await asyncio.wait([before])
        await work()

    @property
    def is_busy(self) -> bool:
        """Whether anything that was added is not over."""
        return self._last is not None and not self._last.done()

    async def settled(self) -> None:
        """Wait until everything that was added is over."""
        while self._last is not None and not self._last.done():
            await asyncio.shield(self._last)
