"""A follower's view of one partition: what it says of itself, and where its log has to give way to the leader's.

Never does: reads a clock, a file or a socket. Sources: KIP-101, KIP-279 (cut by leader epochs, not by the high
watermark), KIP-595 (the leader tells of the divergence in its answer to a fetch).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.base.ids import LeaderEpoch, Offset


class Position(NamedTuple):
    """What a fetch tells the leader."""

    leader_epoch: LeaderEpoch
    """That the follower follows."""
    log_end: Offset
    last_epoch: LeaderEpoch
    """Of the record before `log_end`, in its log or, where that begins there, before it; -1 where it is not known."""
    flushed_end: Offset
    """Everything below is durable. At most `log_end`."""
    readable_from: Offset
    """Nothing that it lacks, or has damaged, is at it or above."""


class End(Protocol):
    """Where an epoch ends in one of the two logs; (-1, -1) where it has none so old."""

    @property
    def epoch(self) -> LeaderEpoch: ...

    @property
    def end(self) -> Offset: ...


def cut_at(ours: End, leaders: End, log_end: Offset) -> Offset:
    """Where to cut the follower's log, whose last batch is of an epoch, or at an offset, that the leader does not have.

    `leaders`: the leader's largest epoch not above that of the follower's last batch, and its end there. `ours`: our
    largest epoch not above that one, and its end here. Where it is the same epoch, both logs have the same batches up
    to the lower of the two ends. Where ours is older, what we have above it is of epochs that the leader does not know;
    the next fetch asks again, from there.
    """
    if leaders.epoch < 0 or ours.epoch < 0:
        return Offset(0)
    common = min(ours.end, leaders.end) if ours.epoch == leaders.epoch else ours.end
    return Offset(max(0, min(common, log_end)))


def diverges(leaders: End, last_epoch: LeaderEpoch, log_end: Offset) -> bool:
    """Leader: whether a follower's log, whose last batch is of `last_epoch` and ends at `log_end`, is no beginning of
    ours. `leaders`: our largest epoch not above `last_epoch`, and its end."""
    return last_epoch >= 0 and (leaders.epoch != last_epoch or leaders.end < log_end)


def is_older_than_all(
    last_epoch: LeaderEpoch, log_end: Offset, *, start: Offset, start_epoch: LeaderEpoch, epoch_before: LeaderEpoch
) -> bool:
    """Leader: whether a follower's last batch is older than all that is known of our log, which begins at `start` in
    `start_epoch`, though it reaches as far. Where such a log is to be cut lies below `start`, and the epochs from there
    are gone with their records: the two cannot be compared, and the copy is to be begun anew. `epoch_before`: of the
    record before `start`; -1 where that is not known. Whoever has that epoch there has all that was here below, and is
    cut at `start` at the lowest: nothing of a common history is dropped because our log begins later."""
    oldest = start_epoch if epoch_before < 0 else epoch_before
    return 0 <= last_epoch < oldest and log_end >= start > 0
