"""The parts of a seed in the cluster's simulator.

By default these are the metadata of a cluster, and the records of replicated partitions. More are run on request:
- records on disks that damage their content, with brokers that are removed for good, or with a lost quorum;
- consumer groups;
- hand-overs of partitions;
- transactions;
- replicas behind durable history, also with a compacted topic;
- brokers whose records and metadata are in a Redis.

Each part is a run of its own. So each has a mixture that suits it, and changing one leaves the others as they were.
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
from headrace.sim.cluster.play import ClusterOutcome
from headrace.sim.cluster.records.recovering import run_lost_quorums
from headrace.sim.cluster.records.removing import run_removals
from headrace.sim.cluster.records.run import run_records, run_rotten
from headrace.sim.cluster.replica_plants import LOST_QUORUM_PLANTS, REMOVAL_PLANTS, REPLICA_PLANTS, ROT_PLANTS
from headrace.sim.cluster.run import run_cluster
from headrace.sim.cluster.transactions.plants import TRANSACTION_PLANTS
from headrace.sim.cluster.transactions.run import run_transactions
from headrace.sim.redis.door import REDIS_PLANTS, run_redis

PARTS: Final[Mapping[str, Callable[[int], ClusterOutcome]]] = {
    "metadata": run_cluster,
    "records": run_records,
    "rot": run_rotten,
    "removals": run_removals,
    "lost-quorums": run_lost_quorums,
    "groups": run_groups,
    "transactions": run_transactions,
    "moves": run_moves,
    "copies": run_copies,
    "tables": run_tables,
    "redis": run_redis,
}
USUAL: Final = ("metadata", "records")
"""The parts of a seed where none is named."""
ALL_PLANTS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    **CLUSTER_PLANTS,
    **REPLICA_PLANTS,
    **ROT_PLANTS,
    **REMOVAL_PLANTS,
    **LOST_QUORUM_PLANTS,
    **GROUP_PLANTS,
    **TRANSACTION_PLANTS,
    **MOVE_PLANTS,
    **COPY_PLANTS,
    **MERGE_PLANTS,
    **TABLE_PLANTS,
    **REDIS_PLANTS,
}


def run_parts(seed: int, *, parts: Sequence[str] = USUAL) -> ClusterOutcome:
    """Run the parts until a problem is found. Never raises for anything that the brokers did."""
    whole = ClusterOutcome(seed)
    for part in parts:
        outcome = PARTS[part](seed)
        whole.story += outcome.story
        whole.figures.update(outcome.figures)
        whole.problems = outcome.problems
        if not whole.is_sound:
            break
    return whole
