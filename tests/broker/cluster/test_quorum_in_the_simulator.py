"""Whole quorums on virtual time from one seed: the shipped driver, log and transport.

Disks lose unsynced data, and the network delays, resets and is cut. Acknowledged changes are never lost, and all images
are equal.
"""

from __future__ import annotations

import pytest

from tests.broker.cluster.quorum_simulation import played
from tests.tiers import of_tier


@pytest.mark.parametrize("seed", range(of_tier(short=4, long=24)))
def test_nothing_acknowledged_is_lost_whatever_dies_and_is_cut(seed: int) -> None:
    world = played(seed, lambda world: world.ordeal(12))
    assert len(world.acknowledged) > 5
