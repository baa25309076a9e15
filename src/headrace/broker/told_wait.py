"""Says when the log is to tell of a wait: at once, and again after a while, with the time that it has lasted."""

from __future__ import annotations

import asyncio

from headrace.base.limits import WAIT_TOLD_AGAIN_S


class ToldWait:
    """One wait, from its making on. Loop-only."""

    def __init__(self) -> None:
        self._since = self._next = asyncio.get_running_loop().time()

    @property
    def seconds(self) -> int:
        """How long it has lasted."""
        return round(asyncio.get_running_loop().time() - self._since)

    def is_due(self) -> bool:
        """Whether it is to be told now; then not again for WAIT_TOLD_AGAIN_S."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return False
        self._next = now + WAIT_TOLD_AGAIN_S
        return True
