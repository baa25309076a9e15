"""The truncation of a follower's log. By leader epochs it finds, in few steps, all that it has in common with the
leader's, and nothing else stays. The oracle compares logs entry by entry."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.base.ids import LeaderEpoch, Offset
from headrace.replica.follower import cut_at, diverges, is_older_than_all
from headrace.storage.engine.epochs import LeaderEpochs
from headrace.storage.engine.reading import EpochEnd
from tests.tiers import examples

NODES = (0, 1, 2)
nodes = st.sampled_from(NODES)
few = st.integers(0, 3)


class Entry(NamedTuple):
    epoch: LeaderEpoch
    value: int


class Log:
    """Entries by their offsets, from `start` on, and the epochs as a log keeps them."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[Entry] = []
        self.epochs = LeaderEpochs()
        self.ever: dict[int, Entry] = {}
        """With what was deleted, which a durable store still has."""

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Of the record before the end, also where that is deleted here, as `Position` tells it."""
        return self.epochs.at(Offset(self.end - 1))

    def at(self, offset: int) -> Entry | None:
        return self.entries[offset - self.start] if self.start <= offset < self.end else None

    def append(self, entry: Entry) -> None:
        self.epochs.assign(entry.epoch, Offset(self.end))
        self.ever[self.end] = entry
        self.entries.append(entry)

    def end_of(self, epoch: LeaderEpoch) -> EpochEnd:
        return self.epochs.end_of(epoch, Offset(self.end))

    def cut(self, offset: int) -> None:
        del self.entries[max(0, offset - self.start) :]
        self.ever = {at: entry for at, entry in self.ever.items() if at < offset}
        self.start = min(self.start, offset)
        self.epochs.cut_from(Offset(self.end))

    def start_over(self, leaders: Log) -> None:
        before = Offset(leaders.start - 1)
        known = leaders.epochs.at(before)
        self.start, self.entries = leaders.start, []
        self.epochs = LeaderEpochs([(known, before)] if known >= 0 else ())
        self.ever = {at: entry for at, entry in leaders.ever.items() if at < leaders.start}

    def delete_before(self, offset: int) -> None:
        if self.start < offset <= self.end:
            del self.entries[: offset - self.start]
            self.start = offset
            self.epochs.cut_below(Offset(offset))


def common_end(leaders: Log, ours: Log) -> int:
    """Below it, and from where both begin, both have the same."""
    offset = max(leaders.start, ours.start)
    while (entry := ours.at(offset)) is not None and entry == leaders.at(offset):
        offset += 1
    return offset


def is_beginning(leaders: Log, ours: Log) -> bool:
    """Whether the follower has nothing that the leader has otherwise, or not at all."""
    return ours.end <= max(common_end(leaders, ours), leaders.start) and ours.end <= leaders.end


def diverges_from(leaders: Log, ours: Log) -> EpochEnd | None:
    """The leader's answer to a follower that comes to it."""
    found = leaders.end_of(ours.last_epoch)
    return found if diverges(found, ours.last_epoch, Offset(ours.end)) else None


def is_incomparable(leaders: Log, ours: Log) -> bool:
    begin = Offset(leaders.start)
    return is_older_than_all(
        ours.last_epoch,
        Offset(ours.end),
        start=begin,
        start_epoch=leaders.epochs.at(begin),
        epoch_before=leaders.epochs.at(Offset(begin - 1)),
    )


def agree(leaders: Log, ours: Log) -> int:
    """As the two brokers do it; how many times ours was cut."""
    steps = 0
    if is_incomparable(leaders, ours):
        ours.start_over(leaders)
    while (theirs := diverges_from(leaders, ours)) is not None:
        offset = cut_at(ours.end_of(theirs.epoch), theirs, Offset(ours.end))
        assert offset < ours.end, "it takes something"
        common = common_end(leaders, ours)
        assert offset >= common or common == max(leaders.start, ours.start), "it takes nothing that both have"
        ours.cut(offset)
        steps += 1
        if is_incomparable(leaders, ours):
            ours.start_over(leaders)
    if not leaders.start <= ours.end <= leaders.end:
        ours.start_over(leaders)
    return steps


