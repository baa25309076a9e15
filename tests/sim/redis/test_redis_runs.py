"""The short form of `make swarm` for brokers on a Redis: seeds are sound, planted bugs are found, and a seed replays to
the letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from headrace.sim.redis.door import NAMES
from headrace.sim.redis.plants import PLANTS
from headrace.sim.redis.run import run_redis
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, SEEDS_MAX, hunted, sound
from tests.tiers import portions, seeds_of_tier

SEEDS: Final = seeds_of_tier(0, 3, 9, 55, long=range(60))
SEEDS_AT_A_TIME: Final = 10
FOUND: Final[dict[str, int]] = {
    "another-redis-not-noticed": 14,
    "answered-before-waitaof": 1,
    "answered-without-wait": 6,
    "end-not-checked": 1,
    "epoch-not-checked": 45,
    "epochs-not-raised": 41,
    "flushed-with-what-left-ahead": 4,
    "joined-with-what-left-ahead": 45,
    "lease-not-checked": 39,
    "lease-outlives-its-redis": 4,
    "opened-as-flushed": 130,
    "registration-not-repeated": 0,
    "sent-again-without-a-look": 1,
    "stored-in-memory": 23,
}
"""A seed that finds each; where simulator or broker were changed, others do: `make plants PART=redis` notes them."""


@pytest.mark.parametrize("seeds", portions(SEEDS, SEEDS_AT_A_TIME))
def test_nothing_acknowledged_is_lost_whatever_redis_does(seeds: Sequence[int]) -> None:
    acknowledged = 0.0
    for seed in seeds:
        acknowledged += sound("redis", seed).figures["acknowledged by all"]
    assert acknowledged > 50


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str) -> None:
    with PLANTS[plant]():
        outcome = hunted(run_redis, FOUND[plant])
    assert not outcome.is_sound, f"{plant} survived {SEEDS_MAX} seeds"
    print(f"{plant}: seed {outcome.seed}: {outcome.problems[0]}")


def test_every_plant_is_known_to_the_command_line() -> None:
    assert set(NAMES) == PLANTS.keys() == FOUND.keys()


def test_a_seed_replays_to_the_letter() -> None:
    assert run_redis(2).story == run_redis(2).story
