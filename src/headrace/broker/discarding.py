"""Files of logs that are gone: removed a little at a time, beside all else.

Promises: nothing waits for it, neither another log that is to be opened nor anybody's sync for long; what is left at a
stop goes at the next start. Loop-only, but for the removing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import structlog

from headrace.base.limits import DELETED_PAUSE_MS
from headrace.broker.opening import in_thread
from headrace.broker.tasks import OnBug, started
from headrace.storage.engine import LogEngine

log = structlog.get_logger(__name__)


class Discarding:
    """One per engine."""

    def __init__(self, engine: LogEngine, on_bug: OnBug) -> None:
        self._engine = engine
        self._on_bug = on_bug
        self._left: deque[Path] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, directories: Iterable[Path]) -> None:
        """What `LogEngine.begin_delete` has left."""
        self._left.extend(directories)
        if self._left and (self._task is None or self._task.done()):
            self._task = started(self._run(), "removing of logs that are gone", self._on_bug)

    async def stop(self) -> None:
        """The part that is under way is removed yet."""
        self._left.clear()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._left:
            directory = self._left[0]
            try:
                is_gone = await in_thread(partial(self._engine.delete_some, directory))
            except OSError as error:
                log.warning("files of a log that is gone are left", directory=str(directory), reason=str(error))
                is_gone = True
            if is_gone and self._left:
                self._left.popleft()
            if not is_gone:
                await asyncio.sleep(DELETED_PAUSE_MS / 1000)
