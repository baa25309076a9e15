"""The leader of one partition: flushed ends of the replicas, the high watermark that follows from them, and the ISR.

Promises:
- The high watermark is the smallest flushed end over the ISR, and never falls within an epoch.
- A follower counts only by its reports in this epoch.
- While a change of the ISR is proposed, the high watermark counts the larger set, and min.insync.replicas the smaller.

It never reads a clock, a file or a socket. Sources: Kafka's replication design; KIP-101 (leader epochs), KIP-497
(AlterPartition), KIP-841 (who may join); DESIGN "data path".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self, TypeAlias

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch


class AdvanceHighWatermark(NamedTuple):
    """Everything below `offset` is flushed on the whole ISR: acknowledge and show it."""

    offset: Offset


class ProposeIsr(NamedTuple):
    """Ask the controller for this ISR (KIP-497). Until it has answered, nothing else is proposed."""

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    """Each member in the incarnation that the leader knows; -1: whichever it is."""


Effect: TypeAlias = AdvanceHighWatermark | ProposeIsr
Effects: TypeAlias = tuple[Effect, ...]

ANY_EPOCH: Final = BrokerEpoch(-1)
FIRST_EPOCH: Final = PartitionEpoch(0)
FIRST_OFFSET: Final = Offset(0)


class Progress(NamedTuple):
    """The reports of one follower in this epoch."""

    broker_epoch: BrokerEpoch
    flushed_end: Offset
    """Exclusive."""
    log_end_at_fetch: Offset
    """The leader's log end at the follower's last fetch."""
    fetched_at: float
    caught_up_at: float
    """When the follower had last flushed everything that the leader had then: monotonic seconds, as all times here."""
    may_join: bool
    """The follower is live, in this incarnation, as far as this leader knows."""
    readable_from: Offset
    """No record that it lacks, or has damaged, is at this offset or above."""


class Leader(NamedTuple):
    """The leader's view of one partition.

    Invariants: ``high_watermark`` never falls within an epoch. Once it has advanced in this epoch, it is at most every
    end in ``isr_ends``. ``isr_ends`` is never empty, holds the leader itself, and has the members of `isr` and
    `proposed`.
    """

    node: BrokerId
    epoch: LeaderEpoch
    start_offset: Offset
    """Log end offset when this epoch began."""
    isr_ends: Mapping[BrokerId, Offset]
    """Flushed end (exclusive) of each replica that is in sync, or would be as proposed; the leader among them."""
    high_watermark: Offset
    partition_epoch: PartitionEpoch = FIRST_EPOCH
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()
    """The committed ISR."""
    proposed: tuple[BrokerId, ...] | None = None
    """The proposed ISR, while the controller has not answered."""
    followers: Mapping[BrokerId, Progress] = {}
    began_at: float = 0.0

    @classmethod
    def elected(
        cls,
        *,
        node: BrokerId,
        epoch: LeaderEpoch,
        isr: tuple[BrokerId, ...],
        flushed_end: Offset,
        high_watermark: Offset,
        log_end: Offset | None = None,
        partition_epoch: PartitionEpoch = FIRST_EPOCH,
        replicas: tuple[BrokerId, ...] = (),
        now: float = 0.0,
    ) -> Self:
        """Begin an epoch. Followers count from the high watermark until they report in this epoch. A leader that was
        not in sync may know a high watermark above its own flushed end. Where it is elected uncleanly, that one counts
        no more."""
        assert node in isr, "a leader is in its ISR"
        high_watermark = min(high_watermark, flushed_end)
        ends = dict.fromkeys(isr, high_watermark) | {node: flushed_end}
        return cls(
            node=node,
            epoch=epoch,
            start_offset=flushed_end if log_end is None else log_end,
            isr_ends=ends,
            high_watermark=max(high_watermark, min(ends.values())),
            partition_epoch=partition_epoch,
            replicas=replicas or isr,
            isr=isr,
            began_at=now,
        )

    # flushes

    def on_flushed(self, end: Offset) -> tuple[Leader, Effects]:
        """Note that this node's own log is durable below `end`."""
        if end <= self.isr_ends[self.node]:
            return self, ()
        return self._with_ends({**self.isr_ends, self.node: end})

    def on_fetch(
        self,
        replica: BrokerId,
        broker_epoch: BrokerEpoch,
        *,
        flushed_end: Offset,
        log_end: Offset,
        now: float,
        may_join: bool,
        readable_from: Offset = FIRST_OFFSET,
    ) -> tuple[Leader, Effects]:
        """Note a fetch of a follower whose log does not diverge from ours. It reports its flushed end, and the offset
        from which it can serve consumers. `log_end`: ours."""
        if replica == self.node or replica not in self.replicas:
            return self, ()
        known = self.followers.get(replica)
        progress = _progress(known, self.began_at, broker_epoch, flushed_end, log_end, now, may_join, readable_from)
        leader = tuple.__new__(
            Leader, (*self[:_FOLLOWERS], {**self.followers, replica: progress}, self.began_at)
        )  # the quick way
        before = leader.isr_ends.get(replica)
        if before is None:
            return leader._let_join()
        if flushed_end == before:
            return leader, ()
        return leader._with_ends({**leader.isr_ends, replica: flushed_end})

    def on_liveness(self, replica: BrokerId, *, may_join: bool) -> tuple[Leader, Effects]:
        """Note that a follower that has reported is live now, or is not any more."""
        known = self.followers.get(replica)
        if known is None or known.may_join == may_join:
            return self, ()
        return self._replace(followers={**self.followers, replica: known._replace(may_join=may_join)})._let_join()

    def _let_join(self) -> tuple[Leader, Effects]:
        """Propose the followers that have flushed everything committed, and everything that the log had when the epoch
        began."""
        if self.proposed is not None or len(self.isr) == len(self.replicas):
            return self, ()
        wanted = tuple(each for each in self.replicas if each in self.isr or self._may_join(each))
        return self._propose(wanted) if wanted != self.isr else (self, ())

    def _may_join(self, replica: BrokerId) -> bool:
        known = self.followers.get(replica)
        enough = max(self.high_watermark, self.start_offset)
        return known is not None and known.may_join and known.flushed_end >= enough

    @property
    def flushed_ends(self) -> Mapping[BrokerId, Offset]:
        """The flushed ends of the followers that have reported in this epoch."""
        return {replica: progress.flushed_end for replica, progress in self.followers.items()}

    # the ISR

    def on_time(
        self, now: float, lag_max_s: float, *, log_end: Offset, heard_at: Mapping[BrokerId, float]
    ) -> tuple[Leader, Effects]:
        """Propose to remove members that have been behind for too long (replica.lag.time.max.ms). `heard_at`: when each
        was last heard of, by any request. A follower that has flushed everything reports nothing more of it."""
        if self.proposed is not None or len(self.isr) == 1:
            return self, ()
        for each, progress in self.followers.items():
            if progress.flushed_end >= log_end and heard_at.get(each, 0.0) > progress.caught_up_at:
                idle = progress._replace(caught_up_at=heard_at[each])
                self = self._replace(followers={**self.followers, each: idle})
        late = [each for each in self.isr if each != self.node and now - self._caught_up_at(each) > lag_max_s]
        return self._propose(tuple(each for each in self.isr if each not in late)) if late else (self, ())

    def _caught_up_at(self, replica: BrokerId) -> float:
        known = self.followers.get(replica)
        return self.began_at if known is None else known.caught_up_at

    def on_isr(
        self,
        isr: tuple[BrokerId, ...],
        partition_epoch: PartitionEpoch,
        replicas: tuple[BrokerId, ...] | None = None,
    ) -> tuple[Leader, Effects]:
        """Note the ISR, as now committed in this epoch, and the replicas (None: unchanged). A broker that is no replica
        any more is not proposed again."""
        if partition_epoch <= self.partition_epoch:
            return self, ()
        assert self.node in isr, "a leader is in its ISR"
        leader = self if replicas is None else self.on_replicas(replicas, self.partition_epoch)
        return leader._replace(isr=isr, partition_epoch=partition_epoch, proposed=None)._settle()

    def on_replicas(self, replicas: tuple[BrokerId, ...], partition_epoch: PartitionEpoch) -> Leader:
        """Note the replicas, as now committed in this epoch."""
        followers = {each: known for each, known in self.followers.items() if each in replicas}
        return self._replace(
            replicas=replicas, followers=followers, partition_epoch=max(partition_epoch, self.partition_epoch)
        )

    def on_refused(self, partition_epoch: PartitionEpoch) -> tuple[Leader, Effects]:
        """Note that the proposal on that partition epoch was refused and will not be carried out: the committed ISR
        stands. It is not proposed again before `on_pause_over`, a report or a change."""
        if self.proposed is None or partition_epoch != self.partition_epoch:
            return self, ()
        return self._replace(proposed=None)._with_ends(self._ends_of(self.isr))

    def on_pause_over(self) -> tuple[Leader, Effects]:
        """Note that some time has passed since a proposal was refused."""
        return self._let_join()

    def on_doubted(self, partition_epoch: PartitionEpoch) -> tuple[Leader, Effects]:
        """As `on_refused`, but an earlier request for it with an unknown outcome may yet arrive. Propose the committed
        ISR, which takes a partition epoch, so that the earlier one cannot be carried out any more. Until then nothing
        is taken back."""
        if self.proposed is None or partition_epoch != self.partition_epoch:
            return self, ()
        leader = self._replace(proposed=self.isr)
        return leader, (leader.proposal,)

    def _settle(self) -> tuple[Leader, Effects]:
        """End the proposal: the committed ISR counts, and others may be waiting to join it."""
        settled, effects = self._with_ends(self._ends_of(self.isr))
        settled, more = settled._let_join()
        return settled, effects + more

    def _propose(self, isr: tuple[BrokerId, ...]) -> tuple[Leader, Effects]:
        ends = self._ends_of((*self.isr, *(each for each in isr if each not in self.isr)))
        leader = self._replace(proposed=isr, isr_ends=ends)
        return leader, (leader.proposal,)

    @property
    def proposal(self) -> ProposeIsr:
        """The present proposal, to be sent (again)."""
        assert self.proposed is not None, "something is proposed"
        members = tuple((each, self._epoch_of(each)) for each in self.proposed)
        return ProposeIsr(self.epoch, self.partition_epoch, members)

    def _epoch_of(self, replica: BrokerId) -> BrokerEpoch:
        known = self.followers.get(replica)
        return ANY_EPOCH if known is None else known.broker_epoch

    @property
    def state(self) -> tuple[LeaderEpoch, PartitionEpoch]:
        """The state on which a proposal is decided."""
        return self.epoch, self.partition_epoch

    @property
    def in_sync(self) -> int:
        """The number of replicas that count for min.insync.replicas."""
        if self.proposed is None:
            return len(self.isr)
        return sum(each in self.proposed for each in self.isr)

    # the high watermark

    def _ends_of(self, members: Sequence[BrokerId]) -> Mapping[BrokerId, Offset]:
        """Return the flushed ends of these members. A member that has not reported in this epoch counts from the high
        watermark."""
        reported = self.flushed_ends
        unknown = min(self.high_watermark, self.isr_ends[self.node])
        return {
            each: self.isr_ends[self.node] if each == self.node else reported.get(each, unknown) for each in members
        }

    def _with_ends(self, ends: Mapping[BrokerId, Offset]) -> tuple[Leader, Effects]:
        reached = min(ends.values())
        advanced = reached > self.high_watermark
        high_watermark = reached if advanced else self.high_watermark
        leader = tuple.__new__(
            Leader, (self.node, self.epoch, self.start_offset, ends, high_watermark, *self[5:])
        )  # the quick way
        return leader, (AdvanceHighWatermark(reached),) if advanced else ()

    @property
    def epoch_is_committed(self) -> bool:
        """Whether the high watermark has reached this epoch's start: until then "latest" is not known (KIP-207)."""
        return self.high_watermark >= self.start_offset


_FOLLOWERS: Final = Leader._fields.index("followers")


def _progress(
    known: Progress | None,
    began_at: float,
    broker_epoch: BrokerEpoch,
    flushed_end: Offset,
    log_end: Offset,
    now: float,
    may_join: bool,
    readable_from: Offset,
) -> Progress:
    """Return the progress after a report. A follower is caught up when it has flushed all that the leader has now, or
    had at the follower's last fetch (Kafka's rule)."""
    caught_up_at = began_at if known is None else known.caught_up_at
    if known is not None and known.broker_epoch == broker_epoch and flushed_end >= known.log_end_at_fetch:
        caught_up_at = max(caught_up_at, known.fetched_at)
    if flushed_end >= log_end:
        caught_up_at = now
    return Progress(broker_epoch, flushed_end, log_end, now, caught_up_at, may_join, readable_from)
