"""One run of a cluster from one seed: whole brokers for an even seed, their quorum alone for an odd one.

A run of whole brokers has everything and few elections. A run of a quorum alone is cheap, and has many times as many
leaders, rivals and changes of the membership (decision 0019).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from headrace.sim.cluster.brokers_run import BrokersRun
from headrace.sim.cluster.clients import APIS
from headrace.sim.cluster.operator import APIS as OPERATORS_APIS
from headrace.sim.cluster.play import ClusterOutcome, simulate
from headrace.sim.cluster.quorum_run import QuorumRun

EVENTS_PER_SNAPSHOT: Final = 25
KINDS: Final = (BrokersRun, QuorumRun)
"""Used in turn."""


def run_cluster(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    return simulate(seed, "", KINDS[seed % len(KINDS)], (*APIS, *OPERATORS_APIS), lambda _: _small_snapshots())


@contextmanager
def _small_snapshots() -> Iterator[None]:
    with patch("headrace.broker.cluster.quorum.member.METADATA_EVENTS_PER_SNAPSHOT", EVENTS_PER_SNAPSHOT):
        yield
