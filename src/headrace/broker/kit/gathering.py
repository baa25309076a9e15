"""Waits a moment for requests that can share one cost, such as a sync or a frame to a follower."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.limits import FLUSH_GATHER_BACKOFF_MAX, FLUSH_GATHER_MS_MAX


class GroupCommitTimer:
    """Waits before a round for those that will share it: producers that were just answered send again at once.

    A round costs as much for one append as for ten. The next one begins when enough appends have come, or after a
    millisecond. Enough means as many as shared the last round or came while it ran. After a wait in vain, the next
    rounds begin at once; their number doubles each time. A lone producer with one request in flight never waits. The
    model is PostgreSQL's commit_delay with commit_siblings; the number of siblings is learnt here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending = 0
        self._shared = 0
        """Appends that shared the round under way, or the last."""
        self._sharing = 1
        """Appends that are expected to share the next round."""
        self._vain = 0
        """Waits in vain, in a row."""
        self._skip = 0
        """Rounds that begin at once before the next wait is tried."""
        self._timer: asyncio.TimerHandle | None = None
        self._then: Callable[[], object] | None = None

    def begin(self, then: Callable[[], object]) -> None:
        """Call `then` on the loop once enough appends have come, unless the round begins before that."""
        if self._then is not None:
            return
        if self._pending >= self._sharing or self._skip:
            self._skip = max(0, self._skip - 1)
            self._loop.call_soon(then)
            return
        self._then = then
        self._timer = self._loop.call_later(FLUSH_GATHER_MS_MAX / 1000, self._in_vain)

    def arrived(self) -> None:
        """One more append waits for a round."""
        self._pending += 1
        if self._then is not None and self._pending >= self._sharing:
            self._vain = 0
            self._go()

    def begun(self) -> None:
        """Note that the round begins, shared by all appends that have come."""
        self._shared, self._pending = self._pending, 0
        if self._then is not None:
            self._then = None
            assert self._timer is not None
            self._timer.cancel()

    def answered(self) -> None:
        """Note that the round is over. The appends that shared it are expected again, beside those that came while it
        ran."""
        self._sharing = max(1, self._shared + self._pending)

    def _in_vain(self) -> None:
        self._vain = min(self._vain + 1, FLUSH_GATHER_BACKOFF_MAX)
        self._skip = 1 << self._vain
        self._go()

    def _go(self) -> None:
        then, self._then = self._then, None
        assert then is not None
        if self._timer is not None:
            self._timer.cancel()
        self._loop.call_soon(then)
