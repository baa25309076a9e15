"""The losses that a quorum tolerates, against counting all ways to lose voters."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from headrace.net.client.members import BrokerView, MemberView, QuorumView
from headrace.operations.bearing import bearing, losses_borne


def broker(number: int, *, fenced: bool = False) -> BrokerView:
    return BrokerView(id=number, host="h", port=1, rack=None, fenced=fenced, controller=False)


def quorum(*voters: int, outlook: str = "") -> QuorumView:
    members = tuple(
        MemberView(
            id=each,
            directory_id=uuid.UUID(int=each),
            voter=True,
            log_end=1,
            last_fetch_ms=-1,
            last_caught_up_ms=-1,
        )
        for each in voters
    )
    return QuorumView(leader=1, epoch=1, high_watermark=1, members=members, outlook=outlook)


@given(st.integers(1, 9), st.integers(0, 9))
def test_as_many_may_go_as_leave_a_majority(voters: int, down: int) -> None:
    borne = losses_borne(voters, down)
    assert 2 * (voters - down - borne) > voters
    assert 2 * (voters - down - borne - 1) <= voters


def test_it_is_told_in_words() -> None:
    assert bearing(quorum(1, 2, 3), [broker(1), broker(2), broker(3)]) == "3 voters: bears the loss of 1 more"
    promoted = quorum(1, 2, outlook="broker 4 will be promoted once caught up")
    told = "2 voters: bears no loss; broker 4 will be promoted once caught up"
    assert bearing(promoted, [broker(1), broker(2), broker(4)]) == told
    down = "3 voters, of which 2, 3 is down: bears no loss"
    assert bearing(quorum(1, 2, 3), [broker(1), broker(2, fenced=True)]) == down
