"""Appends with acks=1 that wait until the log has stored them: out of this process's memory, durable or not.

Loop-only.
"""

from __future__ import annotations

from headrace.base.ids import Offset
from headrace.broker.kit.parking import Commit, CommitParking
from headrace.storage.engine.flushing import Storing
from headrace.wire.errors import ErrorCode


class StoredParking:
    """`storing`: None where a log has stored all that it has taken."""

    def __init__(self, storing: Storing | None) -> None:
        self._storing = storing
        self._waiting = CommitParking()
        if storing is not None:
            storing.on_stored = self.wake

    def park(self, end: Offset, waiter: Commit) -> None:
        """Settle `waiter` once everything below `end` is stored; at once where it is."""
        if self._storing is None or end <= self._storing.stored_end:
            waiter.on_outcome(ErrorCode.NONE)
        else:
            self._waiting.park(end, waiter)

    def wake(self) -> None:
        """Settle those that are stored by now."""
        if self._storing is not None:
            self._waiting.wake_below(self._storing.stored_end)

    def refuse_all(self, error: ErrorCode) -> None:
        """Refuse all: the leadership that took them ended, or the store failed."""
        self._waiting.refuse_all(error)
