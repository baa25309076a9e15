"""Replicated partitions whose brokers die, are removed and come back: nothing is lost, and replicas come again."""

from __future__ import annotations

from typing import Final

import pytest

from headrace.sim.cluster.records.removing import run_removals
from headrace.sim.cluster.replica_plants import REMOVAL_PLANTS
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, SEEDS_MAX, hunted, sound
from tests.tiers import seeds_of_tier

SEEDS: Final = seeds_of_tier(4, 5, long=range(6))
FOUND: Final[dict[str, int]] = {
    "new-replica-begins-in-sync": 16,
}
"""A seed that finds each; where simulator or broker were changed, others do: `make plants PART=removals`."""


def test_nothing_promised_is_lost_where_brokers_are_removed() -> None:
    removals = 0
    for seed in SEEDS:
        outcome = sound("removals", seed)
        removals += int(outcome.figures["removals of brokers"])
    assert removals > 1


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str) -> None:
    with REMOVAL_PLANTS[plant]():
        outcome = hunted(run_removals, FOUND[plant])
    assert not outcome.is_sound, f"{plant} survived {SEEDS_MAX} seeds"
    print(f"{plant}: seed {outcome.seed}: {outcome.problems[0]}")
