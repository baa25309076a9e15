"""Fetch sessions against a plain model: what is read is what was last asked for, in every order of requests."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base import limits
from headrace.base.ids import Offset, PartitionIndex
from headrace.broker.requests.fetch_sessions import (
    EVICTABLE_AFTER_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchPlan,
    FetchSessions,
    PartitionKey,
    Wanted,
)
from headrace.wire.errors import ErrorCode


class StoppedClock:
    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000


def sessions() -> FetchSessions:
    return FetchSessions(StoppedClock(), random.Random(1))


def key(partition: int) -> PartitionKey:
    return PartitionKey("t", PartitionIndex(partition))


def wanted(offset: int) -> Wanted:
    return Wanted(Offset(offset), 1000, -1)


def ask(
    all_sessions: FetchSessions,
    session_id: int,
    epoch: int,
    want: dict[int, int] | None = None,
    forget: tuple[int, ...] = (),
    by_id: bool = False,
) -> FetchPlan | ErrorCode:
    return all_sessions.plan(
        session_id=session_id,
        epoch=epoch,
        by_id=by_id,
        wanted=[(key(partition), wanted(offset)) for partition, offset in (want or {}).items()],
        forgotten=[key(partition) for partition in forget],
    )


steps = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 5), st.integers(0, 99), max_size=3), st.sets(st.integers(0, 5), max_size=2)
    )
)


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 99), min_size=1), steps)
def test_an_incremental_session_reads_what_was_asked_for_last(
    first: dict[int, int], later: list[tuple[dict[int, int], set[int]]]
) -> None:
    every = sessions()
    plan = ask(every, NO_SESSION, INITIAL_EPOCH, first)
    assert isinstance(plan, FetchPlan)
    assert plan.session is not None
    model = dict(first)
    for number, (change, forget) in enumerate(later, start=1):
        for partition in forget:
            model.pop(partition, None)
        model.update(change)
        plan = ask(every, plan.session.session_id, number, change, tuple(forget))
        assert isinstance(plan, FetchPlan)
        assert plan.session is not None
        assert plan.incremental
        assert {name.partition: int(what.offset) for name, what in plan.wanted} == model


def test_a_lost_or_repeated_request_is_noticed() -> None:
    every = sessions()
    plan = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0})
    assert isinstance(plan, FetchPlan)
    assert plan.session is not None
    session_id = plan.session.session_id
    assert ask(every, session_id, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert isinstance(ask(every, session_id, 1), FetchPlan)
    assert ask(every, session_id, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert ask(every, session_id + 1, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert ask(every, session_id, 2, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_final_request_ends_the_session_and_is_answered_in_full() -> None:
    every = sessions()
    plan = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0})
    assert isinstance(plan, FetchPlan)
    assert plan.session is not None
    last = ask(every, plan.session.session_id, FINAL_EPOCH, {1: 5})
    assert isinstance(last, FetchPlan)
    assert last.session is None
    assert not last.incremental
    assert len(every) == 0


def test_sessions_are_bounded_and_only_idle_ones_make_room() -> None:
    clock = StoppedClock()
    every = FetchSessions(clock, random.Random(1))
    for _ in range(limits.FETCH_SESSIONS_MAX):
        opened = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0})
        assert isinstance(opened, FetchPlan)
        assert opened.session is not None
    refused = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0})
    assert isinstance(refused, FetchPlan)
    assert refused.session is None
    clock.time_ms += EVICTABLE_AFTER_MS
    evicting = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0})
    assert isinstance(evicting, FetchPlan)
    assert evicting.session is not None
    assert len(every) == limits.FETCH_SESSIONS_MAX


def test_the_partitions_of_all_sessions_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.requests.fetch_sessions.FETCH_SESSION_PARTITIONS_MAX", 5)
    every = sessions()
    first = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0})
    assert isinstance(first, FetchPlan)
    assert first.session is not None
    large = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0})
    assert isinstance(large, FetchPlan)
    assert large.session is None
    small = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0})
    assert isinstance(small, FetchPlan)
    assert small.session is not None
    session_id = first.session.session_id
    assert isinstance(ask(every, session_id, 1, {3: 0}, (0,)), FetchPlan)
    assert ask(every, session_id, 2, {4: 0, 5: 0}) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(every) == 1
    again = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0, 3: 0})
    assert isinstance(again, FetchPlan)
    assert again.session is not None


def test_a_fetch_that_was_parked_while_its_partition_was_forgotten_leaves_nothing_behind() -> None:
    every = sessions()
    plan = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0})
    assert isinstance(plan, FetchPlan)
    assert plan.session is not None
    ask(every, plan.session.session_id, 1, forget=(0,))
    assert plan.session.is_news(key(0), 7, 0)
    assert not plan.session.shown


def test_what_got_data_goes_to_the_back_of_the_queue() -> None:
    every = sessions()
    plan = ask(every, NO_SESSION, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0})
    assert isinstance(plan, FetchPlan)
    assert plan.session is not None
    plan.session.served(key(0))
    following = ask(every, plan.session.session_id, 1)
    assert isinstance(following, FetchPlan)
    assert [name.partition for name, _ in following.wanted] == [1, 2, 0]


def test_no_name_that_a_topic_cannot_have_is_remembered() -> None:
    all_sessions = sessions()
    long = [(PartitionKey("t" * (limits.TOPIC_NAME_CHARS_MAX + 1), PartitionIndex(0)), wanted(1))]
    first = all_sessions.plan(session_id=NO_SESSION, epoch=INITIAL_EPOCH, by_id=False, wanted=long, forgotten=())
    assert isinstance(first, FetchPlan)
    assert first.session is None, "it is answered in full, and for that once"
    opened = ask(all_sessions, NO_SESSION, INITIAL_EPOCH, {0: 1})
    assert isinstance(opened, FetchPlan)
    assert opened.session is not None
    session_id = opened.session.session_id
    answer = all_sessions.plan(session_id=session_id, epoch=1, by_id=False, wanted=long, forgotten=())
    assert answer is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(all_sessions) == 0
