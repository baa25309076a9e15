"""The tiers of the tests: how much of what each check can do is done (docs/TESTING.md).

`make test` runs every check in its short form. `make test-long` sets HEADRACE_TIER=long: seeds, rounds and examples as
many as the promises name. A check that only the long tier runs is marked `long`, which is left out of the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pytest

IS_LONG: Final = os.environ.get("HEADRACE_TIER") == "long"
EXAMPLES_PART: Final = 4
"""Of Hypothesis's examples, one in so many is tried in the short form; the long tier tries all."""
EXAMPLES_MIN: Final = 10

long_only: Final = pytest.mark.long


def of_tier(*, short: int, long: int) -> int:
    """How many seeds or rounds this tier takes."""
    return long if IS_LONG else short


def seeds_of_tier(*short: int, long: range) -> Sequence[int]:
    """Seeds of a simulation that this tier plays: all of `long`, or the `short` ones.

    These are cheap, and between them they show all that their test counts.
    """
    assert set(short) <= set(long), "the long tier plays them, too"
    return long if IS_LONG else short


def portions(seeds: Sequence[int], at_a_time: int) -> list[Sequence[int]]:
    """The seeds of each test, where one test plays so many."""
    return [seeds[first : first + at_a_time] for first in range(0, len(seeds), at_a_time)]


def examples(long: int) -> int:
    """How many examples of a property this tier tries, where the long one tries `long`."""
    return long if IS_LONG else min(long, max(EXAMPLES_MIN, long // EXAMPLES_PART))
