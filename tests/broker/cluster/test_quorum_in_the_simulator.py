"""Whole quorums on virtual time from one seed: the shipped driver, log and transport, on disks that lose what was not
synced and a network that delays, resets and is cut. What was acknowledged is never lost, and all images are one."""

from __future__ import annotations

import pytest

from tests.broker.cluster.quorum_simulation import played


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_whatever_dies_and_is_cut(seed: int) -> None:
    world = played(seed, lambda world: world.ordeal(12))
    assert len(world.acknowledged) > 5
