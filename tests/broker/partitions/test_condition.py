"""A broker finds each state in which it serves less than it should, logs it once, and forgets it once it is over."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import DESCRIPTORS_USED_FRACTION_MAX, STATE_PARTITIONS_NAMED_MAX
from headrace.base.ports import Space
from headrace.broker.durable import exporter as exporter_module
from headrace.broker.durable.exporter import Exporter
from headrace.broker.partitions.condition import Condition
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.system import SystemClock
from headrace.broker.upkeep.cleaner import Cleaner, Pace
from headrace.metadata.image import EMPTY_IMAGE
from headrace.storage.log.engine import LocalLogEngine
from headrace.wire.ailments import KINDS, State
from headrace.wire.errors import ErrorCode
from tests.storage.log.memory_disk import MemoryDisk

NO_TOPIC = TopicId(UUID(int=1))


@dataclass
class Watched:
    """A broker, as far as its condition looks at it."""

    failed: list[str] = field(default_factory=list)
    """Topics of partitions whose disk has failed; each stands beside one that serves."""
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    usable: int = 1_000_000
    is_read_only: bool = False
    used: int = 0
    """File descriptors, of 100."""
    is_dumb: bool = False
    """It cannot be counted."""
    sources: list[Callable[[], Iterator[State]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = DiskRoom(
            lambda: Space(1_000_000, self.usable, self.is_read_only), lambda: 1_000, _no_bug, lambda _: None
        )
        partitions: Any = self
        self.condition = Condition(
            partitions=partitions,
            room=self.room,
            sources=[lambda: [state for source in self.sources for state in source()]],
            damaged=tuple,
            heard=dict,
            image=lambda: EMPTY_IMAGE,
            descriptors=self._count,
            on_bug=_no_bug,
        )

    @property
    def replicas(self) -> Sequence[Any]:
        return [
            SimpleNamespace(topic=topic, topic_partition=SimpleNamespace(partition=0), has_failed=has_failed)
            for topic in self.failed
            for has_failed in (True, False)
        ]

    def _count(self) -> tuple[int, int]:
        if self.is_dumb:
            raise OSError("planted")
        return self.used, 100

    async def look(self) -> Mapping[str, State]:
        await self.room.look()
        await self.condition.look()
        return {state.kind: state for state in self.condition.states}


def _no_bug(error: BaseException) -> None:
    raise AssertionError from error


async def test_a_broker_of_which_nothing_is_wrong_tells_nothing() -> None:
    with capture_logs() as told:
        assert await Watched().look() == {}
    assert told == []


async def test_partitions_that_serve_nothing_are_counted_and_some_are_named() -> None:
    watched = Watched(failed=["a", "b"])
    watched.offline[TopicPartition(NO_TOPIC, PartitionIndex(3))] = "The log of c-3 cannot be opened."
    state = (await watched.look())["partition offline"]
    assert "3 of its partitions" in state.text
    assert "(a-0, b-0, The log of c-3 cannot be opened.)" in state.text
    assert "restart" in state.todo
    watched.failed = [f"t{number}" for number in range(STATE_PARTITIONS_NAMED_MAX + 2)]
    watched.offline.clear()
    state = (await watched.look())["partition offline"]
    assert f"{STATE_PARTITIONS_NAMED_MAX + 2} of its partitions" in state.text
    assert "and 2 more" in state.text
    watched.failed = []
    assert await watched.look() == {}


async def test_a_disk_that_is_mounted_for_reading_only_is_told_as_that_alone() -> None:
    watched = Watched(is_read_only=True, usable=0)
    (state,) = (await watched.look()).values()
    assert (state.kind, "reading only" in state.text, "restart" in state.todo) == ("read-only disk", True, True)


@pytest.mark.parametrize(("usable", "kind"), [(2_000, None), (1_999, "disk nearly full"), (999, "disk full")])
async def test_a_disk_is_nearly_full_before_it_is(usable: int, kind: str | None) -> None:
    states = await Watched(usable=usable).look()
    assert list(states) == ([] if kind is None else [kind])
    for state in states.values():
        assert f"{usable} bytes" in state.text
        assert "free space" in state.todo


async def test_descriptors_are_told_before_they_are_used_up() -> None:
    most = int(100 * DESCRIPTORS_USED_FRACTION_MAX)
    watched = Watched(used=most)
    assert await watched.look() == {}
    watched.used = most + 1
    state = (await watched.look())["descriptors"]
    assert f"{most + 1} of its 100" in state.text
    assert "ulimit -n" in state.todo
    watched.is_dumb = True
    assert await watched.look() == {}, "nothing is told that was not found"


async def test_a_journal_that_is_given_up_is_told() -> None:
    journal: Any = SimpleNamespace(is_given_up=False)
    watched = Watched(sources=[LocalLogEngine(MemoryDisk(), Path("logs"), journal=journal).states])
    assert await watched.look() == {}
    journal.is_given_up = True
    state = (await watched.look())["journal given up"]
    assert "slower" in state.text
    assert "restart" in state.todo


async def test_each_is_logged_as_it_begins_and_ends_and_the_worst_comes_first() -> None:
    watched = Watched(failed=["a"], used=99, usable=1_500)
    with capture_logs() as told:
        await watched.look()
        await watched.look()
    assert [state.kind for state in watched.condition.states] == [
        "partition offline",
        "descriptors",
        "disk nearly full",
    ]
    assert [KINDS.index(state.kind) for state in watched.condition.states] == sorted(
        KINDS.index(state.kind) for state in watched.condition.states
    )
    assert [(each["kind"], each["log_level"]) for each in told] == [
        (state.kind, "warning") for state in watched.condition.states
    ]
    watched.failed, watched.used = [], 0
    with capture_logs() as told:
        await watched.look()
    assert [(each["kind"], each["log_level"]) for each in told] == [
        ("descriptors", "info"),
        ("partition offline", "info"),
    ]


@dataclass(eq=False)
class Role:
    """A partition that is led here, as cleaner and exporter see it."""

    topic: str = "t"
    error: Exception | None = None
    """Raised by a look into its log."""
    damages: Sequence[object] = ()
    differs_from: int | None = None
    is_exported: bool = True

    def __post_init__(self) -> None:
        self.topic_partition = TopicPartition(NO_TOPIC, PartitionIndex(0))
        self.settings = SimpleNamespace(compact=True, durable=True)
        self.availability, self.lacks_room, self.open_since_ms, self.cleanable_end = ErrorCode.NONE, False, None, 0
        self.log: Any = self
        self.gaps_below = 0

    @property
    def cleaning(self) -> Role:
        return self

    def dirtiness(self, now_ms: int, up_to: int) -> float:
        if self.error is not None:
            raise self.error
        return 0.0

    def on_unreadable(self, error: Exception, offset: int | None) -> None:
        assert error is self.error


def cleaner_of(*roles: Role) -> Cleaner:
    partitions: Any = SimpleNamespace(replicas=roles)
    unused: Any = None
    return Cleaner(
        partitions=partitions,
        clock=SystemClock(),
        random=unused,
        pace=lambda _: Pace(1_000, 1e9),
        image=EMPTY_IMAGE,
        on_bug=_no_bug,
    )


async def test_a_log_that_is_not_compacted_any_more_is_told_and_its_neighbour_is_not() -> None:
    bad, good = Role("bad", OSError(errno.EIO, "planted")), Role("good")
    cleaner = cleaner_of(bad, good)
    watched = Watched(sources=[cleaner.states])
    assert await watched.look() == {}
    assert cleaner._dirtiest() is None
    state = (await watched.look())["cleaning given up"]
    assert "1 of its compacted partitions" in state.text
    assert "(bad-0)" in state.text
    await cleaner.release([bad.log])
    assert await watched.look() == {}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
async def test_a_log_that_could_not_be_compacted_for_want_of_something_is_not_given_up(error: int) -> None:
    role = Role(error=OSError(error, "planted"))
    cleaner = cleaner_of(role)
    assert cleaner._dirtiest() is None
    assert list(cleaner.states()) == []
    assert cleaner._put_off == {role.log}


def exporter_of(*roles: Role) -> Exporter:
    metadata: Any = SimpleNamespace(image=EMPTY_IMAGE, subscribe=lambda _: None)
    partitions: Any = roles
    unused: Any = SimpleNamespace(run=None)
    return Exporter(
        partitions=partitions,
        metadata=metadata,
        control=unused,
        cluster_id=unused,
        objects=unused,
        threads=unused,
        clock=SystemClock(),
        bytes_per_second=1,
        on_bug=_no_bug,
    )


async def test_an_export_that_waits_for_somebody_is_told_until_that_is_done() -> None:
    damaged, differing, gapped, missing, well = (Role(name) for name in ("a", "b", "c", "d", "e"))
    roles: Sequence[Any] = (damaged, differing, gapped, missing)
    exporter = exporter_of(damaged, differing, gapped, missing, well)
    watched = Watched(sources=[exporter.states])
    damaged.error, damaged.damages = (corrupt := CorruptData("planted")), ["planted"]
    exporter._next_start = lambda partition: Offset(0)  # type: ignore[method-assign]
    assert exporter._on_corrupt(roles[0], corrupt) is None, "that is known to be the reason"
    differing.differs_from = 7
    assert exporter._is_stuck(roles[1])
    gapped.is_exported = False
    exporter._tell_gaps(roles[2])
    exporter._tell_missing(roles[3], FileNotFoundError("planted"))
    state = (await watched.look())["export stuck"]
    assert "4 partitions" in state.text
    assert "(a-0, b-0, c-0, d-0)" in state.text
    damaged.damages, differing.differs_from, gapped.is_exported = (), None, True
    assert "(d-0)" in (await watched.look())["export stuck"].text
    exporter._logged.missing.discard(missing.log)
    assert await watched.look() == {}


async def test_a_store_that_cannot_be_written_to_is_told_for_as_long_as_that_is_so() -> None:
    exporter = exporter_of()
    watched = Watched(sources=[exporter.states])
    outcomes: list[Exception | None] = [HeadraceError("the store is away"), None]

    async def passed() -> Exception | None:
        if not outcomes:
            exporter._stopping.set()
            return None
        if len(outcomes) == 1:
            assert "the store is away" in (await watched.look())["export stuck"].text
        return outcomes.pop(0)

    exporter._pass = passed  # type: ignore[method-assign]
    with patch.object(exporter_module, "EXPORT_RETRY_MS_MAX", 1), patch.object(exporter_module, "EXPORT_TICK_MS", 1):
        await exporter._run()
    assert await watched.look() == {}
