"""The replica that a consumer is sent to, against a plain search over all brokers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from headrace.replica.leader import Leader, Progress
from headrace.replica.selector import preferred_replica

ME = BrokerId(1)
OTHERS = tuple(BrokerId(each) for each in (2, 3, 4))
few = st.integers(0, 4)
racks = st.sampled_from([None, "a", "b"])
progress = st.builds(
    Progress, st.just(BrokerEpoch(7)), few, few, st.just(0.0), st.floats(0, 2), st.booleans(), st.integers(0, 2)
)


@given(
    st.dictionaries(st.sampled_from(OTHERS), progress),
    st.sets(st.sampled_from(OTHERS)),
    st.none() | st.sets(st.sampled_from(OTHERS)),
    st.fixed_dictionaries(dict.fromkeys((ME, *OTHERS), racks)),
    few,
)
def test_only_who_can_serve_is_named_and_of_these_who_has_most(
    followers: dict[BrokerId, Progress],
    in_sync: set[BrokerId],
    proposed: set[BrokerId] | None,
    rack_of: dict[BrokerId, str | None],
    offset: int,
) -> None:
    leader = Leader(
        node=ME,
        epoch=LeaderEpoch(3),
        start_offset=Offset(0),
        isr_ends={ME: Offset(9)},
        high_watermark=Offset(0),
        replicas=(ME, *OTHERS),
        isr=(ME, *sorted(in_sync)),
        proposed=None if proposed is None else (ME, *sorted(proposed)),
        followers=followers,
    )
    chosen = preferred_replica(leader, "a", rack_of.__getitem__, Offset(offset))
    fit = []
    for broker in OTHERS:
        known = followers.get(broker)
        if known is None or rack_of[broker] != "a" or broker not in in_sync:
            continue
        if proposed is not None and broker not in proposed:
            continue
        if known.may_join and known.readable_from <= offset and offset <= known.flushed_end:
            fit.append((known.flushed_end, known.caught_up_at, broker))
    if rack_of[ME] == "a" or not fit:
        assert chosen is None
    else:
        assert chosen == sorted(fit)[-1][2]
