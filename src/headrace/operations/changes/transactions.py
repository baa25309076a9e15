"""Plans for transactions that their producers have left open."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import TopicPartition
from headrace.net.client.transactions import Transactions
from headrace.operations.changes.plan import Plan

OPEN: Final = "Ongoing"


class OpenOne(NamedTuple):
    """The open transaction of an id."""

    name: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


async def aborting(cluster: Cluster, name: str) -> Plan:
    """Its producer is fenced, if it lives. Raises HeadraceError where there is no such id, ClientError."""
    transactions = Transactions(cluster)
    view = await transactions.describe(name)
    if view is None:
        raise HeadraceError(f"There is no transactional id '{name}'; see 'headrace txn list'.")
    row = OpenOne(view.name, view.producer_id, view.producer_epoch, view.started_ms, view.partitions)
    obstacle = "" if view.state == OPEN else f"'{name}' has no open transaction: its state is {view.state}."
    return Plan(["txn", "abort", name, "--execute"], [row], partial(transactions.end, name), obstacle)
