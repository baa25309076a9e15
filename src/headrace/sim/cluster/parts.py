"""A seed of the cluster's simulator, in two parts: the metadata of a cluster, and the records of replicated partitions;
and, where they are asked for, more: such records on disks that damage what lies on them, or where brokers go for good,
or a quorum; consumer groups, hand-overs of partitions, replicas behind durable history, and these with a compacted
topic beside.

They are runs of their own, so that each has a mixture that suits it, and a change of one leaves the other as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from headrace.sim.cluster.copies.run import run_copies
from headrace.sim.cluster.copies.tables_run import run_tables
from headrace.sim.cluster.copy_plants import COPY_PLANTS
from headrace.sim.cluster.group_plants import GROUP_PLANTS
from headrace.sim.cluster.groups.run import run_groups
from headrace.sim.cluster.merge_plants import MERGE_PLANTS, TABLE_PLANTS
from headrace.sim.cluster.move_plants import MOVE_PLANTS
from headrace.sim.cluster.moves.run import run_moves
from headrace.sim.cluster.plants import CLUSTER_PLANTS
from headrace.sim.cluster.records.recovering import run_lost_quorums
from headrace.sim.cluster.records.removing import run_removals
from headrace.sim.cluster.records.run import run_records, run_rotten
from headrace.sim.cluster.replica_plants import LOST_QUORUM_PLANTS, REMOVAL_PLANTS, REPLICA_PLANTS, ROT_PLANTS
from headrace.sim.cluster.run import ClusterOutcome, run_cluster

PARTS: Final[Mapping[str, Callable[[int], ClusterOutcome]]] = {
    "metadata": run_cluster,
    "records": run_records,
    "rot": run_rotten,
    "removals": run_removals,
    "lost-quorums": run_lost_quorums,
    "groups": run_groups,
    "moves": run_moves,
    "copies": run_copies,
    "tables": run_tables,
}
USUAL: Final = ("metadata", "records")
"""What a seed is where no part is named."""
ALL_PLANTS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    **CLUSTER_PLANTS,
    **REPLICA_PLANTS,
    **ROT_PLANTS,
    **REMOVAL_PLANTS,
    **LOST_QUORUM_PLANTS,
    **GROUP_PLANTS,
    **MOVE_PLANTS,
    **COPY_PLANTS,
    **MERGE_PLANTS,
    **TABLE_PLANTS,
}


def run_parts(seed: int, *, parts: Sequence[str] = USUAL) -> ClusterOutcome:
    """Until a problem is found. Never raises for what the brokers did."""
    whole = ClusterOutcome(seed)
    for part in parts:
        outcome = PARTS[part](seed)
        whole.story += outcome.story
        whole.figures.update(outcome.figures)
        whole.problems = outcome.problems
        if not whole.is_sound:
            break
    return whole
