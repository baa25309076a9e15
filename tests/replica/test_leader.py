"""Laws of the leader's view.

It shows what the whole ISR has flushed, and never takes that back. It wants the ISR to be the replicas that keep up.
The oracle is plain sums over all reports.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch
from headrace.replica.leader import ANY_EPOCH, AdvanceHighWatermark, Effects, Leader, ProposeIsr
from tests.tiers import examples

ME = BrokerId(1)
EPOCH = LeaderEpoch(3)
ALL = tuple(BrokerId(each) for each in (1, 2, 3, 4))
OTHERS = ALL[1:]
LAG_S = 30.0

others = st.sampled_from(OTHERS)
few = st.integers(0, 6)
Brokers: TypeAlias = AbstractSet[BrokerId]


def members(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in ids)


def leader(*, isr: tuple[int, ...] = (1,), flushed_end: int = 0, high_watermark: int = 0, replicas: int = 0) -> Leader:
    return Leader.elected(
        node=ME,
        epoch=EPOCH,
        isr=members(*isr),
        flushed_end=Offset(flushed_end),
        high_watermark=Offset(high_watermark),
        replicas=ALL[:replicas],
    )


def fetched(
    state: Leader, replica: int, flushed_end: int, *, log_end: int = 0, now: float = 0.0, may_join: bool = True
) -> tuple[Leader, Effects]:
    return state.on_fetch(
        BrokerId(replica),
        BrokerEpoch(70 + replica),
        flushed_end=Offset(flushed_end),
        log_end=Offset(max(log_end, flushed_end)),
        now=now,
        may_join=may_join,
    )


def wanted(effects: Effects) -> list[tuple[BrokerId, ...]]:
    """The ISRs that are proposed."""
    return [tuple(each for each, _ in effect.isr) for effect in effects if isinstance(effect, ProposeIsr)]


def test_a_leader_begins_with_no_more_than_it_has_flushed_whatever_it_was_told_as_a_follower() -> None:
    """A replica outside the ISR may know of more, and have it in its log. If it is elected uncleanly it must flush that
    first."""
    state = leader(flushed_end=3, high_watermark=5)
    assert (state.high_watermark, state.isr_ends) == (3, {ME: 3})
    state, effects = state.on_flushed(Offset(5))
    assert (state.high_watermark, effects) == (5, (AdvanceHighWatermark(Offset(5)),))


# one after the other


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
    state, _ = fetched(state, 2, 42)
    assert state.epoch_is_committed


def test_who_lacks_what_there_was_when_the_epoch_began_does_not_join() -> None:
    """It may have been acknowledged: the high watermark of a new leader is older than what it had told."""
    state = leader(isr=(1, 2), flushed_end=42, high_watermark=40, replicas=3)
    state, effects = fetched(state, 3, 41)
    assert effects == ()
    state, effects = fetched(state, 3, 42)
    assert wanted(effects) == [members(1, 2, 3)]
    state, effects = fetched(state, 2, 42)
    assert effects == (AdvanceHighWatermark(Offset(42)),)


def test_an_isr_that_grows_counts_before_it_is_committed_and_one_that_shrinks_after() -> None:
    state = leader(isr=(1, 2), flushed_end=10, high_watermark=10, replicas=3)
    state, _ = fetched(state, 2, 10)
    state, effects = fetched(state, 3, 10)
    assert wanted(effects) == [members(1, 2, 3)]
    assert state.in_sync == 2, "the one that joins may be refused"
    state, _ = state.on_flushed(Offset(20))
    state, effects = fetched(state, 2, 20)
    assert effects == (), "the one that joins may be in the ISR already"
    state, effects = state.on_isr(members(1, 2, 3), PartitionEpoch(1))
    assert (effects, state.in_sync) == ((), 3)
    state, effects = state.on_time(LAG_S + 1, LAG_S, log_end=Offset(20), heard_at={BrokerId(2): LAG_S + 1})
    assert wanted(effects) == [members(1, 2)]
    assert (state.in_sync, state.high_watermark) == (2, 10), "the one that is to leave may be in the ISR yet"
    state, effects = state.on_isr(members(1, 2), PartitionEpoch(2))
    assert effects == (AdvanceHighWatermark(Offset(20)),)


def test_an_old_answer_settles_nothing() -> None:
    state = leader(isr=(1,), flushed_end=10, high_watermark=10, replicas=2)
    state, _ = fetched(state, 2, 10)
    assert state.on_refused(PartitionEpoch(9)) == (state, ())
    assert state.on_isr(members(1), PartitionEpoch(0)) == (state, ())
    assert state.proposed == members(1, 2)


def test_what_is_refused_holds_nothing_back_and_is_wanted_again_after_a_pause() -> None:
    state = leader(isr=(1,), flushed_end=10, high_watermark=10, replicas=2)
    state, effects = fetched(state, 2, 10)
    assert wanted(effects) == [members(1, 2)]
    state, effects = state.on_flushed(Offset(11))
    assert effects == ()
    state, effects = state.on_refused(PartitionEpoch(0))
    assert effects == (AdvanceHighWatermark(Offset(11)),)
    assert state.on_pause_over() == (state, ()), "it is behind now"
    state, effects = fetched(state, 2, 11)
    state, _ = state.on_refused(PartitionEpoch(0))
    state, effects = state.on_pause_over()
    assert wanted(effects) == [members(1, 2)]


def test_who_is_idle_and_heard_of_is_not_late_and_who_is_silent_is() -> None:
    state = leader(isr=(1, 2, 3), flushed_end=10, high_watermark=10)
    for replica in (2, 3):
        state, _ = fetched(state, replica, 10, now=1.0)
    for moment in range(10, 100, 10):
        heard = {BrokerId(2): float(moment), BrokerId(3): 5.0}
        state, effects = state.on_time(float(moment), LAG_S, log_end=Offset(10), heard_at=heard)
        assert wanted(effects) == ([members(1, 2)] if moment == 40 else [])


def test_who_is_heard_of_and_flushes_nothing_is_late() -> None:
    state = leader(isr=(1, 2), flushed_end=10, high_watermark=10)
    state, _ = fetched(state, 2, 10, now=1.0)
    moment = 1.0 + LAG_S
    behind = {BrokerId(2): moment}
    state, effects = state.on_time(moment, LAG_S, log_end=Offset(11), heard_at=behind)
    assert effects == ()
    state, effects = state.on_time(moment + 0.1, LAG_S, log_end=Offset(11), heard_at=behind)
    assert wanted(effects) == [members(1)]


def test_who_always_has_what_there_was_when_it_last_reported_is_not_late() -> None:
    """It never has all that there is: more is appended all the time (Kafka's rule)."""
    state = leader(isr=(1, 2))
    for step in range(100):
        moment = 10.0 * step
        state, _ = fetched(state, 2, max(0, step - 1), log_end=step, now=moment)
        state, effects = state.on_time(moment, LAG_S, log_end=Offset(step), heard_at={})
        assert effects == ()


def test_another_process_of_a_follower_has_not_caught_up_by_what_the_one_before_it_fetched() -> None:
    state = leader(isr=(1, 2))
    state, _ = fetched(state, 2, 0, log_end=5, now=20.0)
    state, _ = state.on_fetch(
        BrokerId(2), BrokerEpoch(99), flushed_end=Offset(5), log_end=Offset(9), now=25.0, may_join=True
    )
    _, effects = state.on_time(LAG_S + 1, LAG_S, log_end=Offset(9), heard_at={})
    assert wanted(effects) == [members(1)]


# all together


class Report(NamedTuple):
    """A follower's report, and its time."""

    broker_epoch: BrokerEpoch
    flushed_end: int
    log_end: int
    at: float


class Leading(RuleBasedStateMachine):
    """One epoch of a leader, beside everything that was said in it."""

    @initialize(
        isr=st.sets(others), replicas=st.sets(others), committed=few, flushed=few, unflushed=few, began=st.just(5.0)
    )
    def begin(
        self, isr: set[BrokerId], replicas: set[BrokerId], committed: int, flushed: int, unflushed: int, began: float
    ) -> None:
        self.now = began
        self.isr = {ME, *isr}
        self.replicas = self.isr | replicas
        self.partition_epoch = 0
        self.proposed: set[BrokerId] | None = None
        self.own_end = committed + flushed
        self.log_end = self.start = self.own_end + unflushed
        self.reports: dict[BrokerId, list[Report]] = {}
        self.live: dict[BrokerId, bool] = {}
        self.caught_up: dict[BrokerId, float] = {}
        self.shown = committed if len(self.isr) > 1 else self.own_end
        self.state = Leader.elected(
            node=ME,
            epoch=EPOCH,
            isr=self.ordered(self.isr),
            flushed_end=Offset(self.own_end),
            high_watermark=Offset(committed),
            log_end=Offset(self.log_end),
            replicas=self.ordered(self.replicas),
            now=began,
        )

    @staticmethod
    def ordered(ids: set[BrokerId]) -> tuple[BrokerId, ...]:
        return tuple(sorted(ids))

    # the oracle

    def counted(self) -> set[BrokerId]:
        return self.isr | (self.proposed or set())

    def end_of(self, member: BrokerId) -> int | None:
        if member == ME:
            return self.own_end
        said = self.reports.get(member)
        return said[-1].flushed_end if said else None

    def committed(self) -> int:
        ends = [self.end_of(member) for member in self.counted()]
        known = [end for end in ends if end is not None]
        return max(self.shown, min(known)) if len(known) == len(ends) else self.shown

    def eligible(self) -> set[BrokerId]:
        out = {each for each in self.replicas - self.isr if self.live.get(each)}
        return {each for each in out if (self.end_of(each) or 0) >= max(self.shown, self.start)}

    def late(self) -> set[BrokerId]:
        return {each for each in self.isr - {ME} if self.now - self.caught_up.get(each, 5.0) > LAG_S}

    def check(self, outcome: tuple[Leader, Effects], *, joins: bool = False, leaving: Brokers = frozenset()) -> None:
        """Check the result of an event. `joins`: others may join at it; `leaving`: late replicas, where that was
        asked."""
        self.state, effects = outcome
        shown = [effect.offset for effect in effects if isinstance(effect, AdvanceHighWatermark)]
        before, self.shown = self.shown, self.committed()
        assert shown == ([self.shown] if self.shown > before else [])
        asked = [effect for effect in effects if isinstance(effect, ProposeIsr)]
        if asked:
            assert len(asked) == 1
            assert self.proposed is None, "one at a time"
        joining = self.eligible() if joins else set()
        if self.proposed is None and (joining or leaving):
            assert len(asked) == 1
            self.check_proposal(asked[0], (self.isr | joining) - leaving)
        else:
            assert asked == []

    def check_proposal(self, asked: ProposeIsr, isr: set[BrokerId]) -> None:
        assert (asked.leader_epoch, asked.partition_epoch) == (EPOCH, self.partition_epoch)
        assert {each for each, _ in asked.isr} == isr
        assert len(asked.isr) == len(isr)
        assert ME in isr
        for member, broker_epoch in asked.isr:
            said = self.reports.get(member)
            assert broker_epoch == (said[-1].broker_epoch if said else ANY_EPOCH)
        self.proposed = isr

    # events

    @rule(count=few)
    def append(self, count: int) -> None:
        self.log_end += count

    @rule(behind=few)
    def flush(self, behind: int) -> None:
        end = max(0, self.log_end - behind)
        self.own_end = max(self.own_end, end)
        self.check(self.state.on_flushed(Offset(end)))

    @rule(replica=others, behind=few, process=st.sampled_from([7, 7, 7, 8]), live=st.sampled_from([True, True, False]))
    def fetch(self, replica: BrokerId, behind: int, process: int, live: bool) -> None:
        report = Report(BrokerEpoch(process), max(0, self.log_end - behind), self.log_end, self.now)
        if replica in self.replicas:
            self.note(replica, report)
            self.live[replica] = live
        self.check(
            self.state.on_fetch(
                replica,
                report.broker_epoch,
                flushed_end=Offset(report.flushed_end),
                log_end=Offset(self.log_end),
                now=self.now,
                may_join=live,
            ),
            joins=replica in self.replicas - self.isr,
        )

    def note(self, replica: BrokerId, report: Report) -> None:
        said = self.reports.setdefault(replica, [])
        reached = [self.caught_up.get(replica, 5.0)]
        if report.flushed_end >= report.log_end:
            reached.append(report.at)
        if said and said[-1].broker_epoch == report.broker_epoch and report.flushed_end >= said[-1].log_end:
            reached.append(said[-1].at)
        self.caught_up[replica] = max(reached)
        said.append(report)

    @rule(replica=others, live=st.booleans())
    def hear_of(self, replica: BrokerId, live: bool) -> None:
        is_news = replica in self.reports and self.live[replica] != live
        if is_news:
            self.live[replica] = live
        self.check(self.state.on_liveness(replica, may_join=live), joins=is_news)

    @rule(seconds=st.sampled_from([1, 20, 40]), heard=st.dictionaries(others, st.integers(0, 3)))
    def pass_time(self, seconds: int, heard: dict[BrokerId, int]) -> None:
        self.now += seconds
        heard_at = {each: self.now - ago for each, ago in heard.items()}
        if self.proposed is None and len(self.isr) > 1:
            for each, at in heard_at.items():
                if each in self.reports and self.reports[each][-1].flushed_end >= self.log_end:
                    self.caught_up[each] = max(self.caught_up[each], at)
        leaving = self.late()
        self.check(
            self.state.on_time(self.now, LAG_S, log_end=Offset(self.log_end), heard_at=heard_at), leaving=leaving
        )

    @precondition(lambda self: self.proposed is not None)
    @rule()
    def commit(self) -> None:
        assert self.proposed is not None
        self.change(self.proposed)

    @rule(gone=others)
    def fence(self, gone: BrokerId) -> None:
        """The controller takes it out; what was proposed on the state before is void."""
        self.hear_of(gone, live=False)
        self.change(self.isr - {gone})

    def change(self, isr: set[BrokerId]) -> None:
        self.isr, self.proposed = isr, None
        self.partition_epoch += 1
        self.check(self.state.on_isr(self.ordered(isr), PartitionEpoch(self.partition_epoch)), joins=True)

    @rule(ago=st.sampled_from([0, 0, 1]))
    def refuse(self, ago: int) -> None:
        if ago == 0:
            self.proposed = None
        self.check(self.state.on_refused(PartitionEpoch(self.partition_epoch - ago)))

    @rule()
    def try_again(self) -> None:
        self.check(self.state.on_pause_over(), joins=True)

    @rule(isr=st.sets(others))
    def hear_what_is_old(self, isr: set[BrokerId]) -> None:
        before = self.state
        self.check(self.state.on_isr(self.ordered({ME, *isr}), PartitionEpoch(self.partition_epoch)))
        assert self.state is before

    @rule(replicas=st.sets(others))
    def place_anew(self, replicas: set[BrokerId]) -> None:
        """Those that go were stopped before."""
        for gone in self.replicas - {ME, *replicas}:
            self.fence(gone)
            self.reports.pop(gone, None)
            self.live.pop(gone, None)
            self.caught_up.pop(gone, None)
        self.replicas = {ME, *replicas}
        self.partition_epoch += 1
        self.proposed = None
        epoch = PartitionEpoch(self.partition_epoch)
        self.check(self.state.on_isr(self.ordered(self.isr), epoch), joins=True)
        self.state = self.state.on_replicas(self.ordered(self.replicas), epoch)

    @invariant()
    def the_state_is_as_the_oracle_has_it(self) -> None:
        state = self.state
        assert state.high_watermark == self.shown
        assert state.isr == self.ordered(self.isr)
        assert state.proposed == (None if self.proposed is None else self.ordered(self.proposed))
        assert state.in_sync == len(self.isr & (self.proposed or self.isr))
        assert state.isr_ends.keys() == self.counted()
        assert state.epoch_is_committed == (self.shown >= self.start)
        assert state.flushed_ends == {each: said[-1].flushed_end for each, said in self.reports.items()}


TestLeading = Leading.TestCase
TestLeading.settings = settings(max_examples=examples(150), stateful_step_count=40)
