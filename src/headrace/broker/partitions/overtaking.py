"""Whether a producer's batch has overtaken others, which were refused because nobody led its partition here yet.

Its producer is to send them all again; told of a gap, librdkafka would send what the leader of before has appended
under another epoch, as if it were new. Loop-only.
"""

from __future__ import annotations

from headrace.base.limits import OVERTAKING_MS_MAX


class Overtaking:
    """Of one partition: the time since it may be written to here, for which it is to be reckoned with."""

    __slots__ = ("_heard", "_until")

    def __init__(self) -> None:
        self._until = 0.0
        self._heard: set[int] = set()
        """Producers that have sent again meanwhile what was appended before: they have overtaken nothing."""

    def begin(self, now: float) -> None:
        """From now on batches are taken."""
        self._until = now + OVERTAKING_MS_MAX / 1000
        self._heard.clear()

    def end(self) -> None:
        """What is missing will not come again: it is lost."""
        self._until = 0.0
        self._heard.clear()

    def on_duplicate(self, producer_id: int, now: float) -> None:
        if now < self._until:
            self._heard.add(producer_id)
        else:
            self._heard.clear()

    def may_be(self, producer_id: int, now: float) -> bool:
        """Whether a batch of it that leaves some out has come before these."""
        return now < self._until and producer_id not in self._heard
