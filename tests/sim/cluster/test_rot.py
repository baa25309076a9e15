"""Replicated partitions on disks that damage what lies on them: nothing is lost, and all is sound and equal again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from headrace.sim.cluster.records.run import run_rotten
from headrace.sim.cluster.replica_plants import ROT_PLANTS
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, ROT_SHOWS_AS, hunted, sound
from tests.tiers import portions, seeds_of_tier

SEEDS: Final = seeds_of_tier(6, 7, long=range(12))
SEEDS_AT_A_TIME: Final = 4
FOUND: Final[dict[str, int]] = {
    "damaged-copy-dropped-while-counted": 4,
    "damaged-copy-dropped-in-an-epoch-it-spoke-in": 19,
}
"""A seed that finds each; where simulator or broker were changed, others do: `make plants PART=rot`."""


@pytest.mark.parametrize("seeds", portions(SEEDS, SEEDS_AT_A_TIME))
def test_nothing_promised_is_lost_and_what_is_damaged_is_mended(seeds: Sequence[int]) -> None:
    damaged = 0
    for seed in seeds:
        outcome = sound("rot", seed)
        damaged += int(outcome.figures["damaged files"])
    assert damaged > 1


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found_by_what_is_on_the_disks(plant: str) -> None:
    with ROT_PLANTS[plant]():
        outcome = hunted(run_rotten, FOUND[plant], shows_as=ROT_SHOWS_AS)
    assert [problem.kind for problem in outcome.problems[:1]] == [ROT_SHOWS_AS]
