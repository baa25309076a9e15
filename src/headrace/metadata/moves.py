"""A topic move in the metadata: the source and target of a partition, and the phase that the move has reached (DESIGN
4).

A move has four phases:
- aimed (`MoveStarted`);
- proven (`MoveProven`): the target has read the store;
- sealed (`MoveSealed`): the target leads, and the owner no longer writes;
- finished (`MoveFinished`): the target may write.

It is a part of its partition, so that any holder of the image can continue it after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from headrace.base.values import Value

UNLIMITED_RATE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StorageStateSealed(Value):
    """The final state of an owner's partition: at `storage/topics/<topic id>/<partition>/state`, until the move is
    finished. Durable history holds everything from `log_start_offset` to `last_committed_offset`."""

    last_committed_offset: Offset
    """The last offset that the owner wrote; -1: it never wrote any."""
    log_start_offset: Offset
    leader_epoch: LeaderEpoch
    """Epoch in which the owner led."""
    broker_id: BrokerId
    """The owner's id."""
    timestamp_ms: int
    """Time when it stopped accepting records, by its wall clock."""
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    """Leader epochs of its log, and the offset where each began."""
    producers: str
    """The owner's producer snapshot, compressed and in base 64."""

    @property
    def next_offset(self) -> Offset:
        """The offset where the target continues."""
        return Offset(self.last_committed_offset + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Move(Value):
    """One partition on its way from `source` to `target`."""

    source: BrokerId
    target: BrokerId
    bytes_per_second: int = UNLIMITED_RATE
    """Highest export rate while the source serves; -1: no bound."""
    proven_by: BrokerEpoch | None = None
    """The incarnation of the target that has read the source's exports."""
    state: StorageStateSealed | None = None
    """None: the source still serves, and the move can be cancelled."""
