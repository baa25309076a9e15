"""The native road of the copy stream does what its twins in Python do, and takes the usual frames."""

from __future__ import annotations

import pytest

from headrace.native import ROAD
from tools.partition_fuzz.__main__ import COPIES_TAKEN_MIN, Counts, fuzz, run_pair

pytestmark = pytest.mark.skipif(ROAD.native is None, reason="the pure road is taken")
OPERATIONS = 6_000
FRAMES_MIN = 80


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_roads_copy_the_same(seed: int) -> None:
    counts = Counts()
    for _ in fuzz(seed, OPERATIONS, counts, run=run_pair):
        pass
    assert counts.copies.share > COPIES_TAKEN_MIN, "the native road takes what is usual"
    assert min(counts.copies.taken.values()) > FRAMES_MIN
