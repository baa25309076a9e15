"""The short form of `make swarm`: seeds are sound, every planted bug is found, and a seed replays to the letter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pytest

from headrace.sim.plants import PLANTS
from headrace.sim.run import Outcome, run
from tests.tiers import of_tier, portions, seeds_of_tier

SEEDS = seeds_of_tier(*range(4), long=range(100))
SEEDS_AT_A_TIME = 10
SEEDS_KEPT = 16
SEEDS_PER_PLANT_MAX = 60
FOUND = {
    "acknowledge-before-fsync": 0,
    "no-directory-fsync": 0,
    "recovery-accepts-a-bad-batch": 4,
    "journal-reused-unsynced": 1,
    "recovery-ignores-the-journal": 0,
    "acknowledge-before-the-journals-sync": 1,
    "torn-rounds-are-taken": 40,
    "a-torn-write-stays": 0,
    "acknowledge-what-found-no-room": 56,
}
"""A seed that finds each planted bug. Where the simulator or the broker was changed, another does."""


@lru_cache(SEEDS_KEPT)
def sound(seed: int) -> Outcome:
    """The outcome of a seed in which nothing is found. Few are kept: a seed that is played again is compared."""
    outcome = run(seed)
    problems = "\n".join(map(str, outcome.problems[:5]))
    assert outcome.is_sound, f"{problems}\nreplay it with: python -m headrace.sim --seed {seed}"
    return outcome


@pytest.mark.parametrize("seeds", portions(SEEDS, SEEDS_AT_A_TIME))
def test_power_cuts_lose_nothing_that_was_acknowledged(seeds: Sequence[int]) -> None:
    cuts = 0
    for seed in seeds:
        outcome = sound(seed)
        assert outcome.acknowledged > 0
        cuts += outcome.cuts
    assert cuts >= 3 * len(seeds)


def runs_with(plant: str) -> Iterator[Outcome]:
    for seed in (FOUND[plant], *range(SEEDS_PER_PLANT_MAX)):
        with PLANTS[plant]():
            yield run(seed)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found_and_its_seed_is_printed(plant: str) -> None:
    found = next((outcome for outcome in runs_with(plant) if not outcome.is_sound), None)
    assert found is not None, f"{plant} survived {SEEDS_PER_PLANT_MAX} seeds"
    print(f"{plant}: seed {found.seed}: {found.problems[0]}" + (", note it" if found.seed != FOUND[plant] else ""))
    assert sound(found.seed), "without the plant the seed is sound"


def replay(seed: int, hash_seed: int) -> str:
    """The story of one seed, told by a process of its own."""
    command = [sys.executable, "-m", "headrace.sim", "--seed", str(seed)]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_a_seed_replays_to_the_letter() -> None:
    """In this process, and in others, whose hashes are others."""
    story = sound(1).story
    assert run(1).story == story
    told = {replay(1, hash_seed) for hash_seed in range(of_tier(short=1, long=3))}
    assert len(told) == 1
    assert told.pop().startswith("\n".join(story))
