"""The capability of logs that are compacted: of every key only the last record stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.base.ids import LAST_OFFSET, Offset

if TYPE_CHECKING:
    import asyncio


class Stopped(Exception):  # noqa: N818  # no error: it was asked for
    """The cleaning was asked to stop. The log is as it was, or clean up to an earlier offset."""


class Cleaning(Protocol):
    """One compaction of one log, under way. Until `end` no range is dropped, and the log may not be cut or closed."""

    @property
    def is_committed(self) -> bool:
        """It is half-way in place: if it ends now, the log has failed, and opening it again finishes the work."""

    async def carry_out(self, stopping: asyncio.Event, bytes_per_second: float) -> Offset:
        """Compact, while readers go on; called once, on the loop. Returns the offset up to which the log is clean.
        Raises OSError, CorruptData, StorageFailure; Stopped soon after `stopping` is set.
        """

    def end(self) -> None:
        """The cleaning is over, complete or not. Called once, on the loop, after `carry_out` or without it."""


class Cleanable(Protocol):
    """A log, as it is compacted."""

    def dirtiness(self, now_ms: int, up_to: Offset) -> float:
        """The fraction of its closed ranges below `up_to` that compaction has not covered yet. 0 where none is due: too
        little, too young, not configured, or a cleaning is under way. May read a header. Raises OSError, CorruptData.
        """

    def begin_cleaning(
        self,
        now_ms: int,
        up_to: Offset,
        remembered: frozenset[int],
        token: str,
        *,
        tombstones_from: Offset = LAST_OFFSET,
    ) -> Cleaning | None:
        """Take up the batches below `up_to` (the last stable offset). Returns None where there are none.

        Batches that end at a `remembered` offset stay, without records if need be. Tombstones from `tombstones_from` on
        that nothing replaces stay too. `token` marks what the cleaning leaves where a crash cuts it short. Raises
        OSError, CorruptData.
        """
