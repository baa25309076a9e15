"""A topic move as the metadata knows it: who hands a partition over to whom, and how far that has come (DESIGN 4).

A move is aimed (`MoveStarted`), proven (`MoveProven`: the target has read the store), sealed (`MoveSealed`: the target
leads, and the owner writes nothing any more) and finished (`MoveFinished`: the target may write). It is a part of its
partition, so that whoever has the image can go on with it after any crash.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset

UNLIMITED_RATE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStateSealed:
    """Where an owner has left a partition: at `storage/topics/<topic id>/<partition>/state`, until the move is
    finished. Durable history holds all from `log_start_offset` to `last_committed_offset`."""

    last_committed_offset: Offset
    """The last that the owner has written; -1: it never wrote any."""
    log_start_offset: Offset
    leader_epoch: LeaderEpoch
    """In which the owner led."""
    broker_id: BrokerId
    """The owner."""
    timestamp_ms: int
    """When it stopped taking records, by its wall clock."""
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    """Leader epochs of its log, and where each began."""
    producers: str
    """What it knew of its producers: a producer snapshot, compressed and in base 64."""

    @property
    def next_offset(self) -> Offset:
        """Where the target goes on."""
        return Offset(self.last_committed_offset + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition on its way from `source` to `target`."""

    source: BrokerId
    target: BrokerId
    bytes_per_second: int = UNLIMITED_RATE
    """Most that is exported while the source serves; -1: no bound."""
    proven_by: BrokerEpoch | None = None
    """The incarnation of the target that has read what the source exported."""
    state: StorageStateSealed | None = None
    """None: the source serves still, and the move can be cancelled."""
