"""The short form of `make swarm` for hand-overs: seeds are sound, planted bugs are found, and a seed replays to the
letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from headrace.sim.cluster.move_plants import MOVE_PLANTS
from headrace.sim.cluster.moves.run import run_moves
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, SEEDS_MAX, hunted, sound
from tests.tiers import portions, seeds_of_tier

SEEDS: Final = seeds_of_tier(1, 7, long=range(8))
SEEDS_AT_A_TIME: Final = 4
FOUND: Final[dict[str, int]] = {
    "cancel-without-an-epoch": 54,
    "event-before-object": 0,
    "new-owner-appends-before-the-move-is-finished": 16,
    "owner-resumes-after-an-unknown-seal": 65,
    "seal-without-epoch-check": 54,
    "stale-local-log-wins": 74,
    "two-decisions-on-one-image": 43,
}
"""A seed that finds each, with what gives it away in decision 0035; where simulator or broker were changed, others do:
`make plants PART=moves` notes them."""


@pytest.mark.parametrize("seeds", portions(SEEDS, SEEDS_AT_A_TIME))
def test_nothing_promised_is_lost_whoever_takes_over(seeds: Sequence[int]) -> None:
    figures = Counter[str]()
    for seed in seeds:
        outcome = sound("moves", seed)
        figures.update(outcome.figures)
    assert figures["acknowledged by all"] > 50
    assert figures["finished"] > 3
    assert figures["objects"] > 10


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str) -> None:
    with MOVE_PLANTS[plant]():
        outcome = hunted(run_moves, FOUND[plant])
    assert not outcome.is_sound, f"{plant} survived {SEEDS_MAX} seeds"
    print(f"{plant}: seed {outcome.seed}: {outcome.problems[0]}")


def test_a_seed_replays_to_the_letter() -> None:
    assert run_moves(SEEDS[0]).story == sound("moves", SEEDS[0]).story
