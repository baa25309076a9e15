"""Laws of the leader's view: what it shows is what the whole ISR has flushed, and it never takes it back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BrokerId, LeaderEpoch, Offset
from headrace.replica.leader import AdvanceHighWatermark, Leader

ME = BrokerId(1)


def leader(*, isr: tuple[int, ...] = (1,), flushed_end: int = 0, high_watermark: int = 0) -> Leader:
    return Leader.elected(
        node=ME,
        epoch=LeaderEpoch(3),
        isr=tuple(BrokerId(member) for member in isr),
        flushed_end=Offset(flushed_end),
        high_watermark=Offset(high_watermark),
    )


@given(st.lists(st.integers(0, 1000)))
def test_alone_the_high_watermark_is_the_highest_flushed_end_and_never_falls(ends: list[int]) -> None:
    state, seen = leader(), [0]
    for end in ends:
        state, effects = state.on_flushed(Offset(end))
        seen.append(state.high_watermark)
        moved = seen[-1] != seen[-2]
        assert effects == ((AdvanceHighWatermark(Offset(seen[-1])),) if moved else ())
    assert seen == sorted(seen)
    assert state.high_watermark == max(ends, default=0)


@given(st.integers(0, 50), st.lists(st.integers(0, 100)))
def test_a_flush_of_our_own_shows_nothing_that_another_in_sync_replica_lacks(committed: int, ends: list[int]) -> None:
    state = leader(isr=(1, 2), flushed_end=committed, high_watermark=committed)
    for end in ends:
        state, effects = state.on_flushed(Offset(end))
        assert effects == ()
    assert state.high_watermark == committed


def test_a_restarted_sole_replica_shows_what_recovery_flushed() -> None:
    state = leader(flushed_end=42)
    assert state.high_watermark == 42
    assert state.epoch_is_committed


def test_latest_is_unknown_until_the_epoch_start_is_committed() -> None:
    state = leader(isr=(1, 2), flushed_end=42, high_watermark=40)
    assert state.high_watermark == 40
    assert not state.epoch_is_committed
