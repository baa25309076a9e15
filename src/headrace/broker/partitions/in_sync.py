"""The replicas of a partition that this broker leads, as their reports and the answers about the ISR change them.

`replica.leader` decides what each report means. The partition carries out its effects at once. Loop-only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch
from headrace.base.ports import Clock
from headrace.native import LeaderState
from headrace.replica.leader import Effects, Leader
from headrace.storage.engine.logs import PartitionLog


class InSyncReplicas(LeaderState):
    """See the module. `leader` is the core by now. `carry_out` is called with what it asks for."""

    __slots__ = ("_carry_out", "_clock", "_log")
    leader: Leader
    high_watermark: Offset

    def __init__(self, leader: Leader, log: PartitionLog, clock: Clock, carry_out: Callable[[Effects], object]) -> None:
        self.leader = leader
        self._log: Final = log
        self._clock: Final = clock
        self._carry_out: Final = carry_out

    def on_follower(
        self,
        replica: BrokerId,
        broker_epoch: BrokerEpoch,
        flushed_end: Offset,
        readable_from: Offset,
        *,
        may_join: bool,
    ) -> None:
        """Note the flushed end of a follower whose log matches ours up to its end. See `Leader.on_fetch`."""
        self.leader, effects = self.leader.on_fetch(
            replica,
            broker_epoch,
            flushed_end=flushed_end,
            log_end=self._log.log_end_offset,
            now=self._clock.monotonic(),
            may_join=may_join,
            readable_from=readable_from,
        )
        self._carry_out(effects)

    def on_liveness(self, replica: BrokerId, *, may_join: bool) -> None:
        """See `Leader.on_liveness`."""
        self.leader, effects = self.leader.on_liveness(replica, may_join=may_join)
        self._carry_out(effects)

    def check(self, lag_max_s: float, heard_at: Mapping[BrokerId, float]) -> None:
        """Propose to remove followers from the ISR that have not caught up for `lag_max_s`."""
        self.leader, effects = self.leader.on_time(
            self._clock.monotonic(), lag_max_s, log_end=self._log.log_end_offset, heard_at=heard_at
        )
        self._carry_out(effects)

    def propose_again(self) -> None:
        """Propose again, as some time has passed since a proposal was refused."""
        self.leader, effects = self.leader.on_pause_over()
        self._carry_out(effects)

    def on_refused(self, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch) -> None:
        """Take back the proposal of this epoch on that partition epoch, which will never be carried out."""
        if leader_epoch == self.leader.epoch:
            self.leader, effects = self.leader.on_refused(partition_epoch)
            self._carry_out(effects)

    def on_doubted(self, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch) -> None:
        """See `Leader.on_doubted`."""
        if leader_epoch == self.leader.epoch:
            self.leader, effects = self.leader.on_doubted(partition_epoch)
            self._carry_out(effects)
