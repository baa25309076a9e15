"""The start offset of each leader epoch (KIP-101), and Kafka's file of them.

Invariant: epochs and start offsets both strictly rise. An epoch without records is replaced by the next one at its
offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from headrace.base.errors import CorruptData
from headrace.base.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from headrace.storage.engine.reading import EpochEnd

_epoch_of = itemgetter(0)
_start_of = itemgetter(1)


class LeaderEpochs:
    """The epochs of one log. A few entries: one per leadership that wrote something."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[LeaderEpoch, Offset]] = ()) -> None:
        self.entries: list[tuple[LeaderEpoch, Offset]] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def latest(self) -> LeaderEpoch:
        """The latest epoch; -1 where there is none."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: LeaderEpoch, start: Offset) -> bool:
        """The epoch's records begin at `start`. Returns False where that changes nothing (an old epoch, or none)."""
        if epoch <= self.latest:
            return False
        while self.entries and self.entries[-1][1] >= start:
            self.entries.pop()
        self.entries.append((epoch, start))
        return True

    def cut_from(self, offset: Offset) -> bool:
        """Forget epochs that begin at or above `offset`, since the log was cut there."""
        before = len(self.entries)
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()
        return len(self.entries) != before

    def cut_below(self, offset: Offset) -> None:
        """The log durably starts at `offset`. Keep the epoch of the record before it, as an epoch that starts with that
        record. A replica that ends there can then be compared. Called only once the start is durable: a crash may bring
        the old start back.
        """
        before = Offset(max(0, offset - 1))
        keep = bisect_right(self.entries, before, key=_start_of)
        if keep:
            self.entries[:keep] = [(self.entries[keep - 1][0], before)]

    def at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in force at `offset`; -1 where none is known."""
        found = bisect_right(self.entries, offset, key=_start_of)
        return self.entries[found - 1][0] if found else NO_EPOCH

    def end_of(self, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """The largest epoch not above `epoch` and where it ended, as Kafka answers it."""
        unknown = EpochEnd(NO_EPOCH, NO_OFFSET)
        if epoch < 0 or not self.entries or epoch > self.latest:
            return unknown
        if epoch == self.latest:
            return EpochEnd(epoch, log_end)
        above = bisect_right(self.entries, epoch, key=_epoch_of)
        end = self.entries[above][1]
        return EpochEnd(self.entries[above - 1][0] if above else epoch, end)

    def encode(self) -> bytes:
        """Kafka's `leader-epoch-checkpoint`: the version, the count, then a line `epoch start` for each."""
        lines = ["0", str(len(self.entries)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Raises CorruptData."""
        try:
            version, count, *lines = data.decode().splitlines()
            pairs = [line.split() for line in lines]
            entries = [(LeaderEpoch(int(epoch)), Offset(int(start))) for epoch, start in pairs]
            if int(version) != 0 or int(count) != len(entries):
                raise ValueError("wrong version or count")
        except ValueError as error:
            raise CorruptData(f"A leader-epoch-checkpoint cannot be read: {error}.") from error
        return cls(entries)
