"""The port for appends: a leader's batches get offsets at once, and become durable with a flush."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.wire.batches import BatchHeader


class Appended(NamedTuple):
    """Offsets and time of one append."""

    base_offset: Offset
    end: Offset
    """Offset after its last record. The append is committed once the high watermark reaches it."""
    log_append_time_ms: int = -1
    """-1 where the records keep their own times."""


class Appending(Protocol):
    """A log, as its leader writes to it."""

    def append(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        at_once: bool = False,
    ) -> Appended:
        """Append checked batches (`check_batches`: position and header of each), giving them offsets and epoch.

        `batches` is neither copied nor changed. The log may keep it; `write_out`, a read or the next flush writes it.
        With `at_once` an engine of files writes it before it returns, and so all that was appended before it: then it
        outlives this process. Raises StorageFailure, and then none of the batches is in the log. NoRoom is not final,
        here and in all other calls, and neither is Overloaded.
        """

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """A leader epoch begins at the log's end. Its entry is known before its first append (KIP-101). Flushes that
        begin from now on are of this epoch.
        """

    def roll(self) -> None:
        """End the open range of `Retention.ranges`, unless it is empty. The next append begins another."""
