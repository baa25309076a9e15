"""The table of `durable_wins`, row by row, over real logs; and as a law, over histories of elections: a log is begun
anew exactly where it is no continuation of what was exported."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset, PartitionIndex
from headrace.broker.durable_wins import wins
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import check_batches
from tests.metadata.test_segments import TOPIC, descriptor
from tests.storage.log.log_world import batch, flush, new_disk, open_log
from tests.storage.log.test_log_damage import examine, flip

Epochs = Sequence[int]
"""Of each record, one batch each, from offset 0 on."""


def log_of(epochs: Epochs, *, start: int = 0) -> LocalLog:
    log = open_log(new_disk())
    if start:
        log.restart_at(Offset(start))
    for offset, epoch in enumerate(epochs, start):
        raw = batch(1, size=60, seed=offset)
        placed = offset.to_bytes(8, "big") + raw[8:12] + epoch.to_bytes(4, "big") + raw[16:]
        log.append_verbatim(placed, check_batches(placed), now_ms=0)
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
        pytest.param([3, 3], None, False, id="no store, or nothing exported"),
        pytest.param([3, 3], catalog_of(), False, id="nothing was ever exported"),
        pytest.param([], FIVE, True, id="an empty log ends below"),
        pytest.param([3, 3, 5, 5], FIVE, True, id="it ends below, though it is the same"),
        pytest.param([3, 3, 5, 5, 5], FIVE, False, id="it ends there, and is the same"),
        pytest.param([3, 3, 5, 5, 5, 5, 8], FIVE, False, id="it goes on"),
        pytest.param([3, 3, 3, 3, 3, 3, 3, 3], FIVE, True, id="of an earlier epoch: a deposed leader's"),
        pytest.param([3, 3, 4, 4, 4, 4, 4, 4], FIVE, True, id="of another epoch in between"),
        pytest.param([3, 3, 5, 7, 7, 7, 7, 7], FIVE, True, id="of a later epoch: lost, and written otherwise"),
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
        pytest.param(4, [3, 5], True, id="it begins below, and is not"),
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


@pytest.mark.parametrize(("epoch", "is_begun_anew"), [(3, False), (6, False), (7, False)])
def test_a_log_is_kept_where_history_of_an_earlier_version_does_not_tell_its_epoch(
    epoch: int, is_begun_anew: bool
) -> None:
    old = catalog_of(segment(0, [3, 3, 5, 5, 5], 6, is_old=True))
    assert old.last is not None
    assert old.last.descriptor.last_epoch == NO_EPOCH
    assert wins(old, log_of([3, 3, *[epoch] * 4])) == is_begun_anew


def test_what_cannot_be_read_is_not_dropped() -> None:
    """Its epochs may be wrong after damage."""
    disk = new_disk()
    log = open_log(disk)
    for offset in range(8):
        raw = batch(1, size=60, seed=offset)
        placed = offset.to_bytes(8, "big") + raw[8:12] + (3).to_bytes(4, "big") + raw[16:]
        log.append_verbatim(placed, check_batches(placed), now_ms=0)
    flush(log)
    assert wins(FIVE, log)
    base = int(log.segment_of(Offset(4)))
    size = len(log.read(Offset(base), 1, log.log_end_offset, at_least_one=True))
    log.close()
    flip(disk, log.directory / f"{base:020d}.log", size * (4 - base) + 80)
    log = open_log(disk)
    assert examine(log)
    assert not wins(FIVE, log)


def test_a_log_for_reading_only_is_kept() -> None:
    log = log_of([3, 3])
    log.read_only = "what was flushed last is gone"
    assert not wins(FIVE, log)


class Election(NamedTuple):
    """Who leads next, how many records it writes, of how many of its log the others are given, and how many are
    exported of it."""

    leader: int
    written: int
    copied: Sequence[int]
    exported: int


elections = st.builds(
    Election, st.integers(0, 2), st.integers(0, 3), st.tuples(*[st.integers(0, 9)] * 3), st.integers(0, 9)
)


@given(st.lists(elections, max_size=12))
def test_a_log_is_begun_anew_exactly_where_it_does_not_go_on_from_history(story: list[Election]) -> None:
    """Anybody is elected, with whatever it has. The oracle compares records one by one: each is its epoch and a number
    that no other has."""
    logs: list[list[tuple[int, int]]] = [[], [], []]
    starts = [0, 0, 0]
    history: list[tuple[int, int]] = []
    segments: list[SegmentDescriptor] = []
    number = 0
    for epoch, (leader, written, copied, exported) in enumerate(story):
        ours, start = logs[leader], starts[leader]
        frontier = len(history)
        overlap = ours[: max(0, frontier - start)]
        goes_on = start + len(ours) >= frontier and overlap == history[start:frontier]
        found = wins(catalog_of(*segments), log_of([each for each, _ in ours], start=start))
        assert found == (not goes_on)
        if found:
            ours, start = [], frontier
        for _ in range(written):
            number += 1
            ours = [*ours, (epoch, number)]
        logs[leader], starts[leader] = ours, start
        for other in {0, 1, 2} - {leader}:
            kept = _agreed(logs[other], starts[other], ours, start)
            logs[other], starts[other] = kept if kept is not None else ([], start)
            end = starts[other] + len(logs[other])
            logs[other] = [*logs[other], *ours[end - start : end - start + copied[other]]]
        end = min(start + len(ours), frontier + exported)
        if end > frontier:
            new = ours[frontier - start : end - start]
            segments.append(segment(frontier, [each for each, _ in new], epoch))
            history += new


def _agreed(
    theirs: list[tuple[int, int]], their_start: int, ours: list[tuple[int, int]], start: int
) -> tuple[list[tuple[int, int]], int] | None:
    """What a follower keeps of its log: all that it has in common with the leader's; None where that is nothing it can
    go on from."""
    end = their_start + len(theirs)
    first = max(start, their_start)
    if not start <= end or their_start > start + len(ours) or first > end:
        return None
    if theirs[: first - their_start] and first > their_start:
        return None  # it has what the leader's log does not reach back to: begun anew, to keep the story simple
    common = first
    while common < min(end, start + len(ours)) and theirs[common - their_start] == ours[common - start]:
        common += 1
    return theirs[: common - their_start], their_start
