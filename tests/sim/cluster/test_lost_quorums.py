"""A quorum that is lost and recovered by force: nothing promised is lost, and what comes back from before does no
harm."""

from __future__ import annotations

from typing import Final

import pytest

from headrace.sim.cluster.records.recovering import run_lost_quorums
from headrace.sim.cluster.replica_plants import LOST_QUORUM_PLANTS
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, SEEDS_MAX, hunted, sound
from tests.tiers import seeds_of_tier

SEEDS: Final = seeds_of_tier(5, 7, long=range(8))
FOUND: Final[dict[str, int]] = {
    "rejoins-what-is-over": 17,
}
"""A seed that finds each; where simulator or broker were changed, others do: `make plants PART=lost-quorums`."""


def test_nothing_promised_is_lost_where_the_quorum_is() -> None:
    acknowledged = sum(sound("lost-quorums", seed).figures["acknowledged by all"] for seed in SEEDS)
    assert acknowledged > len(SEEDS)


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str) -> None:
    with LOST_QUORUM_PLANTS[plant]():
        outcome = hunted(run_lost_quorums, FOUND[plant])
    assert not outcome.is_sound, f"{plant} survived {SEEDS_MAX} seeds"
    print(f"{plant}: seed {outcome.seed}: {outcome.problems[0]}")
