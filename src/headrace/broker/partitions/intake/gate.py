"""Decides whether a leader may write to its partition, and keeps the batches that wait until it may, or until another
leads.

It may not write while it stops to seal, and in that leader epoch no more once the seal is proposed. Where it takes
over, it may not write before the move is finished. Promises: waiting batches go on in the order in which they came, and
their number is bounded. Loop-only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.base.limits import PARKED_BATCHES_BYTES_MAX, PARKED_BATCHES_MAX


class Gate:
    """See the module."""

    __slots__ = ("_bytes", "_is_full", "_waiting", "is_proposed", "is_stopped", "takes_over")

    def __init__(self, *, takes_over: bool) -> None:
        self.takes_over = takes_over
        """Only the end of the move opens it."""
        self.is_stopped = False
        self.is_proposed = False
        """The seal was proposed: only another leader epoch opens it."""
        self._waiting: deque[Callable[[], object]] = deque()
        self._bytes = 0
        self._is_full = False
        """A batch was refused: no later one may overtake it."""

    @property
    def is_open(self) -> bool:
        return not (self.is_stopped or self.takes_over)

    def park(self, again: Callable[[], object], size: int) -> bool:
        """Call `again` once it is open, or another leads; return False where too much waits."""
        if len(self._waiting) >= PARKED_BATCHES_MAX or self._bytes + size > PARKED_BATCHES_BYTES_MAX:
            self._is_full = True
        if self._is_full:
            return False
        self._waiting.append(again)
        self._bytes += size
        return True

    def stop(self) -> None:
        """Accept no records any more, to seal the partition. Later batches wait: until it goes on, or until this epoch
        ends."""
        self.is_stopped = True

    def propose(self) -> None:
        """Note that the seal is about to be proposed: nothing is written in this leader epoch from now on."""
        assert self.is_stopped, "what is sealed is all there is"
        self.is_proposed = True

    def resume(self) -> None:
        """Go on writing, in the same epoch. Raises RuntimeError where the seal may be committed yet."""
        if self.is_proposed:
            raise RuntimeError("what was proposed to be sealed is not written to in the same epoch")
        self.is_stopped = False
        self._let_through()

    def on_image(self, *, takes_over: bool) -> None:
        """Note a change of the partition within its epoch."""
        self.takes_over = takes_over
        self._let_through()

    def on_epoch(self, *, takes_over: bool) -> None:
        """Note a new leader epoch: a seal that was proposed in the one before is void."""
        self.is_stopped = self.is_proposed = False
        self.on_image(takes_over=takes_over)

    def release(self) -> None:
        """Release the waiting batches, as this leadership is over."""
        self._is_full = False
        waiting, self._waiting, self._bytes = self._waiting, deque(), 0
        for again in waiting:
            again()

    def _let_through(self) -> None:
        if self.is_open:
            self.release()
