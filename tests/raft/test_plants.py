"""A checker that finds nothing proves nothing: each bug of `plants` is found by the seed that is named here.

Where the quorum in memory was changed, the seeds are others: `python -m tests.raft.plants` looks for them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import pytest

from tests.raft.plants import PLANTS, found_by

FOUND: Final[dict[str, int]] = {
    "vote-not-persisted": 1,
    "answered-before-persisted": 1,
    "own-write-counted-early": 2,
    "older-term-committed-by-count": 8,
    "stale-acknowledgement-counts": 9,
    "truncates-without-conflict": 44,
    "two-changes-pending": 7,
    "wiped-voter-votes": 33,
}


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    assert found_by(PLANTS[name], FOUND[name]) is not None


@pytest.mark.parametrize("name", FOUND)
def test_the_same_seed_finds_nothing_without_it(name: str) -> None:
    assert found_by(nullcontext, FOUND[name]) is None
