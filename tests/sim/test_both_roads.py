"""A simulated cluster does the same on both roads, to the letter: native code decides nothing, and has no clock."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from headrace.native import VARIABLE
from headrace.sim.cluster.parts import PARTS
from tests.tiers import IS_LONG, portions, seeds_of_tier

pytest.importorskip("headrace_native", reason="`make native` has not compiled it")

SEEDS: Final = seeds_of_tier(1, long=range(1, 41))
WRITTEN: Final = [part for part in PARTS if part not in ("redis", "lost-quorums")]
"""Parts in which records are written to local logs."""
ROADS: Final = re.compile(r"road='?(native|pure Python)'?")


def story(seed: int, part: str, road: int) -> str:
    """The story that a process of its own tells."""
    command = [sys.executable, "-m", "headrace.sim", "--cluster", "--part", part, "--seed", str(seed)]
    told = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {VARIABLE: str(road)}, timeout=600, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert {found[1] for found in ROADS.finditer(told.stdout)} <= {("pure Python", "native")[road]}
    return ROADS.sub("", told.stdout)


@pytest.mark.parametrize("part", WRITTEN if IS_LONG else ["records", "moves", "transactions"])
@pytest.mark.parametrize("seeds", portions(SEEDS, 10))
def test_a_seed_has_one_story(part: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        assert story(seed, part, 1) == story(seed, part, 0)
