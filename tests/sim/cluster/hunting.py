"""Seeds that must be sound, and the search for a planted bug. It tries first the seed known to find it, then further
seeds up to the promised number."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from headrace.sim.cluster.parts import PARTS
from headrace.sim.cluster.play import ClusterOutcome
from tools.run_tests import KEPT, MOVED_SEEDS

SEEDS_MAX: Final = 500
"""Every planted bug is found within so many seeds."""
HUNT_SECONDS_MAX: Final = 900
ROT_SHOWS_AS: Final = "in-sync-without"
"""The kind of problem that reveals the bugs planted in the mending of damage."""


OUTCOMES_KEPT: Final = 8


@lru_cache(OUTCOMES_KEPT)
def sound(part: str, seed: int) -> ClusterOutcome:
    """That part of a seed, in which nothing is found; else it is told how to play it again. Some outcomes are kept: a
    test that plays a seed again compares it with the first time.
    """
    outcome = PARTS[part](seed)
    problems = "\n".join(map(str, outcome.problems[:5]))
    replay = f"python -m headrace.sim --cluster --part {part} --seed {seed}"
    assert outcome.is_sound, f"{problems}\nreplay it with: {replay}"
    return outcome


def hunted(run: Callable[[int], ClusterOutcome], known: int, *, shows_as: str | None = None) -> ClusterOutcome:
    """The outcome that finds the planted bug; if none does, the last one. Changes of a broker's timing move the seeds.
    A seed other than `known` is told at the end of all tests, to be noted (`make plants`)."""
    outcome = run(known)
    if is_found(outcome, shows_as):
        return outcome
    for seed in range(SEEDS_MAX):
        if is_found(outcome := run(seed), shows_as):
            break
    moved = f"seed {known} of {os.environ.get('PYTEST_CURRENT_TEST')} does not find it any more, {outcome.seed} does"
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / MOVED_SEEDS).open("a", encoding="utf-8") as file:
        file.write(f"{moved}\n")
    return outcome


def is_found(outcome: ClusterOutcome, shows_as: str | None) -> bool:
    """Whether a problem was found, and first one of that kind, where it is named."""
    return not outcome.is_sound and shows_as in (None, outcome.problems[0].kind)
