"""Detects batches that have overtaken others, which were refused because nobody led their partition here yet.

Their producer is to send them all again. If librdkafka heard of a gap, it would send batches that the earlier leader
appended under another epoch, as if they were new. Loop-only.
"""

from __future__ import annotations

from headrace.base.limits import OVERTAKING_MS_MAX


class Overtaking:
    """The overtaking in one partition. It is possible for a while after the partition may be written to here."""

    __slots__ = ("_heard", "_until")

    def __init__(self) -> None:
        self._until = 0.0
        self._heard: set[int] = set()
        """Producers that have meanwhile sent again what was appended before: they have overtaken nothing."""

    def begin(self, now: float) -> None:
        """Begin the time: batches are accepted from now on."""
        self._until = now + OVERTAKING_MS_MAX / 1000
        self._heard.clear()

    def end(self) -> None:
        """End the time: missing batches will not come again, and are lost."""
        self._until = 0.0
        self._heard.clear()

    def on_duplicate(self, producer_id: int, now: float) -> None:
        if now < self._until:
            self._heard.add(producer_id)
        else:
            self._heard.clear()

    def may_be(self, producer_id: int, now: float) -> bool:
        """Whether this producer's batch, which leaves some out, may have come before these."""
        return now < self._until and producer_id not in self._heard
