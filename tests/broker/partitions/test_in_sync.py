"""Replicas of a partition that is led here: reports reach the core, and what it asks for is carried out."""

from __future__ import annotations

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch
from headrace.broker.partitions.in_sync import InSyncReplicas
from headrace.broker.system import SystemClock
from headrace.replica.leader import AdvanceHighWatermark, Effect, Effects, Leader, ProposeIsr
from headrace.wire.batches import check_batches
from tests.storage.log.log_world import NOW_MS, batch, flush, new_disk, open_log

ME, OTHER = BrokerId(1), BrokerId(2)
EPOCH = LeaderEpoch(4)


class Led:
    """A log of two records that is led, with a follower in sync."""

    def __init__(self) -> None:
        self.log = open_log(new_disk())
        data = batch(2)
        self.log.append(data, check_batches(data), leader_epoch=EPOCH, now_ms=NOW_MS)
        flush(self.log)
        leader = Leader.elected(
            node=ME, epoch=EPOCH, isr=(ME, OTHER), flushed_end=self.log.flushed_end, high_watermark=Offset(0)
        )
        self.asked: list[Effect] = []
        self.isr = InSyncReplicas(leader, self.log, SystemClock(), self.carry_out)
        self.seen: list[Offset] = []

    def carry_out(self, effects: Effects) -> None:
        self.asked += effects
        self.seen.append(self.isr.leader.high_watermark)

    def report(self, end: int) -> None:
        self.isr.on_follower(OTHER, BrokerEpoch(1), Offset(end), Offset(0), may_join=True)


def test_a_report_raises_the_high_watermark_before_that_is_told() -> None:
    led = Led()
    led.report(2)
    assert led.asked == [AdvanceHighWatermark(Offset(2))]
    assert led.seen == [2]


def test_a_follower_that_is_behind_for_too_long_is_to_leave_and_a_refusal_lets_it_be_proposed_again() -> None:
    led = Led()
    led.report(0)
    led.isr.check(-1.0, {})
    (proposal,) = led.asked
    assert isinstance(proposal, ProposeIsr)
    assert [broker for broker, _ in proposal.isr] == [ME]
    led.isr.on_refused(EPOCH, PartitionEpoch(0))
    assert led.isr.leader.proposed is None


def test_an_answer_about_an_earlier_epoch_changes_nothing() -> None:
    led = Led()
    led.report(0)
    led.isr.check(-1.0, {})
    before = led.isr.leader
    led.isr.on_refused(LeaderEpoch(EPOCH - 1), PartitionEpoch(0))
    led.isr.on_doubted(LeaderEpoch(EPOCH - 1), PartitionEpoch(0))
    assert led.isr.leader is before
