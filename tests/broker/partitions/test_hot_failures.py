"""The native road fails. While it only looks, the partition goes on; half-way in an append, the partition ends."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from structlog.testing import capture_logs

from headrace.broker.partitions.hot import KINDS
from headrace.broker.partitions.partition import Partition
from headrace.native import ROAD
from headrace.storage.engine.appending import Appended
from headrace.wire.errors import ErrorCode
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.batches import Bodies, made
from tools.partition_fuzz.choosing import settings_of
from tools.partition_fuzz.observed import seen_of
from tools.partition_fuzz.world import Clock, Feed, InlineLoop, World

pytestmark = pytest.mark.skipif(ROAD.native is None, reason="the pure road is taken")
PRODUCER = 11
BUG = "the native road failed, and pure Python goes on: a bug of the broker, please report it"


class FailingClock(Clock):
    """Fails once, where it is told to. The native road looks at it first."""

    failure: BaseException | None = None

    def now_ms(self) -> int:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return super().now_ms()


class FailingFeed(Feed):
    def on_appended(self, partition: Partition) -> None:
        raise LookupError("a bug")


class Case:
    def __init__(self, *, fsync: bool) -> None:
        self.clock, self.loop = FailingClock(), InlineLoop()
        native = ROAD.native
        assert native is not None
        [self._body, *_] = Bodies(Random(1), native).single
        settings, config = settings_of(Random(3), fsync=fsync, is_narrow=False, replicas=1)
        self.world = World(
            5, self.clock, self.loop, native=None, config=config, settings=settings, replicas=1, has_journal=True
        )
        self.partition = self.world.partition
        self.append(0)
        do.flush(self.world)
        self.partition.hot = native.HotPartition(self.partition, KINDS)

    def append(self, sequence: int, failure: BaseException | None = None, *, fails_in: str = "append_plain") -> None:
        """It has to be appended. `fails_in`: which function meets the failure first."""
        partition = self.partition
        records = memoryview(made(self._body, self.clock.ms, (PRODUCER, 0, sequence)).data)
        if fails_in == "append_plain":
            self.clock.failure = failure
            answer = partition.append_plain(records, needs_isr=True)
        else:
            self.clock.failure = failure if fails_in == "examine" else None
            walked = partition.examine(records)
            self.clock.failure = failure if fails_in == "append" else None
            answer = partition.append(records, needs_isr=True, walked=walked)
        assert isinstance(answer, Appended)
        assert answer.base_offset == sequence
        assert self.clock.failure is None, "it was met"


@pytest.fixture(params=[True, False], ids=["before its fsync", "page cache"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    case = Case(fsync=request.param)
    yield case
    case.loop.close()


places = pytest.mark.parametrize("place", ["append_plain", "examine", "append"])


@places
def test_the_twin_goes_on_after_a_bug(case: Case, place: str) -> None:
    with capture_logs() as told:
        case.append(1, LookupError("a bug"), fails_in=place)
        case.append(2)
    assert [each["event"] for each in told] == [BUG]
    assert case.partition.hot is None, "the bug would be met again"
    do.flush(case.world)
    assert case.partition.high_watermark == 3


@places
@pytest.mark.parametrize("failure", [MemoryError(), KeyboardInterrupt()])
def test_nothing_changes_without_memory_or_in_an_interruption(case: Case, place: str, failure: BaseException) -> None:
    road, before = case.partition.hot, seen_of(case.world)
    with pytest.raises(type(failure)):
        case.append(1, failure, fails_in=place)
    assert seen_of(case.world) == before
    assert case.partition.hot is road
    case.append(1)


def test_a_failure_half_way_ends_the_partition(case: Case) -> None:
    case.partition.tails.watch(FailingFeed(case.world.told, 0))
    with capture_logs(), pytest.raises(LookupError):
        case.append(1)
    assert case.partition.availability is ErrorCode.KAFKA_STORAGE_ERROR
    assert case.world.log.failed, "recovery has to find what the files hold"
