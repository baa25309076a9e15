"""A follower's view of one partition: its reports to the leader, and where its log is truncated to match the leader's.

It never reads a clock, a file or a socket. Sources: KIP-101, KIP-279 (truncation by leader epochs, not by the high
watermark), KIP-595 (the leader reports the divergence in its answer to a fetch).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.base.ids import LeaderEpoch, Offset


class Position(NamedTuple):
    """The state of a follower in its fetch to the leader."""

    leader_epoch: LeaderEpoch
    """The epoch of the leader that it follows."""
    log_end: Offset
    last_epoch: LeaderEpoch
    """The epoch of the record before `log_end`, in its log or, where the log begins there, before it; -1 where it is
    not known."""
    flushed_end: Offset
    """Everything below is durable. At most `log_end`."""
    readable_from: Offset
    """No record that it lacks, or has damaged, is at this offset or above."""


class End(Protocol):
    """The end of an epoch in one of the two logs; (-1, -1) where the log has none so old."""

    @property
    def epoch(self) -> LeaderEpoch: ...

    @property
    def end(self) -> Offset: ...


def cut_at(ours: End, leaders: End, log_end: Offset) -> Offset:
    """Return where to cut the follower's log, whose last batch is of an epoch, or at an offset, that the leader does
    not have.

    `leaders`: the leader's largest epoch not above that of the follower's last batch, and its end there. `ours`: our
    largest epoch not above that one, and its end here. Where both are the same epoch, both logs have the same batches
    up to the lower of the two ends. Where ours is older, our records above its end are of epochs that the leader does
    not know; the next fetch asks again, from there.
    """
    if leaders.epoch < 0 or ours.epoch < 0:
        return Offset(0)
    common = min(ours.end, leaders.end) if ours.epoch == leaders.epoch else ours.end
    return Offset(max(0, min(common, log_end)))


def diverges(leaders: End, last_epoch: LeaderEpoch, log_end: Offset) -> bool:
    """Whether, for the leader, a follower's log diverges from its own: it is no beginning of the leader's log. The
    follower's last batch is of `last_epoch` and ends at `log_end`. `leaders`: the leader's largest epoch not above
    `last_epoch`, and its end."""
    return last_epoch >= 0 and (leaders.epoch != last_epoch or leaders.end < log_end)


def is_older_than_all(
    last_epoch: LeaderEpoch, log_end: Offset, *, start: Offset, start_epoch: LeaderEpoch, epoch_before: LeaderEpoch
) -> bool:
    """Whether, for the leader, a follower's last batch is older than all known epochs of its own log, though it reaches
    as far.

    Our log begins at `start` in `start_epoch`. Such a follower's log would have to be cut below `start`, where the
    epochs are gone with their records. The two cannot be compared, and the copy is to begin again.

    `epoch_before`: the epoch of the record before `start`; -1 where that is not known. A follower that has this epoch
    there has all our earlier records, and is cut at `start` at the lowest. So no common history is dropped because our
    log begins later.
    """
    oldest = start_epoch if epoch_before < 0 else epoch_before
    return 0 <= last_epoch < oldest and log_end >= start > 0
