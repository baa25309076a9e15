"""Reassignments over the wire (KIP-455): they choose the brokers that hold a partition.

Promises: the result for each partition is returned. A repeated request does no harm: a reassignment that is under way,
or done, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.net.client.view import PartitionView
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages import alter_partition_reassignments as wire
from headrace.wire.messages import list_partition_reassignments as listing

REASSIGNMENT_TIMEOUT_MS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """The result for one partition. `detail` is the broker's own sentence."""

    partition: int
    error: ErrorCode
    detail: str | None


async def reassign(cluster: Cluster, topic: str, replicas: Mapping[int, Sequence[int]]) -> tuple[Reassigned, ...]:
    """Let these brokers hold these partitions of a topic, the first of them as the preferred leader. The data are
    copied afterwards. Raises RefusedError where nothing was accepted.
    """
    wishes = tuple(wire.ReassignablePartition(index, tuple(brokers)) for index, brokers in replicas.items())
    request = wire.AlterPartitionReassignmentsRequest(
        timeout_ms=REASSIGNMENT_TIMEOUT_MS, topics=(wire.ReassignableTopic(topic, wishes),)
    )

    async def ask() -> tuple[Reassigned, ...]:
        response = await cluster.ask_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        check(response.error_code, f"Topic '{topic}'", response.error_message)
        return tuple(
            Reassigned(partition=result.partition_index, error=error_of(result.error_code), detail=result.error_message)
            for found in response.responses
            for result in found.partitions
        )

    done = await cluster.retried(ask)
    cluster.forget((topic,))
    return done


async def ongoing(cluster: Cluster, topic: str, partitions: Sequence[int]) -> tuple[int, ...]:
    """Those of these partitions that are being reassigned."""
    request = listing.ListPartitionReassignmentsRequest(
        timeout_ms=REASSIGNMENT_TIMEOUT_MS,
        topics=(listing.ListPartitionReassignmentsTopics(topic, tuple(partitions)),),
    )

    async def ask() -> tuple[int, ...]:
        response = await cluster.ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
        check(response.error_code, f"Topic '{topic}'", response.error_message)
        return tuple(one.partition_index for found in response.topics for one in found.partitions)

    return await cluster.retried(ask)


def with_more_replicas(
    partitions: Iterable[PartitionView], brokers: Iterable[int], factor: int
) -> dict[int, tuple[int, ...]]:
    """New replicas for each partition that has fewer than `factor`. It keeps its replicas, and gets those of `brokers`
    that hold the fewest of these partitions, as far as there are any.
    """
    partitions = list(partitions)
    held = dict.fromkeys(sorted(brokers), 0)
    for part in partitions:
        held |= {broker: held[broker] + 1 for broker in part.replicas if broker in held}
    plan = {}
    for part in partitions:
        others = sorted((broker for broker in held if broker not in part.replicas), key=lambda broker: held[broker])
        added = others[: max(0, factor - len(part.replicas))]
        held |= {broker: held[broker] + 1 for broker in added}
        if added:
            plan[int(part.index)] = (*part.replicas, *added)
    return plan
