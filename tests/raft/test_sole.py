"""Laws of the consensus core of one: what is committed was synced, once, in order, and under a term of its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BrokerId
from headrace.raft.messages import Campaign, Entry, HardState, Persisted, Propose, Ready
from headrace.raft.sole import SoleVoter

ME = BrokerId(1)
payloads = st.lists(st.binary(max_size=3), min_size=1, max_size=3).map(tuple)


@given(st.integers(0, 5), st.integers(0, 3), st.lists(payloads | st.just(None), max_size=20))
def test_what_is_persisted_is_committed_once_and_in_order(
    snapshot_index: int, recovered: int, steps: list[tuple[bytes, ...] | None]
) -> None:
    """A step is a proposal, or (None) the sync of all that was proposed so far."""
    old = [Entry(1, snapshot_index + at, b"old") for at in range(1, recovered + 1)]
    core = SoleVoter.recovered(node=ME, hard_state=HardState(1, ME), snapshot_index=snapshot_index, entries=old)
    core, ready = core.step(Campaign())
    assert ready.hard_state == HardState(2, ME)
    appended = [*old, *ready.entries]
    committed: list[Entry] = []
    for step in [*steps, None, None]:
        if step is not None:
            core, ready = core.step(Propose(step))
            assert [entry.data for entry in ready.entries] == list(step)
            assert ready.committed == (), "nothing is committed before it is synced"
            appended += ready.entries
        else:
            core, ready = core.step(Persisted(appended[-1].term, appended[-1].index))
            committed += ready.committed
            assert committed == appended
    assert [entry.index for entry in committed] == list(range(snapshot_index + 1, snapshot_index + 1 + len(committed)))
    assert all(one.term <= following.term for one, following in pairwise(committed))


def test_nothing_of_an_earlier_term_is_committed_before_its_own_is() -> None:
    old = Entry(3, 1, b"old")
    core = SoleVoter.recovered(node=ME, hard_state=HardState(3, ME), snapshot_index=0, entries=[old])
    core, ready = core.step(Campaign())
    (own,) = ready.entries
    assert own == Entry(4, 2, b"")
    core, stale = core.step(Persisted(3, 1))
    assert stale == Ready(), "a sync of an earlier term says nothing"
    _, ready = core.step(Persisted(4, 2))
    assert ready.committed == (old, own)


def test_only_a_leader_is_proposed_to() -> None:
    core = SoleVoter.recovered(node=ME, hard_state=HardState(), snapshot_index=0, entries=[])
    with pytest.raises(AssertionError):
        core.step(Propose((b"x",)))
