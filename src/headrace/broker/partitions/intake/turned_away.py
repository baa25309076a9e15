"""Remembers unknown idempotent producers whose batch was refused for a passing reason: a full disk, too few replicas in
sync.

A producer sends several batches at once. If the reason ends between two of them, the second would be its first here. It
could begin anywhere, and would leave the first out for good. Promises: a batch behind a refused one is not appended
before it. Nothing is remembered for longer than TURNED_AWAY_MS_MAX, nor of more than TURNED_AWAY_MAX producers.
Sans-IO.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.limits import TURNED_AWAY_MAX, TURNED_AWAY_MS_MAX
from headrace.wire.batches import BatchHeader


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    until: float


class TurnedAway:
    """The refused batches of one partition. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._first: dict[int, _Refused] = {}
        """The first refused batch of each producer, by producer id."""

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, header: BatchHeader, now: float) -> None:
        """Note that this batch of an unknown producer was refused."""
        known = self._first.get(header.producer_id)
        if header.producer_id < 0 or (known is not None and known.epoch >= header.producer_epoch and known.until > now):
            return
        self._first[header.producer_id] = _Refused(
            header.producer_epoch, header.base_sequence, now + TURNED_AWAY_MS_MAX / 1000
        )
        if len(self._first) > TURNED_AWAY_MAX:
            del self._first[next(iter(self._first))]

    def awaits_another(self, header: BatchHeader, now: float) -> bool:
        """Whether a batch that comes now follows one that was refused, and has not come again."""
        known = self._first.get(header.producer_id)
        if known is None:
            return False
        if known.epoch == header.producer_epoch and known.sequence != header.base_sequence and now < known.until:
            return True
        del self._first[header.producer_id]
        return False
