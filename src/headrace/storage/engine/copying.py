"""The capability of logs that are copies: another broker's log is brought over, and cut where the two differ.

Only an engine whose brokers do not share their records offers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.storage.engine.appending import Appended
from headrace.storage.engine.cutting import NO_GAPS
from headrace.wire.batches import BatchHeader


class Copying(Protocol):
    """A log, as a follower writes to it."""

    def append_verbatim(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        now_ms: int,
        gaps_below: Offset = NO_GAPS,
    ) -> Appended:
        """Append a leader's batches as they are.

        Below `gaps_below` the leader's log was compacted, so batches there need not follow one another. Once flushed,
        this log has gaps there too. Raises CorruptBatch where the batches do not continue at the log's end.
        """

    def skip_to(self, offset: Offset, *, now_ms: int) -> None:
        """Continue at `offset`, above the log's end, because compaction left nothing before it. The log then needs a
        flush, as after an append. Raises StorageFailure.
        """

    def truncate_to(self, offset: Offset, producers: Callable[[Offset], bytes] | None = None) -> None:
        """Durably cut all batches that reach above `offset`, and forget epochs that begin at the end.

        `producers` is called once, with the offset where the log will end, while the whole log is still there. It
        returns the producer snapshot that is made durable before newer ones are removed; empty means none. Blocks;
        called in a worker thread, with no ticket out. No other call to this log may be under way, except reads by
        `producers`. Raises StorageFailure, also where the log has failed before. An exception of `producers` passes
        through, with nothing cut. NoRoom: nothing is done yet, and the call may be repeated. But where the log has
        failed with it, close the log, and open it again as after a crash.
        """

    def restart_at(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> None:
        """Durably drop everything. The next append is at `offset`, behind an entry of `epoch`, with `producers` as the
        latest snapshot. A crash on the way leaves a beginning of the old log, or a log that begins at `offset` with its
        producers. Called as `truncate_to`.
        """

    def begin_anew(self) -> None:
        """Durably drop everything, damage too. The next append is at 0, even where the log was read-only. The old
        contents are kept beside the log, unless some are kept already. Called as `truncate_to`.
        """

    @property
    def has_replaced(self) -> bool:
        """Whether contents from before `begin_anew` are kept beside the log."""

    def drop_replaced(self) -> None:
        """Remove the contents that `begin_anew` kept. Blocks; any thread may call it, one at a time and not during
        `begin_anew`. Raises StorageFailure.
        """
