"""Safety while everything fails, and progress once nothing does."""

from __future__ import annotations

import pytest

from tests.raft.chaos import Chaos
from tests.tiers import of_tier


@pytest.mark.parametrize("first", range(0, of_tier(short=30, long=300), 10))
def test_ten_seeds(first: int) -> None:
    for seed in range(first, first + 10):
        Chaos(seed).run(2_000)
