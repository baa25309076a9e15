"""Removes the files of deleted logs a little at a time, beside all other work.

Promises:
- Nothing waits for it: no log that is to be opened, and no sync for long.
- The next start goes on with what a stop leaves, a little at a time too.
- A failure is logged once, keeps nothing else from going, and is tried again.

Loop-only, but for the removing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from headrace.base.limits import DELETED_PAUSE_MS, DELETED_RETRY_MS
from headrace.broker.kit.tasks import OnBug, in_thread, started
from headrace.logs import get_logger
from headrace.storage.engine.engines import LogRemoval

log = get_logger(__name__)


class Discarding:
    """One per engine."""

    def __init__(self, on_bug: OnBug) -> None:
        self._on_bug = on_bug
        self._left: deque[LogRemoval] = deque()
        self._failed: set[str] = set()
        """The part of `_left` that could not be removed when it was last tried."""
        self._told: set[str] = set()
        """The part of `_left` whose failure was logged."""
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_over = False

    def add(self, left: Iterable[LogRemoval]) -> None:
        """Remove what `LogEngine.begin_delete` or an earlier process has left."""
        if self._is_over:
            return
        self._left.extend(left)
        self._news.set()
        if self._left and (self._task is None or self._task.done()):
            self._task = started(self._run(), "removing of logs that are gone", self._on_bug)

    async def stop(self) -> None:
        """Stop. The part under way is still removed."""
        self._is_over = True
        self._news.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._left and not self._is_over:
            removal = self._left[0]
            if await self._goes_whole(removal):
                self._left.popleft()
            elif len(self._failed) < len(self._left):
                await asyncio.sleep(DELETED_PAUSE_MS / 1000)
            else:
                await self._rest()

    async def _goes_whole(self, removal: LogRemoval) -> bool:
        """Remove a part; return whether it was the last. Where it failed, others have their turn first."""
        try:
            is_gone = await in_thread(removal.some)
        except OSError as error:
            self._on_failed(removal.name, error)
            self._left.rotate(-1)
            return False
        self._failed.discard(removal.name)
        if is_gone:
            self._told.discard(removal.name)
        return is_gone

    def _on_failed(self, name: str, error: OSError) -> None:
        self._failed.add(name)
        if name not in self._told:
            self._told.add(name)
            log.warning(
                "files of a log that is gone cannot be removed yet; they are tried again",
                directory=name,
                reason=str(error),
            )

    async def _rest(self) -> None:
        """Wait where nothing can be removed: until there is another directory, or all are tried again."""
        if self._is_over:
            return
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(DELETED_RETRY_MS / 1000):
                await self._news.wait()
        self._failed.clear()
