"""The port for flushes: many logs become durable together, and what is not flushed does not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset


class FlushTicket(Protocol):
    """One flush of one log under way. Only the engine that made it looks inside."""

    @property
    def end(self) -> Offset:
        """The offset below which the flush makes everything durable."""


Outcome: TypeAlias = OSError | StorageFailure | None
"""None means durable. `Abandoned` says that no disk has failed. Where an answer was lost, the engine has looked before
it says that a flush failed.
"""

Outcomes: TypeAlias = Callable[[], Sequence[Outcome]]
"""Returns the outcome of each ticket of a round, in their order. Raises only a programming error."""


class FlushRound(Protocol):
    """Flushes of many logs, carried out together."""

    def begin(self, done: Callable[[Outcomes], object]) -> None:
        """Called once, on the loop. `done` is called later, on the loop."""

    def end(self) -> None:
        """The outcomes are known. Called on the loop, before the tickets are finished."""


class Storing(Protocol):
    """The capability of logs whose appends are not out of this process's memory when `append` returns."""

    @property
    def stored_end(self) -> Offset:
        """Everything below it is in the store, durable or not. At least `Flushing.flushed_end`."""

    on_stored: Callable[[], object] | None
    """Called on the loop when `stored_end` has risen above `flushed_end`."""


class Flushing(Protocol):
    """A log, as it is flushed."""

    @property
    def flushed_end(self) -> Offset:
        """Everything below it is durable (with `flush.policy=os`: in the page cache)."""

    @property
    def flushed_copies(self) -> int:
        """Copies that have everything below `flushed_end`, in a store that makes copies by itself; 1: it makes none."""

    def count_again(self) -> None:
        """Let the next flush count these copies once more, although nothing was appended. An engine that makes no
        copies by itself does nothing."""

    @property
    def needs_flush(self) -> bool:
        """Whether `begin_flush` would return a ticket, now or once the present one is finished."""

    def write_out(self) -> None:
        """Write all appended batches to where other threads and later lives look for them.

        Until this call, flushed batches may be in the engine's journal alone; they must be written before the next
        flush begins. An engine without files of its own does nothing. Raises StorageFailure where the log has failed:
        batches that were neither written nor flushed are then no longer in it. Raises NoRoom where the disk is full:
        the log then still holds all of them.
        """

    def begin_flush(self) -> FlushTicket | None:
        """Take up what has to be made durable now. Returns None where nothing has, or while another ticket is out.
        Raises StorageFailure where the log has failed.
        """

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        """The ticket's outcome is None. Returns the new `flushed_end`."""

    def fail_flush(self, ticket: FlushTicket) -> None:
        """The ticket's outcome is a failure. The log has failed for good, and its unflushed tail is dropped. Where the
        cause was a full disk, before any sync failed, the log has not failed: the next flush does all of the work.
        """
