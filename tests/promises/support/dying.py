"""A broker that dies of SIGKILL at one step of the first merge that it is asked for: `python -m
tests.promises.support.dying STEP up ...`, with all that `headrace up` takes. Nothing is simulated but the moment.

It deletes what was replaced as soon as the mirror has twice been seen without it, not a minute after.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Final
from unittest.mock import patch

from headrace.base.ports import Buffer
from headrace.broker.cluster.control import Control
from headrace.broker.durable.merger import Merger
from headrace.cli.main import main
from headrace.controller.asks.history import ReplaceSegments
from headrace.metadata.segment_keys import SegmentKey
from headrace.storage.objects import DirectoryObjects

STEPS: Final = (
    "it is about to be stored",
    "it is stored",
    "it is proposed",
    "it is committed",
    "a chunk names it",
    "the mirror names it",
    "what it replaced begins to go",
)
NEVER: Final = "never"


class Dying:
    """See the module."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._put, self._delete, self._submit = DirectoryObjects.put, DirectoryObjects.delete, Control.submit
        self._merge = Merger.merge
        self._is_asked = self._has_chunk = False

    def at(self, step: str) -> None:
        if self._is_asked and step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> int:
        dying = self

        def put(self: DirectoryObjects, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
            return dying.put(self, key, data, if_absent)

        def delete(self: DirectoryObjects, key: str) -> None:
            dying._delete(self, key)
            if SegmentKey.parse(key) is not None:
                dying.at("what it replaced begins to go")

        async def submit(self: Control, ask: Any, **bounds: int) -> Any:
            is_replaced = isinstance(ask, ReplaceSegments)
            if is_replaced:
                dying.at("it is proposed")
            answer: Any = await dying._submit(self, ask, **bounds)
            if is_replaced:
                dying.at("it is committed")
            return answer

        async def merge(self: Merger, *args: Any, **options: Any) -> Any:
            dying._is_asked = True
            return await dying._merge(self, *args, **options)

        with (
            patch.object(Merger, "merge", merge),
            patch.object(DirectoryObjects, "put", put),
            patch.object(DirectoryObjects, "delete", delete),
            patch.object(Control, "submit", submit),
            patch("headrace.broker.durable.history_keeper.HISTORY_DELETE_GRACE_MS", 0),
            patch("headrace.broker.durable.sweeper.HISTORY_DELETE_GRACE_MS", 0),
        ):
            return main()

    def put(self, objects: DirectoryObjects, key: str, data: Buffer, if_absent: bool) -> bool:
        named = SegmentKey.parse(key)
        is_merged = named is not None and named.made_in is not None
        if is_merged:
            self.at("it is about to be stored")
        done = self._put(objects, key, data, if_absent=if_absent)
        if is_merged:
            self.at("it is stored")
        if self._is_asked and "/chunks/" in key:
            self._has_chunk = True
            self.at("a chunk names it")
        if self._has_chunk and key.endswith("/state"):
            self.at("the mirror names it")
        return done


if __name__ == "__main__":
    dying = Dying(sys.argv.pop(1))
    sys.exit(dying.run())
