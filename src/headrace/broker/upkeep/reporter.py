"""Logs the whole metadata image as JSON at DEBUG, at intervals, to show what a broker believed, and when. The JSON is
made in a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.limits import METADATA_REPORT_MS
from headrace.broker.kit.tasks import OnBug, started
from headrace.logs import get_logger
from headrace.metadata.codec import image_as_json
from headrace.metadata.image import MetadataImage

log = get_logger(__name__)


class Reporter:
    """One per broker."""

    def __init__(self, image: Callable[[], MetadataImage], on_bug: OnBug) -> None:
        self._image = image
        self._on_bug = on_bug
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = started(self._run(), "metadata reports", self._on_bug)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            report = await asyncio.get_running_loop().run_in_executor(None, image_as_json, self._image())
            log.debug("metadata", **report)
            await asyncio.sleep(METADATA_REPORT_MS / 1000)
