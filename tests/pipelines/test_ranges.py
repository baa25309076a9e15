"""The ranges that a run claims: all that continue, and new ones even if they are empty, so that a run ends."""

from __future__ import annotations

from headrace.spark.pipelines.tables.progress import APPEND, BEGIN, Claim, Commit, State
from headrace.spark.pipelines.tables.ranges import claims_between, first_claims
from headrace.spark.read.positions import Positions, TopicOffsets, is_same, merged


def after(state: State, claims: tuple[Claim, ...]) -> State:
    action = APPEND if state.version >= 0 else BEGIN
    return state.after(
        Commit(version=state.version + 1, action=action, pipeline="p", run="r", time_ms=1, claims=claims)
    )


def claimed(state: State, there: Positions) -> tuple[State, list[tuple[int, int, int]]]:
    """After a step to what is there: it leaves nothing to be done."""
    end = merged(state.positions, there, first=False)
    claims = claims_between(state.positions, end)
    found = after(state, claims)
    again = merged(found.positions, there, first=False)
    assert is_same(found.positions, again)
    assert claims_between(found.positions, again) == ()
    return found, [(claim.partition, claim.start_offset, claim.end_offset) for claim in claims]


def test_a_partition_in_which_nothing_is_yet_is_claimed_once() -> None:
    state = after(State(), first_claims({"t": TopicOffsets("i", {0: 0}, {})}))
    state, claims = claimed(state, {"t": TopicOffsets("i", {0: 10}, {0: 0})})
    assert claims == [(0, 0, 10)]
    state, claims = claimed(state, {"t": TopicOffsets("i", {0: 10, 1: 0}, {0: 0, 1: 0})})
    assert claims == [(1, 0, 0)]
    state, claims = claimed(state, {"t": TopicOffsets("i", {0: 10, 1: 4, 2: 7}, {0: 0, 1: 0, 2: 7})})
    assert claims == [(1, 0, 4), (2, 7, 7)]


def test_what_retention_took_is_passed_over() -> None:
    state = after(State(), first_claims({"t": TopicOffsets("i", {0: 0}, {})}))
    state, _ = claimed(state, {"t": TopicOffsets("i", {0: 20}, {})})
    end = {"t": TopicOffsets("i", {0: 30}, {0: 30})}  # all of it is gone, though it was never read
    assert [(claim.start_offset, claim.end_offset) for claim in claims_between(state.positions, end)] == [(30, 30)]
    assert is_same(after(state, claims_between(state.positions, end)).positions, end)
