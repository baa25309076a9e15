"""The native road of a led partition does what its twins in Python do, and takes the usual batches."""

from __future__ import annotations

import pytest

from headrace.native import ROAD
from tools.partition_fuzz.__main__ import READS_TAKEN_MIN, TAKEN_MIN, Counts, fuzz, run_group

pytestmark = pytest.mark.skipif(ROAD.native is None, reason="the pure road is taken")
OPERATIONS = 2_500


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_both_roads_do_the_same(seed: int) -> None:
    counts = Counts()
    for _ in fuzz(seed, OPERATIONS, counts):
        pass
    assert counts.refused > counts.operations / 100, "they meet what is refused, too"
    assert counts.share > TAKEN_MIN, "the native road takes what is usual"


@pytest.mark.parametrize("seed", [1, 2])
def test_both_roads_fetch_the_same(seed: int) -> None:
    counts = Counts()
    for _ in fuzz(seed, OPERATIONS, counts, run=run_group):
        pass
    fetches = counts.fetches
    assert fetches.share > READS_TAKEN_MIN, "the native road takes what is usual"
    assert fetches.with_records > fetches.reads / 4
    assert fetches.after_a_wait > 0, "some wait, and are woken"
