"""The first state of a recovered quorum: laws over any image."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_LEADER, BrokerId, Lineage
from headrace.base.limits import QUORUM_RECOVERY_EPOCHS, QUORUM_RECOVERY_PRODUCER_IDS
from headrace.controller.lost_quorum import other_lineage, recovered
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from tests.metadata.histories import histories

BEGINS = Lineage(1, "r")


@st.composite
def losses(draw: st.DrawFn) -> tuple[MetadataImage, set[BrokerId], BrokerId]:
    """An image, who survives, and whose metadata it goes on with."""
    image = EMPTY_IMAGE
    for entry in draw(histories()):
        image = image.replay(entry, index=image.index + 1)
    brokers = sorted(image.brokers) or [BrokerId(1)]
    by = draw(st.sampled_from(brokers))
    return image, {by, *draw(st.sets(st.sampled_from(brokers)))}, by


def begun(image: MetadataImage, survivors: set[BrokerId], by: BrokerId) -> MetadataImage:
    return recovered(image, survivors=survivors, lineage=BEGINS, by=by, at_ms=7, index=image.index + 1_000)


@given(losses())
def test_nothing_that_was_decided_elsewhere_passes_for_what_is_decided_now(
    loss: tuple[MetadataImage, set[BrokerId], BrokerId],
) -> None:
    before, survivors, by = loss
    after = begun(before, survivors, by)
    assert after.lineage == BEGINS
    assert after.index == before.index + 1_000
    assert after.next_producer_id >= before.next_producer_id + QUORUM_RECOVERY_PRODUCER_IDS
    assert set(after.brokers) == set(before.brokers)
    assert all(broker.fenced and broker.epoch == after.index for broker in after.brokers.values())
    assert all(broker.incarnation is None for broker in after.brokers.values())
    for (_, old), (_, new) in zip(before.all_partitions(), after.all_partitions(), strict=True):
        assert new.leader == NO_LEADER
        assert new.leader_epoch >= old.leader_epoch + QUORUM_RECOVERY_EPOCHS
        assert new.partition_epoch >= old.partition_epoch + QUORUM_RECOVERY_EPOCHS
        assert (new.replicas, new.move, new.assignment_epoch) == (old.replicas, old.move, old.assignment_epoch)


@given(losses())
def test_survivors_stay_in_sync_before_lost_ones_and_nobody_becomes_so(
    loss: tuple[MetadataImage, set[BrokerId], BrokerId],
) -> None:
    before, survivors, by = loss
    after = begun(before, survivors, by)
    for (_, old), (_, new) in zip(before.all_partitions(), after.all_partitions(), strict=True):
        assert new.isr
        assert set(new.isr) <= set(old.isr)
        if by in old.isr:
            assert by in new.isr
        elif survivors & set(old.isr) and set(old.isr) <= set(before.brokers):
            live = {broker for broker in old.isr if not before.brokers[broker].fenced}
            assert not live or not survivors & live or survivors & set(new.isr)


@given(losses())
def test_its_snapshot_replays_to_the_same(loss: tuple[MetadataImage, set[BrokerId], BrokerId]) -> None:
    after = begun(*loss)
    assert EMPTY_IMAGE.replay(after.snapshot(), index=after.index, is_snapshot=True) == after


def test_who_is_of_another_lineage_is_told_so() -> None:
    image = begun(EMPTY_IMAGE, {BrokerId(1)}, BrokerId(1))
    assert other_lineage(image, BrokerId(2), None) is None
    assert other_lineage(image, BrokerId(2), "1:r") is None
    told = {"": ErrorCode.INCONSISTENT_VOTER_SET, "1:s": ErrorCode.INCONSISTENT_CLUSTER_ID}
    told |= {"2:r": ErrorCode.INCONSISTENT_CLUSTER_ID, "x": ErrorCode.INVALID_REQUEST, "0:r": ErrorCode.INVALID_REQUEST}
    for lineage, code in told.items():
        refusal = other_lineage(image, BrokerId(2), lineage)
        assert refusal is not None
        assert refusal.code is code
