"""Where a follower's log gives way: by leader epochs it finds, in few steps, all that it has in common with the
leader's, and nothing else stays. Against logs that are compared entry by entry."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.base.ids import LeaderEpoch, Offset
from headrace.replica.follower import cut_at, diverges

NODES = (0, 1, 2)
nodes = st.sampled_from(NODES)
few = st.integers(0, 3)


class EpochEnd(NamedTuple):
    epoch: LeaderEpoch
    end: Offset


class Entry(NamedTuple):
    epoch: int
    value: int


def end_for(log: list[Entry], epoch: int, current: int | None = None) -> EpochEnd:
    """The largest epoch of the log that is not above `epoch`, and where it ends; of a leader's log (`current`: its
    epoch, of which there may be no entry yet) as of a follower's."""
    found = max((entry.epoch for entry in log if entry.epoch <= epoch), default=-1)
    if current is not None and current <= epoch:
        found = current
    if found < 0:
        return EpochEnd(LeaderEpoch(-1), Offset(-1))
    return EpochEnd(LeaderEpoch(found), Offset(sum(entry.epoch <= found for entry in log)))


def common_length(one: list[Entry], other: list[Entry]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def steps_to_agree(leaders: list[Entry], ours: list[Entry], current: int) -> int:
    """As the two brokers do it, on `ours`; how many times it was cut."""
    steps = 0
    while ours:
        last_epoch = LeaderEpoch(ours[-1].epoch)
        theirs = end_for(leaders, last_epoch, current)
        if not diverges(theirs, last_epoch, Offset(len(ours))):
            break
        offset = cut_at(end_for(ours, theirs.epoch), theirs, Offset(len(ours)))
        assert common_length(leaders, ours) <= offset < len(ours), "it takes nothing that both have, and something"
        del ours[offset:]
        steps += 1
    return steps


class Elections(RuleBasedStateMachine):
    """Three logs of one partition; anybody is elected at any time, and others copy from it, or do not."""

    @initialize()
    def begin(self) -> None:
        self.logs: list[list[Entry]] = [[] for _ in NODES]
        self.leader = 0
        self.epoch = 0
        self.last_value = 0

    @rule(node=nodes, count=few)
    def elect(self, node: int, count: int) -> None:
        """And have it append before anybody copies."""
        self.leader = node
        self.epoch += 1
        self.append(count)

    @rule(count=few)
    def append(self, count: int) -> None:
        for _ in range(count):
            self.last_value += 1
            self.logs[self.leader].append(Entry(self.epoch, self.last_value))

    @rule(node=nodes, count=st.integers(0, 5))
    def copy(self, node: int, count: int) -> None:
        leaders, ours = self.logs[self.leader], self.logs[node]
        if node == self.leader:
            return
        epochs = len({entry.epoch for entry in ours})
        common = common_length(leaders, ours)
        assert steps_to_agree(leaders, ours, self.epoch) <= epochs
        assert ours == leaders[:common], "all that both had, and nothing else, is left"
        ours += leaders[common : common + count]

    @rule(node=nodes, lost=few)
    def crash(self, node: int, lost: int) -> None:
        """What was not flushed is gone."""
        log = self.logs[node]
        if node != self.leader:
            del log[len(log) - min(lost, len(log)) :]

    @invariant()
    def a_log_diverges_exactly_where_it_is_no_beginning_of_the_leaders(self) -> None:
        leaders = self.logs[self.leader]
        for ours in self.logs:
            last_epoch = LeaderEpoch(ours[-1].epoch if ours else -1)
            found = diverges(end_for(leaders, last_epoch, self.epoch), last_epoch, Offset(len(ours)))
            assert found == (ours != leaders[: len(ours)])

    @invariant()
    def an_epoch_and_an_offset_are_one_entry(self) -> None:
        """What the cutting relies on, and keeps."""
        for one in self.logs:
            for other in self.logs:
                equal = common_length(one, other)
                shared = [
                    (a.epoch, at) for at, (a, b) in enumerate(zip(one, other, strict=False)) if a.epoch == b.epoch
                ]
                assert all(at < equal for _, at in shared)


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=100, stateful_step_count=30)


def test_an_empty_log_diverges_from_none_and_one_older_than_all_is_cut_wholly() -> None:
    nowhere = EpochEnd(LeaderEpoch(-1), Offset(-1))
    assert not diverges(nowhere, LeaderEpoch(-1), Offset(0))
    assert diverges(nowhere, LeaderEpoch(3), Offset(7))
    assert cut_at(nowhere, EpochEnd(LeaderEpoch(-2), Offset(-1)), Offset(7)) == 0
    assert cut_at(nowhere, EpochEnd(LeaderEpoch(2), Offset(5)), Offset(7)) == 0


def test_epochs_between_are_skipped_in_one_step() -> None:
    """KIP-279: ours is 1 1 3 3, theirs 1 1 1 2: both had two of epoch 1, of which theirs has one more."""
    ours = [Entry(1, 0), Entry(1, 1), Entry(3, 90), Entry(3, 91)]
    theirs = [Entry(1, 0), Entry(1, 1), Entry(1, 2), Entry(2, 3)]
    assert end_for(theirs, 3) == (2, 4)
    assert end_for(ours, 2) == (1, 2)
    assert cut_at(end_for(ours, 2), end_for(theirs, 3), Offset(4)) == 2
