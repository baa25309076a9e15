"""The short form of `make swarm` for transactions: seeds are sound, planted bugs are found, and a seed replays to the
letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from headrace.sim.cluster.transactions.plants import TRANSACTION_PLANTS
from headrace.sim.cluster.transactions.run import run_transactions
from tests.sim.cluster.hunting import HUNT_SECONDS_MAX, SEEDS_MAX, hunted, sound
from tests.tiers import portions, seeds_of_tier

SEEDS: Final = seeds_of_tier(9, 21, long=range(1_000))
SEEDS_AT_A_TIME: Final = 15
FOUND: Final[dict[str, int]] = {
    "marker-before-the-decision-is-durable": 7,
    "last-stable-offset-ahead-of-a-transaction": 2,
    "old-epoch-accepted-after-a-bump": 4,
    "ended-before-all-markers-are-durable": 76,
    "offsets-shown-before-the-commit": 16,
    "aborted-list-ends-with-the-segment": 2,
    "open-transactions-lost-by-a-new-leader": 4,
    "retry-of-the-end-decides-again": 172,
    "not-verified-after-a-leader-change": 0,
    "footer-lists-no-aborted-transaction": 88,
    "seal-tells-no-open-transaction": 41,
    "aborted-transactions-go-with-their-first-records": 41,
}
"""A seed that finds each; where simulator or broker were changed, others do: `make plants PART=transactions` notes
them."""


@pytest.mark.parametrize("seeds", portions(SEEDS, SEEDS_AT_A_TIME))
def test_a_transaction_is_whole_or_nothing_whatever_fails(seeds: Sequence[int]) -> None:
    figures = Counter[str]()
    for seed in seeds:
        outcome = sound("transactions", seed)
        figures.update(outcome.figures)
    assert figures["transactions committed"] > 20
    assert figures["aborted"] > 5


@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_bug_is_found(plant: str) -> None:
    with TRANSACTION_PLANTS[plant]():
        outcome = hunted(run_transactions, FOUND[plant])
    assert not outcome.is_sound, f"{plant} survived {SEEDS_MAX} seeds"
    print(f"{plant}: seed {outcome.seed}: {outcome.problems[0]}")


def test_a_seed_replays_to_the_letter() -> None:
    assert run_transactions(SEEDS[0]).story == sound("transactions", SEEDS[0]).story
