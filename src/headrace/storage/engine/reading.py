"""The port for reads and look-ups.

`read` never waits: it gives what is in memory, or in files that the kernel may have in its own. An engine whose older
records are elsewhere raises NotAtHand, which fetches them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from headrace.base.ids import LAST_OFFSET, LeaderEpoch, Offset
from headrace.base.limits import RECORDS_FETCH_RETRY_MS
from headrace.base.ports import Buffer
from headrace.storage.engine.faults import NotAtHand
from headrace.wire.batches import BatchHeader


class FoundOffset(NamedTuple):
    """Result of a look-up by timestamp."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class EpochEnd(NamedTuple):
    """Where a leader epoch ended (KIP-101); (-1, -1) where that is unknown."""

    epoch: LeaderEpoch
    end: Offset


class Walked(NamedTuple):
    """One batch of a log that is walked through."""

    header: BatchHeader
    control: Buffer
    """The whole batch, where it is a control batch; else no bytes."""


class Fetched(Protocol):
    """Whole batches that a fetch has brought into memory."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""

    def read(self, start: int, bytes_max: int, end: int, *, at_least_one: bool) -> Buffer:
        """As `Reading.read`, from a `start` that lies in it."""


Fetching: TypeAlias = asyncio.Future[Fetched]
"""A fetch under way. It goes on, whoever waits. It ends with StorageFailure where the records cannot be had now, and
with CorruptData where they are damaged.
"""


class Reading(Protocol):
    """A log, as its readers see it."""

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        """Return whole batches below `end`, from the one that holds `start` (at or above `log_start_offset`).

        Returns at most `max_bytes`; with `at_least_one` the first batch is returned whatever its size. A read may stop
        early, so fewer bytes do not mean the end of the log. The result is empty only where there is no batch below
        `end`, or none fits. Raises StorageFailure, CorruptData where the bytes are no batches, and NotAtHand.
        """

    def batches_from(self, start: Offset, end: Offset = LAST_OFFSET) -> Iterator[Walked]:
        """Batches that begin below `end`, from the batch that holds `start`. Blocks. Any thread may call it, before the
        log is appended to.
        """


class LookingUp(Protocol):
    """A log, as it is searched by epoch and by time."""

    @property
    def epochs(self) -> Sequence[tuple[LeaderEpoch, Offset]]:
        """Leader epochs with their start offsets, in rising order."""

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Leader epoch of the batch at `offset`, or of the next batch where `offset` is the log's end. -1 where it is
        unknown.
        """

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        """The largest epoch not above `epoch`, and where it ended. The newest epoch ends at the log's end (KIP-101,
        KIP-279).
        """

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        """The first written-out record at or after `timestamp`. Blocks; any thread may call it. It may decompress a
        batch.
        """

    def max_timestamp(self) -> FoundOffset | None:
        """The first record with the highest timestamp (KIP-734). Blocks; any thread may call it."""


async def read_or_fetch(log: Reading, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> Buffer:
    """As `Reading.read`, but wait for records that are not at hand. For readers in the background, which have the time.
    The caller sees to it that the log is not closed meanwhile.
    """
    while True:
        try:
            return log.read(start, max_bytes, end, at_least_one=at_least_one)
        except NotAtHand as error:
            fetching = error.fetch()
        if fetching is None:
            await asyncio.sleep(RECORDS_FETCH_RETRY_MS / 1000)
            continue
        fetched = await asyncio.shield(fetching)
        if fetched.base_offset <= start < fetched.next_offset:
            return fetched.read(start, max_bytes, end, at_least_one=at_least_one)
