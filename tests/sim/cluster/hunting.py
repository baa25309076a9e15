"""Finding a planted bug: by the seed that is known to, or else by searching, as far as is promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.sim.cluster.run import ClusterOutcome

SEEDS_MAX: Final = 500
"""Every planted bug is found within so many seeds."""
HUNT_SECONDS_MAX: Final = 900


def hunted(run: Callable[[int], ClusterOutcome], known: int) -> ClusterOutcome:
    """What finds the bug that is planted now; the last outcome, which is sound, where nothing does. Whatever changes a
    broker's timing moves the seeds: one that is not `known` any more is told, to be noted."""
    outcome = run(known)
    if not outcome.is_sound:
        return outcome
    for seed in range(SEEDS_MAX):
        if not (outcome := run(seed)).is_sound:
            break
    print(f"seed {known} does not find it any more; seed {outcome.seed} does: note it")
    return outcome
