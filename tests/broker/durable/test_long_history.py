"""A request about a very long catalog makes only the entries that it needs.

Entries are packed, and unpacking each costs the event loop some microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import SEGMENTS_DELETED_AT_ONCE_MAX
from headrace.broker.durable.history import History
from headrace.broker.durable.history_keeper import retained_from
from headrace.controller.durable import delete_history
from headrace.metadata import runs
from headrace.metadata.image import EMPTY_IMAGE
from headrace.metadata.segments import CatalogEntry, Entries, PartitionCatalog, SegmentDescriptor
from headrace.storage.engine.identity import LogConfig
from headrace.storage.engine.reading import EpochEnd, FoundOffset
from headrace.storage.tier.format import EpochStart
from tests.controller.test_brokers import KEY, TOPIC, register, with_topic

COUNT = 5_000
RECORDS = 10
END = Offset(COUNT * RECORDS)


def epoch_of(number: int) -> int:
    """Of the segment with so many before it: each leader has exported a thousand."""
    return 1 + number // 1_000


def segment(number: int) -> SegmentDescriptor:
    return SegmentDescriptor(
        key=f"d/{number}",
        start_offset=Offset(RECORDS * number),
        end_offset=Offset(RECORDS * number + RECORDS - 1),
        leader_epoch=LeaderEpoch(epoch_of(number)),
        first_timestamp_ms=number,
        last_timestamp_ms=number,
        records=RECORDS,
        batch_bytes=100,
        object_bytes=200,
        crc32c=1,
        sha256=f"{number:064x}",
        last_epoch=LeaderEpoch(epoch_of(number)),
    )


@pytest.fixture(scope="module")
def catalog() -> PartitionCatalog:
    entries, head = list[CatalogEntry](), f"{0:064x}"
    for number in range(COUNT):
        hashed = f"{number + 1:064x}"
        entries.append(CatalogEntry(descriptor=segment(number), previous_hash=head, hash=hashed))
        head = hashed
    return PartitionCatalog(
        head=head,
        entries=Entries.of(entries),
        start_offset=Offset(0),
        last_start=Offset(END - RECORDS),
        end_offset=Offset(END - 1),
        batch_bytes=100 * COUNT,
    )


@pytest.fixture
def made(catalog: PartitionCatalog, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many entries were made since it was asked last."""
    count, make = 0, runs._entry

    def counted(*given: Any) -> CatalogEntry:
        nonlocal count
        count += 1
        return make(*given)

    def since() -> int:
        nonlocal count
        count, told = 0, count
        return told

    monkeypatch.setattr(runs, "_entry", counted)
    return since


def test_where_a_log_differs(catalog: PartitionCatalog, made: Callable[[], int]) -> None:
    def differs(*epochs: tuple[int, int]) -> int | None:
        return catalog.differs_from([(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs])

    assert differs((1, 0), (5, END - 1)) is None
    assert differs((1, 0), (2, 10_000), (3, 20_000)) is None
    assert differs((1, 0), (3, 10_005), (5, END - 1)) == 10_005
    assert differs((1, 0), (9, END - 1), (9, END)) == END - 1
    assert differs((9, END)) is None
    assert made() < 40


def test_what_is_deleted_from_the_beginning(catalog: PartitionCatalog, made: Callable[[], int]) -> None:
    image = register(with_topic(register(EMPTY_IMAGE, 1), (1,)), 1)
    known: Any = SimpleNamespace(partition=image.partition, durable=lambda key: catalog)
    epoch = image.partition(KEY).leader_epoch  # type: ignore[union-attr]
    for asked, deleted in ((END, SEGMENTS_DELETED_AT_ONCE_MAX), (RECORDS * 5, 5), (RECORDS * 1_001, 1_000)):
        decision = delete_history(
            known,
            topic_id=TopicId(TOPIC),
            partition=PartitionIndex(0),
            leader_epoch=epoch,
            log_start_offset=Offset(asked),
        )
        (event,) = decision.events
        assert len(event.removed) == deleted  # type: ignore[union-attr]
        assert event.log_start_offset == RECORDS * deleted  # type: ignore[union-attr]
        assert made() <= SEGMENTS_DELETED_AT_ONCE_MAX + 2


def test_what_is_past_its_retention(catalog: PartitionCatalog, made: Callable[[], int]) -> None:
    config = LogConfig(retention_ms=0, retention_bytes=-1)
    assert retained_from(catalog, config, 0, 2**40) == RECORDS * SEGMENTS_DELETED_AT_ONCE_MAX
    assert retained_from(catalog, config, 0, 3) == RECORDS * 3
    assert made() <= SEGMENTS_DELETED_AT_ONCE_MAX + 10


class Told(History):
    """Of its objects it knows what their descriptors say."""

    def __init__(self) -> None:
        self._objects: Any = None

    async def _plan_of(self, segment: SegmentDescriptor) -> Any:
        footer = SimpleNamespace(leader_epochs=(EpochStart(segment.leader_epoch, segment.start_offset),))
        return SimpleNamespace(footer=footer, segment=segment)

    async def _read(self, key: str, work: Any) -> Any:
        segment = work.args[1].segment
        return FoundOffset(segment.start_offset, segment.last_timestamp_ms, segment.leader_epoch)


async def test_what_is_looked_for_by_time(catalog: PartitionCatalog, made: Callable[[], int]) -> None:
    history = Told()
    for number in (0, 3_333, COUNT - 1):
        found = await history.first_at_or_after(catalog, number, END)
        assert found == (RECORDS * number, number, epoch_of(number))
        assert made() <= 2
    assert await history.first_at_or_after(catalog, 3_333, Offset(RECORDS * 3_333)) is None
    assert await history.first_at_or_after(catalog, COUNT, END) is None
    assert await history.highest(catalog, END) == (END - RECORDS, COUNT - 1, 5)
    assert await history.highest(catalog, Offset(21)) == (20, 2, 1)
    assert await history.highest(catalog, Offset(0)) is None
    assert made() <= 6


async def test_where_an_epoch_ended(catalog: PartitionCatalog, made: Callable[[], int]) -> None:
    history = Told()
    for epoch, local_start, end in (
        (1, END, 10_000),
        (4, END, 40_000),
        (5, END, END),
        (3, 25_000, 25_000),
        (1, 25, 25),
    ):
        found = await history.end_of_epoch(catalog, LeaderEpoch(epoch), Offset(local_start))
        assert found == EpochEnd(LeaderEpoch(epoch), Offset(end))
        assert made() <= 20
    assert await history.end_of_epoch(catalog, LeaderEpoch(0), END) == (0, 0)
