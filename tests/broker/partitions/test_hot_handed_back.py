"""After a take-over, and after a refusal, the native road hands back only batches before which others are awaited."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from headrace.base.ids import LeaderEpoch, PartitionEpoch, PartitionIndex
from headrace.base.limits import CARRIED_UNTIL_MS_MAX, TURNED_AWAY_MS_MAX
from headrace.broker.partitions.disk_room import UNKNOWN
from headrace.broker.partitions.partition import OVERTAKEN
from headrace.broker.partitions.replica import WriteRefusal
from headrace.metadata.values import PartitionImage
from headrace.native import ROAD
from headrace.storage.engine.appending import Appended
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.__main__ import silent
from tools.partition_fuzz.batches import NO_PRODUCER, Bodies, made
from tools.partition_fuzz.choosing import SEALED, settings_of
from tools.partition_fuzz.observed import differing, seen_of
from tools.partition_fuzz.world import NODE, REPLICAS, Clock, InlineLoop, World

pytestmark = pytest.mark.skipif(ROAD.native is None, reason="the pure road is taken")
KNOWN, OTHER, LATE = 11, 12, 13


class Pair:
    """Two equal partitions, of which one has the native road."""

    def __init__(self, *, fsync: bool) -> None:
        native = ROAD.native
        assert native is not None
        [self._body, *_] = Bodies(Random(1), native).single
        self.clock = Clock()
        settings, config = settings_of(Random(3), fsync=fsync, is_narrow=False, replicas=1)
        self.worlds = [
            World(
                5, self.clock, InlineLoop(), native=road, config=config, settings=settings, replicas=1, has_journal=True
            )
            for road in (native, None)
        ]
        self.append(NO_PRODUCER)
        self.flush()  # the first one begins a segment

    def append(self, producer: tuple[int, int, int]) -> tuple[object, bool]:
        """Returns the answer, which is the same on both roads, and whether the native road took it."""
        natively, python = self.worlds
        assert natively.counted is not None
        before = natively.counted.appended
        data = made(self._body, self.clock.ms, producer).data
        answer, other = (each.partition.append_plain(memoryview(data), needs_isr=True) for each in self.worlds)
        assert answer == other
        assert not differing(seen_of(natively), seen_of(python))
        return answer, natively.counted.appended > before

    def takes_natively(self, producer: tuple[int, int, int]) -> bool:
        answer, is_native = self.append(producer)
        assert isinstance(answer, Appended)
        return is_native

    def turns_away(self, producer: tuple[int, int, int]) -> bool:
        answer, is_native = self.append(producer)
        return answer == OVERTAKEN and not is_native

    def flush(self) -> None:
        for world in self.worlds:
            do.flush(world)

    def have_room(self, left: int) -> None:
        for world in self.worlds:
            do.share(world, left=left)

    def take_over(self) -> None:
        """It is handed over to this broker, and then this broker may write."""
        for move in (SEALED, None):
            image = PartitionImage(
                index=PartitionIndex(0), leader=NODE, leader_epoch=LeaderEpoch(1), partition_epoch=PartitionEpoch(1),
                replicas=REPLICAS[:1], isr=REPLICAS[:1], move=move,
            )  # fmt: skip
            for world in self.worlds:
                do.lead(world, image=image)
        self.append(NO_PRODUCER)
        self.flush()  # the first one of a leader epoch is written by the twin

    def close(self) -> None:
        for world in self.worlds:
            do.close(world)
            world.loop.close()
        natively, python = self.worlds
        assert not differing(seen_of(natively, all_of_it=True), seen_of(python, all_of_it=True))


@pytest.fixture(params=[True, False], ids=["before its fsync", "page cache"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with silent():
        pair = Pair(fsync=request.param)
        yield pair
        pair.close()


def test_after_a_take_over_unknown_producers_in_mid_course_are_awaited(pair: Pair) -> None:
    pair.append((KNOWN, 0, 0))
    pair.take_over()
    assert pair.takes_natively(NO_PRODUCER)
    assert pair.takes_natively((KNOWN, 0, 1)), "what it sent before is known"
    assert pair.takes_natively((OTHER, 0, 0)), "it is its first"
    assert pair.takes_natively((OTHER, 0, 1))
    assert pair.turns_away((LATE, 0, 5)), "its earlier ones may still be carried here"
    pair.clock.ms += CARRIED_UNTIL_MS_MAX
    assert not pair.takes_natively((LATE, 0, 5)), "only the twin sees that the time is over"
    assert pair.takes_natively((LATE, 0, 6))
    assert pair.takes_natively((LATE + 1, 0, 7))


def test_after_a_refusal_only_its_own_producer_is_awaited(pair: Pair) -> None:
    pair.append((KNOWN, 0, 0))
    pair.have_room(-1)
    refusal, _ = pair.append((LATE, 0, 0))
    assert isinstance(refusal, WriteRefusal)
    pair.have_room(UNKNOWN)
    assert pair.takes_natively(NO_PRODUCER)
    assert pair.takes_natively((KNOWN, 0, 1))
    assert pair.takes_natively((OTHER, 0, 3))
    assert pair.turns_away((LATE, 0, 1)), "its first has to come again"
    assert not pair.takes_natively((LATE, 0, 0)), "only the twin forgets what was refused"
    assert pair.takes_natively((LATE, 0, 1))


def test_what_was_refused_long_ago_is_forgotten_by_the_twin(pair: Pair) -> None:
    pair.have_room(-1)
    pair.append((LATE, 0, 0))
    pair.have_room(UNKNOWN)
    pair.clock.ms += TURNED_AWAY_MS_MAX
    assert pair.takes_natively((OTHER, 0, 0))
    assert not pair.takes_natively((LATE, 0, 1))
    assert pair.takes_natively((LATE, 0, 2))