class Elections(RuleBasedStateMachine):
    """Three logs of one partition; anybody is elected at any time, and others copy from it, or do not."""

    @initialize()
    def begin(self) -> None:
        self.logs = [Log() for _ in NODES]
        self.leader = 0
        self.epoch = LeaderEpoch(-1)
        self.last_value = 0
        self.is_clean = True
        """All who were elected had what was deleted by then, as it was: it was committed."""
        self.elect(0, 1)

    @property
    def leading(self) -> Log:
        return self.logs[self.leader]

    @rule(node=nodes, count=few)
    def elect(self, node: int, count: int) -> None:
        """Elect a leader, and have it append before any replica copies. The former leader forgets the epoch, if it
        wrote nothing in it. A replica that lacks even records deleted elsewhere was not in sync, and is not elected."""
        if self.logs[node].end < max(log.start for log in self.logs):
            return
        elected = self.logs[node].ever
        self.is_clean = self.is_clean and all(
            elected.get(at) == entry for log in self.logs for at, entry in log.ever.items() if at < log.start
        )
        self.leading.epochs.cut_from(Offset(self.leading.end))
        self.leader = node
        self.epoch = LeaderEpoch(self.epoch + 1)
        self.leading.epochs.assign(self.epoch, Offset(self.leading.end))
        self.append(count)

    @rule(count=few)
    def append(self, count: int) -> None:
        for _ in range(count):
            self.last_value += 1
            self.leading.append(Entry(self.epoch, self.last_value))

    @rule(node=nodes, count=st.integers(0, 5), is_durable=st.booleans())
    def copy(self, node: int, count: int, is_durable: bool) -> None:
        """`is_durable`: what the leader has deleted is in a durable store, and stays in others' logs."""
        leaders, ours = self.leading, self.logs[node]
        if ours is leaders:
            return
        epochs = len(ours.epochs.entries)
        common, begin = common_end(leaders, ours), max(leaders.start, ours.start)
        before, start = leaders.start - 1, ours.start
        joins = start <= before < ours.end and ours.at(before) == leaders.ever.get(before)
        assert agree(leaders, ours) <= epochs
        if joins and leaders.epochs.at(Offset(before)) >= 0:
            assert ours.start == start, "nothing that both had is dropped because the leader's log begins later"
        assert is_beginning(leaders, ours)
        assert ours.end == common if common > begin else not ours.entries or ours.end <= begin
        for offset in range(ours.end, min(ours.end + count, leaders.end)):
            entry = leaders.at(offset)
            assert entry is not None
            ours.append(entry)
        if self.is_clean:
            assert {at: leaders.ever.get(at) for at in ours.ever} == ours.ever, "below the leader's start too"
        if not is_durable:
            ours.delete_before(leaders.start)

    @rule(node=nodes, lost=few)
    def crash(self, node: int, lost: int) -> None:
        """Unflushed data is lost."""
        log = self.logs[node]
        if log is not self.leading:
            log.cut(max(log.start, log.end - lost))

    @rule(count=few)
    def delete(self, count: int) -> None:
        """Followers hear of it when they copy."""
        self.leading.delete_before(self.leading.start + count)

    @invariant()
    def a_log_diverges_exactly_where_it_is_no_beginning_of_the_leaders(self) -> None:
        for ours in self.logs:
            if ours.entries and ours.end > self.leading.start:
                assert (diverges_from(self.leading, ours) is None) == is_beginning(self.leading, ours)

    @invariant()
    def an_epoch_and_an_offset_are_one_entry(self) -> None:
        """The truncation relies on this, and keeps it."""
        for one in self.logs:
            for other in self.logs:
                for offset in range(max(one.start, other.start), min(one.end, other.end)):
                    ours, theirs = one.at(offset), other.at(offset)
                    assert ours is not None
                    assert theirs is not None
                    if ours.epoch == theirs.epoch:
                        assert ours == theirs


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=examples(150), stateful_step_count=30)


def test_an_empty_log_diverges_from_none_and_one_older_than_all_is_cut_wholly() -> None:
    nowhere = EpochEnd(LeaderEpoch(-1), Offset(-1))
    assert not diverges(nowhere, LeaderEpoch(-1), Offset(0))
    assert diverges(nowhere, LeaderEpoch(3), Offset(7))
    assert cut_at(nowhere, EpochEnd(LeaderEpoch(-2), Offset(-1)), Offset(7)) == 0
    assert cut_at(nowhere, EpochEnd(LeaderEpoch(2), Offset(5)), Offset(7)) == 0


def test_epochs_between_are_skipped_in_one_step() -> None:
    """KIP-279: ours is 1 1 3 3, theirs 1 1 1 2 2 5. Both had two of epoch 1, of which theirs has one more."""
    ours, theirs = Log(), Log()
    for log, epochs in ((ours, (1, 1, 3, 3)), (theirs, (1, 1, 1, 2, 2, 5))):
        for at, epoch in enumerate(epochs):
            log.append(Entry(LeaderEpoch(epoch), at))
    told = diverges_from(theirs, ours)
    assert told == (2, 5)
    assert cut_at(ours.end_of(told.epoch), told, Offset(4)) == 2


def test_who_has_what_came_before_the_leaders_start_keeps_it() -> None:
    """Rows: ends at the start; goes on above it otherwise; differs below it; ends below it."""
    leaders = Log()
    for at, epoch in enumerate((1, 1, 1, 4, 4)):
        leaders.append(Entry(LeaderEpoch(epoch), at))
    leaders.delete_before(3)
    assert leaders.epochs.entries == [(1, 2), (4, 3)]
    for epochs, start, end in (((1, 1, 1), 0, 3), ((1, 1, 1, 2, 2), 0, 3), ((0, 0, 0, 0), 3, 3), ((1, 1), 3, 3)):
        ours = Log()
        for at, epoch in enumerate(epochs):
            ours.append(Entry(LeaderEpoch(epoch), at))
        agree(leaders, ours)
        assert (ours.start, ours.end) == (start, end)
