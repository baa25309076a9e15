"""The short form of `make swarm` for replicas behind durable history: seeds are sound, planted bugs are found, and a
seed replays to the letter."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from headrace.sim.cluster.copies.run import run_copies
from headrace.sim.cluster.copy_plants import COPY_PLANTS
from headrace.sim.cluster.merge_plants import MERGE_PLANTS
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, SEEDS_MAX, hunted, sound
from tests.tiers import seeds_of_tier

SEEDS: Final = seeds_of_tier(3, 7, long=range(16))
FOUND: Final[dict[str, int]] = {
    "copy-is-not-compared": 134,
    "durable-history-does-not-win": 7,
    "gives-way-without-the-store": 28,
    "merged-event-before-object": 2,
    "merged-is-swept-on-its-way": 29,
    "producers-of-the-footer-are-not-taken": 10,
    "recovery-begins-no-assignment": 28,
    "vouchers-go-with-what-they-hang-on": 7,
}
"""A seed that finds each, with what gives it away in decision 0035; where simulator or broker were changed, others do:
`make plants PART=copies` notes them."""


def test_nothing_promised_is_lost_wherever_a_replica_begins() -> None:
    figures = Counter[str]()
    for seed in SEEDS:
        outcome = sound("copies", seed)
        figures.update(outcome.figures)
    assert figures["acknowledged by all"] > 50
    assert figures["copies begun above 0"] > 0
    assert figures["unclean elections"] > 0
    assert figures["recoveries from history"] > 0
    assert figures["segments in the place of others"] > 0


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str) -> None:
    with {**COPY_PLANTS, **MERGE_PLANTS}[plant]():
        outcome = hunted(run_copies, FOUND[plant])
    assert not outcome.is_sound, f"{plant} survived {SEEDS_MAX} seeds"
    print(f"{plant}: seed {outcome.seed}: {outcome.problems[0]}")


def test_a_seed_replays_to_the_letter() -> None:
    assert run_copies(SEEDS[0]).story == sound("copies", SEEDS[0]).story
