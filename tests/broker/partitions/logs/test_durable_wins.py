"""The table of `durable_wins`, row by row, over real logs: which gives way, and which is known to go on from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex
from headrace.broker.partitions.logs.durable_wins import agrees, wins
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import check_batches
from tests.metadata.test_segments import TOPIC, descriptor
from tests.storage.log.log_world import batch, flush, new_disk, open_log

Epochs = Sequence[int]
"""Of each record, one batch each, from offset 0 on."""


def log_of(epochs: Epochs, *, start: int = 0) -> LocalLog:
    log = open_log(new_disk())
    if start:
        log.copying.restart_at(Offset(start))
    for offset, epoch in enumerate(epochs, start):
        raw = batch(1, size=60, seed=offset)
        placed = offset.to_bytes(8, "big") + raw[8:12] + epoch.to_bytes(4, "big") + raw[16:]
        log.copying.append_verbatim(placed, check_batches(placed), now_ms=0)
    flush(log)
    return log


def segment(start: int, epochs: Epochs, exporter: int, *, is_old: bool = False) -> SegmentDescriptor:
    made = descriptor(start, len(epochs), leader_epoch=LeaderEpoch(exporter))
    return made if is_old else dataclasses.replace(made, last_epoch=LeaderEpoch(epochs[-1]))


def catalog_of(*segments: SegmentDescriptor) -> PartitionCatalog:
    catalog = PartitionCatalog.empty(TOPIC, PartitionIndex(0))
    for each in segments:
        catalog = catalog.published(each)
    return catalog


FIVE = catalog_of(segment(0, [3, 3, 5, 5, 5], 6))


@pytest.mark.parametrize(
    ("log", "catalog", "is_begun_anew"),
    [
        pytest.param([3, 3], None, False, id="it has no history"),
        pytest.param([3, 3], catalog_of(), False, id="nothing was ever exported"),
        pytest.param([], FIVE, True, id="an empty log ends below"),
        pytest.param([3, 3, 5, 5], FIVE, True, id="it ends below, though it is the same"),
        pytest.param([3, 3, 5, 5, 5], FIVE, False, id="it ends there, and is the same"),
        pytest.param([3, 3, 5, 5, 5, 5, 8], FIVE, False, id="it goes on"),
        pytest.param([3, 3, 3, 3, 3, 3, 3, 3], FIVE, False, id="of an earlier epoch: a deposed leader's"),
        pytest.param([3, 3, 4, 4, 4, 4, 4, 4], FIVE, False, id="of another epoch in between"),
        pytest.param([3, 3, 5, 7, 7, 7, 7, 7], FIVE, False, id="of a later epoch: lost, and written otherwise"),
    ],
)
def test_a_log_that_begins_with_history_or_not_at_all(
    log: Epochs, catalog: PartitionCatalog | None, is_begun_anew: bool
) -> None:
    assert wins(catalog, log_of(log)) == is_begun_anew


@pytest.mark.parametrize(
    ("start", "log", "is_begun_anew"),
    [
        pytest.param(5, [], False, id="it begins at the frontier, with nothing"),
        pytest.param(5, [9, 9], False, id="it begins at the frontier"),
        pytest.param(8, [9, 9], False, id="history ends below it, and does not join"),
        pytest.param(4, [5, 5], False, id="it begins below, and is the same"),
        pytest.param(4, [3, 5], False, id="it begins below, and is not"),
        pytest.param(3, [], True, id="it ends below, with nothing"),
    ],
)
def test_a_log_that_begins_later(start: int, log: Epochs, is_begun_anew: bool) -> None:
    assert wins(FIVE, log_of(log, start=start)) == is_begun_anew


def test_where_all_of_history_is_deleted_its_end_still_holds() -> None:
    deleted = FIVE.deleted(Offset(5), (FIVE.entries[Offset(0)].descriptor.sha256,))
    assert not deleted.entries
    assert wins(deleted, log_of([3, 3]))
    assert not wins(deleted, log_of([3, 3, 4, 4, 4]))


@pytest.mark.parametrize(
    ("start", "log", "catalog", "is_known"),
    [
        pytest.param(0, [3, 3, 5, 5, 5], FIVE, True, id="it has the last record"),
        pytest.param(0, [3, 3, 5, 5, 5, 8], FIVE, True, id="and goes on"),
        pytest.param(4, [5, 5], FIVE, True, id="it begins with that"),
        pytest.param(5, [], FIVE, True, id="it begins at the frontier"),
        pytest.param(7, [9], FIVE, True, id="it begins above"),
        pytest.param(0, [3, 3, 5, 5], FIVE, False, id="it ends below"),
        pytest.param(0, [3, 3, 3, 3, 3, 3], FIVE, False, id="a deposed leader's"),
        pytest.param(0, [3, 3, 5, 7, 7, 7], FIVE, False, id="lost, and written otherwise"),
        pytest.param(0, [3, 3, 5, 5, 5], catalog_of(segment(0, [3, 3, 5, 5, 5], 6, is_old=True)), False, id="not told"),
    ],
)
def test_what_is_known_to_go_on_from_history(
    start: int, log: Epochs, catalog: PartitionCatalog, is_known: bool
) -> None:
    assert agrees(catalog, log_of(log, start=start)) == is_known


def test_a_log_for_reading_only_is_kept() -> None:
    log = log_of([3, 3])
    log.read_only = "what was flushed last is gone"
    assert not wins(FIVE, log)
