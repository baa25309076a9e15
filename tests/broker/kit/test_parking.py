"""Parked requests: committed in order and once, whatever the order in which they came."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Offset
from headrace.broker.kit.parking import CommitParking, FetchParking, ParkedFetch
from headrace.wire.errors import ErrorCode


@dataclass
class Waiter:
    end: int
    told: list[ErrorCode] = field(default_factory=list)

    def on_outcome(self, error: ErrorCode) -> None:
        self.told.append(error)


@given(st.lists(st.integers(1, 20)), st.lists(st.integers(0, 25)))
def test_each_waiter_is_told_once_and_exactly_when_its_end_is_reached(ends: list[int], marks: list[int]) -> None:
    parking = CommitParking()
    waiters = [Waiter(end) for end in ends]
    for waiter in waiters:
        parking.park(Offset(waiter.end), waiter)
    reached = 0
    for mark in sorted(marks):
        parking.wake_below(Offset(mark))
        reached = mark
        for waiter in waiters:
            assert waiter.told == ([ErrorCode.NONE] if waiter.end <= reached else [])
    parking.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for waiter in waiters:
        assert waiter.told == [ErrorCode.NONE if waiter.end <= reached else ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert len(parking) == 0


class Bench:
    """A partition that only remembers who watches it."""

    def __init__(self) -> None:
        self.watchers: list[ParkedFetch] = []

    def watch(self, waiter: ParkedFetch) -> None:
        self.watchers.append(waiter)

    def unwatch(self, waiter: ParkedFetch) -> None:
        if waiter in self.watchers:
            self.watchers.remove(waiter)


async def test_a_fetch_wakes_once_enough_is_visible_and_leaves_nothing_behind() -> None:
    benches, woken = [Bench(), Bench()], asyncio.Event()
    ParkedFetch(benches, 100, 3600, woken.set)
    benches[0].watchers[0].on_visible(60, 60)
    await asyncio.sleep(0)
    assert not woken.is_set()
    benches[1].watchers[0].on_visible(40, 40)
    await woken.wait()
    assert [bench.watchers for bench in benches] == [[], []]


async def test_a_fetch_of_committed_records_counts_stable_bytes_alone() -> None:
    bench, woken = Bench(), asyncio.Event()
    ParkedFetch([bench], 100, 3600, woken.set, committed_only=True)
    bench.watchers[0].on_visible(1000, 99)
    await asyncio.sleep(0)
    assert not woken.is_set()
    bench.watchers[0].on_visible(0, 1)
    await woken.wait()


async def test_a_fetch_wakes_at_its_deadline() -> None:
    bench, woken = Bench(), asyncio.Event()
    ParkedFetch([bench], 1, 0, woken.set)
    await woken.wait()
    assert bench.watchers == []


async def test_a_fetch_reads_on_once_and_not_after_it_has_left() -> None:
    bench, reads = Bench(), []
    parked = ParkedFetch([bench], 1, 3600, lambda: reads.append(1))
    for _ in range(2):
        parked.wake()
    await asyncio.sleep(0)
    assert reads == [1]
    left = ParkedFetch([bench], 1, 3600, lambda: reads.append(2))
    left.leave()
    left.wake()
    await asyncio.sleep(0)
    assert reads == [1]
    assert bench.watchers == []


class Ended(Bench):
    """One whose epoch is over."""

    def watch(self, waiter: ParkedFetch) -> None:
        super().watch(waiter)
        waiter.wake()


async def test_a_fetch_of_a_partition_whose_epoch_is_over_wakes_at_once_and_watches_none() -> None:
    benches, woken = [Bench(), Ended(), Bench()], asyncio.Event()
    ParkedFetch(benches, 1, 3600, woken.set)
    await woken.wait()
    assert [bench.watchers for bench in benches] == [[], [], []]


class Stable:
    """A partition whose last stable offset the test sets."""

    def __init__(self, stable: int) -> None:
        self.stable = Offset(stable)
        self.fetches = FetchParking()

    def watch(self, waiter: ParkedFetch) -> None:
        self.fetches.add(waiter, self.stable)

    def unwatch(self, waiter: ParkedFetch) -> None:
        self.fetches.remove(waiter)

    def show(self, size: int, stable: int) -> None:
        self.fetches.on_visible(size, Offset(stable))


async def test_bytes_of_an_open_transaction_count_for_readers_of_committed_records_once_it_has_ended() -> None:
    partition, of_all, of_committed = Stable(5), asyncio.Event(), asyncio.Event()
    ParkedFetch([partition], 100, 3600, of_all.set)
    ParkedFetch([partition], 100, 3600, of_committed.set, committed_only=True)
    partition.show(60, 5)
    partition.show(40, 5)
    await of_all.wait()
    assert not of_committed.is_set()
    assert len(partition.fetches) == 1
    partition.show(1, 6)
    await of_committed.wait()
    assert not list(partition.fetches)
