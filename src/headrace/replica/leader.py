"""The leader of one partition: who has flushed how far, and so what may be acknowledged and read.

Promises: the high watermark is the smallest flushed end over the ISR, and never falls within an epoch. Never does:
reads a clock, a file or a socket. Sources: Kafka's replication design; KIP-101 (leader epochs); DESIGN "data path".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self, TypeAlias

from headrace.base.ids import BrokerId, LeaderEpoch, Offset


class AdvanceHighWatermark(NamedTuple):
    """Everything below `offset` is flushed on the whole ISR: acknowledge and show it."""

    offset: Offset


Effect: TypeAlias = AdvanceHighWatermark


class Leader(NamedTuple):
    """The leader's view of one partition.

    Invariants: ``high_watermark`` never falls within an epoch, is at most every end in ``isr_ends`` once it has
    advanced in this epoch, and ``isr_ends`` is never empty and holds the leader itself.
    """

    node: BrokerId
    epoch: LeaderEpoch
    start_offset: Offset
    """Log end offset when this epoch began."""
    isr_ends: Mapping[BrokerId, Offset]
    """Flushed end (exclusive) of each in-sync replica, the leader among them."""
    high_watermark: Offset

    @classmethod
    def elected(
        cls,
        *,
        node: BrokerId,
        epoch: LeaderEpoch,
        isr: tuple[BrokerId, ...],
        flushed_end: Offset,
        high_watermark: Offset,
    ) -> Self:
        """Begin an epoch. Followers count from the high watermark until they report in this epoch."""
        assert node in isr, "a leader is in its ISR"
        ends = dict.fromkeys(isr, high_watermark) | {node: flushed_end}
        return cls(
            node=node,
            epoch=epoch,
            start_offset=flushed_end,
            isr_ends=ends,
            high_watermark=max(high_watermark, min(ends.values())),
        )

    def on_flushed(self, end: Offset) -> tuple[Leader, tuple[Effect, ...]]:
        """This node's own log is durable below `end`."""
        if end <= self.isr_ends[self.node]:
            return self, ()
        return self._with_ends({**self.isr_ends, self.node: end})

    def _with_ends(self, ends: Mapping[BrokerId, Offset]) -> tuple[Leader, tuple[Effect, ...]]:
        reached = min(ends.values())
        advanced = reached > self.high_watermark
        high_watermark = reached if advanced else self.high_watermark
        leader = tuple.__new__(
            Leader, (self.node, self.epoch, self.start_offset, ends, high_watermark)
        )  # the quick way
        return leader, (AdvanceHighWatermark(reached),) if advanced else ()

    @property
    def epoch_is_committed(self) -> bool:
        """Whether the high watermark has reached this epoch's start: until then "latest" is not known (KIP-207)."""
        return self.high_watermark >= self.start_offset
